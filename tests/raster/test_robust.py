"""Odd files that real software met: each gives a right map, or is refused in one clear line.

What is right is computed here from the file's pixels with rasterio alone; of places and other runs see
`laws/test_right_or_refused.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.grid.geometry import Window
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map
from tests.helpers.robust_files import REFUSED, RIGHT

Find = Callable[[str], Path]
Call = Callable[..., int]
WIDE = ("--window-size", 512, "--batch", 2)


def test_every_file_has_its_verdict(shared_data: Find) -> None:
    lines = (shared_data("robust") / "MANIFEST.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[0] for line in lines} == set(RIGHT) | set(REFUSED)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_right_map(shared_data: Find, tmp_path: Path, call: Call, name: str) -> None:
    """Nodata exactly where the file has no data, the exact map of the whole image elsewhere."""
    path, right = shared_data("robust") / name, RIGHT[name]
    part, count = right.window, len(right.bands)
    options = [] if part is None else ["--part", part.row, part.col, part.height, part.width]
    assert call(path, *WIDE, *options, bands=right.bands, band_count=count, metres_per_pixel=None) == 0
    with rasterio.open(path) as source, rasterio.open(tmp_path / "maps" / name) as result:
        area, ids = Window(0, 0, source.height, source.width) if part is None else part, result.read(1)
        assert (ids.shape, result.nodata) == ((area.height, area.width), 255)
        margin = 2 * STRIDE * RADIUS  # of surroundings that a part's map depends on, on the grid
        top, left = (max(0, v - margin) // STRIDE * STRIDE for v in (area.row, area.col))
        bottom = min(source.height, area.row_stop + margin)
        around = Window(top, left, bottom - top, min(source.width, area.col_stop + margin) - left)
        rows, cols = around.slices()
        pixels = source.read(right.bands, window=((rows.start, rows.stop), (cols.start, cols.stop)))
        valid = right.valid(source, pixels)
    inside = area.relative_to(around).slices()
    np.testing.assert_array_equal(ids == 255, ~valid[inside])
    assert int((ids == 255).sum()) == right.nodata_pixels
    if valid.any():
        expected = exact_map(np.moveaxis(pixels, 0, 2), valid, RADIUS, STRIDE)
        np.testing.assert_array_equal(ids, expected[inside])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_clear_refusal(shared_data: Find, tmp_path: Path, call: Call, capfd: Any, name: str) -> None:
    path = shared_data("robust") / name
    assert call(path, band_count=3 if "corrupt" in name else 1, metres_per_pixel=None) == 1
    said = capfd.readouterr()
    assert re.fullmatch(rf"error: {re.escape(str(path))}: {REFUSED[name]}.*\n", said.err)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []
