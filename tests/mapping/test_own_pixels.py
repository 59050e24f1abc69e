"""Memory of maps on a raster's own pixels: what is planned is what the columns of the grid take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.mapping.call import Call
from segmenter.mapping.computing import needs_of, tiling_for
from segmenter.mapping.jobs import MapJob, RasterRequest
from segmenter.mapping.request.map_request import MapRequest
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster.in_memory import ArrayRaster
from segmenter.raster.resampled import ModelGrid
from tests.helpers.exact_network import fake_run

GB = 10**9


@pytest.fixture
def run(make_classes: Callable[..., ClassMap], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("segmenter.inference.memory.smallest_card", lambda: None)
    return fake_run(make_classes(6), network=NetworkGeometry(16, 94, 650.0))


def job(step: Fraction, width: int = 3000) -> MapJob:
    raster = ArrayRaster(np.broadcast_to(np.uint8(0), (700, width, 3)))
    part = Window.of(raster.info.size)
    request = RasterRequest(None, 3)
    return MapJob(request, raster.info, part, "a", Path("a.tif"), grid=ModelGrid(part, step, step))


@pytest.mark.parametrize("mode", ["exact", "smooth"])
@pytest.mark.parametrize(
    "step", [Fraction(1, 64), Fraction(1, 10), Fraction(3, 20), Fraction(1, 8), Fraction(7, 5), Fraction(5)]
)
def test_what_is_planned_holds_the_widest_column_of_the_grid(run: Any, mode: Any, step: Fraction) -> None:
    """With any memory that is not refused, however many pixels of the grid an own one has."""
    planned = 0
    for memory in (1.3, 1.6, 2, 3, 4, 8, 64):
        one, request = job(step), MapRequest(Path("run"), Path("maps"), ("in",), mode=mode)
        call = Call.of(replace(request, memory=int(memory * GB)), run)
        try:
            tiling = tiling_for(call, [one])
        except ConfigError:
            continue
        one.set_column(tiling.column)
        widest = max(column.width for column in one.columns.left(0))
        needs = needs_of(call, [one])[1]
        taken = needs.total(tiling.window, tiling.batch, widest, blended=mode == "smooth")
        taken += needs.own_rows(tiling.column) + needs.model(tiling.window, tiling.batch)
        assert taken <= memory * GB
        planned += 1
    assert planned >= 4


def test_a_narrow_raster_needs_no_more_than_its_own_grid(run: Any) -> None:
    request = MapRequest(Path("run"), Path("maps"), ("in",), mode="exact", memory=int(1.5 * GB))
    call = Call.of(request, run)
    narrow = job(Fraction(1, 64), width=60)
    assert tiling_for(call, [narrow]).halo == 94
    with pytest.raises(ConfigError, match=r"--memory: expected at least .*GB for windows of"):
        tiling_for(call, [job(Fraction(1, 64))])
