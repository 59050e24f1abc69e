"""Odd files that real software met: each gives a right map, or is refused in one clear line.

What is right is computed here from the file's pixels with rasterio alone, and compared pixel by pixel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map, fake_run, run_predict
from tests.helpers.robust_files import REFUSED, RIGHT, Right


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> Callable[..., int]:
    """`predict.py` with a run whose model can be computed exactly."""

    def call(path: Path, bands: tuple[int, ...] | None, count: int, *options: str) -> int:
        run = fake_run(
            make_classes(7),
            bands=bands,
            band_count=count,
            metres_per_pixel=None,
            recipe=SimpleNamespace(
                name="exact",
                dataset=SimpleNamespace(kind="folder", images=("{name}.tif",), maps_hold_codes=False),
                prediction=SimpleNamespace(window=512, batch=4),
                training=SimpleNamespace(precision="float32"),
            ),
        )
        return run_predict(monkeypatch, run, path, "--output", tmp_path / "maps", *options)

    return call


def test_every_file_has_its_verdict(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("robust")
    listed = {line.split("\t")[0] for line in (folder / "MANIFEST.tsv").read_text().splitlines()[1:]}
    assert listed == set(RIGHT) | set(REFUSED)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_right_map(
    shared_data: Callable[[str], Path], tmp_path: Path, call: Callable[..., int], name: str
) -> None:
    path, right = shared_data("robust") / name, RIGHT[name]
    part = right.window
    options = [] if part is None else ["--part", *map(str, (part.row, part.col, part.height, part.width))]
    if right.nodata_pixels == 8192 * 8192:  # nothing is computed: large windows only save time
        options += ["--window-size", "512", "--batch", "2"]
    assert call(path, right.bands, len(right.bands), *options) == 0
    with rasterio.open(path) as source, rasterio.open(tmp_path / "maps" / name) as result:
        area = Window(0, 0, source.height, source.width) if part is None else part
        assert (result.height, result.width) == (area.height, area.width)
        assert result.nodata == 255
        check_geography(source, result, area)
        check_pixels(source, result, area, right)


def check_geography(source: Any, result: Any, area: Window) -> None:
    """Bounds compared, not only shapes; control points where these are all there is."""
    assert result.crs == source.crs
    corners = [(0, 0), (area.width, 0), (0, area.height), (area.width, area.height)]
    here = [result.transform @ corner for corner in corners]
    there = [source.transform @ (x + area.col, y + area.row) for x, y in corners]
    np.testing.assert_allclose(here, there, rtol=1e-12, atol=1e-9)
    points, crs = source.gcps
    assert [(p.row, p.col, p.x, p.y, p.z) for p in result.gcps[0]] == [
        (p.row, p.col, p.x, p.y, p.z) for p in points
    ]
    assert result.gcps[1] == crs


def check_pixels(source: Any, result: Any, area: Window, right: Right) -> None:
    """Nodata exactly where the file has no data, the exact map of the whole image elsewhere."""
    margin = 2 * STRIDE * RADIUS  # of surroundings that a part's map depends on, on the grid
    top, left = (max(0, v - margin) // STRIDE * STRIDE for v in (area.row, area.col))
    bottom, right_ = min(source.height, area.row_stop + margin), min(source.width, area.col_stop + margin)
    around = Window(top, left, bottom - top, right_ - left)
    rows, cols = around.slices()
    pixels = source.read(right.bands, window=((rows.start, rows.stop), (cols.start, cols.stop)))
    valid = right.valid(source, pixels)
    ids = result.read(1)
    inside = area.relative_to(around).slices()
    np.testing.assert_array_equal(ids == 255, ~valid[inside])
    assert int((ids == 255).sum()) == right.nodata_pixels
    if valid.any():
        expected = exact_map(np.moveaxis(pixels, 0, 2), valid, RADIUS, STRIDE)
        np.testing.assert_array_equal(ids, expected[inside])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_clear_refusal(
    shared_data: Callable[[str], Path],
    tmp_path: Path,
    call: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    path = shared_data("robust") / name
    count = 3 if "corrupt" in name else 1
    assert call(path, None, count) == 1
    said = capfd.readouterr()
    assert re.fullmatch(rf"error: {re.escape(str(path))}: {REFUSED[name]}.*\n", said.err)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_limit_on_empty_files_can_be_lifted(
    shared_data: Callable[[str], Path], call: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Then the file is read, and found to end behind its header."""
    path = shared_data("robust") / "gdal__huge4GB.tif"
    assert call(path, None, 1, "--max-pixels", "5000000000", "--part", "600", "0", "50", "50") == 1
    assert "damaged or incomplete" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "bands", "count", "line"),
    [
        ("rio-tiler__cog_gcps.tif", None, 3, "expected 3 bands as in training, got 1; it does not fit"),
        ("stars__L7_ETMs.tif", None, 3, "expected 3 bands as in training, got 6; name the ones to use with"),
        (
            "naip__nir_tagged_as_alpha.tif",
            None,
            4,
            r"band 4 is tagged as alpha, but holds measurements .*: 1,2,3,4 or 1,2,3",
        ),
        ("rasterio__cogeo.tif", (1, 2, 3, 4), 4, r"expected band 4 \(of 1, 2, 3, 4\), the raster has 3"),
    ],
)
def test_bands_that_do_not_fit(
    shared_data: Callable[[str], Path],
    tmp_path: Path,
    call: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
    name: str,
    bands: tuple[int, ...] | None,
    count: int,
    line: str,
) -> None:
    assert call(shared_data("robust") / name, bands, count) == 1
    assert re.search(line, capfd.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_everything_at_once(
    shared_data: Callable[[str], Path], tmp_path: Path, call: Callable[..., int], capfd: Any
) -> None:
    """A folder with good and bad files: the good ones are mapped, the bad ones listed, exit code 1."""
    for source in shared_data("robust").glob("*.tif"):
        if "world" not in source.name and "southup" not in source.name:
            (tmp_path / "in").mkdir(exist_ok=True)
            (tmp_path / "in" / source.name).symlink_to(source.resolve())
    assert call(tmp_path / "in", (1,), 1) == 1
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(REFUSED)
    mapped = {p.name for p in (tmp_path / "maps").glob("[!.]*.tif")}
    assert mapped == {n for n in RIGHT if "world" not in n and "southup" not in n}
