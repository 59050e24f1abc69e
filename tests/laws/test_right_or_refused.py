"""Any raster is mapped rightly, in both modes and with any number of bands, or refused in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from segmenter.grid.geometry import Window
from tests.helpers.raster_verdict import verdict
from tests.helpers.robust_files import REFUSED, RIGHT

LARGE = {
    "rio-tiler__cog_world.tif": Window(5000, 18000, 701, 903),
    "gdal__southup_int8_tile1_utm49s.tif": Window(7001, 513, 903, 701),
}


@pytest.mark.parametrize("mode", ["exact", pytest.param("smooth", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted({*RIGHT, *REFUSED}))
def test_real_files(
    shared_data: Callable[[str], Path], call: Callable[..., int], capfd: Any, name: str, mode: str
) -> None:
    """Each with runs of one, three and four bands: right with one of them at most, else refused."""
    path, right = shared_data("robust") / name, []
    for count in (1, 3, 4):
        refusal = verdict(call, capfd, path, count, "--mode", mode, part=LARGE.get(name))
        if refusal is None:
            right.append(count)
            shutil.rmtree("maps")
    assert len(right) <= 1
    assert not (right and name in REFUSED)
