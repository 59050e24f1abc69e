"""Which windows are read, and what of them waits for the model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.inference.predictor import Failed, Tiling, classify_all
from segmenter.inference.reading import read_batches
from tests.helpers.array_raster import ArrayJob, ArrayRaster, scene
from tests.helpers.exact_network import exact_network


def test_a_damaged_window_is_named_though_several_are_read_at_once(rng: np.random.Generator) -> None:
    class Damaged(ArrayRaster):
        def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            if window.intersection(Window(40, 70, 1, 1)).size.pixels:
                raise RasterError(str(window))
            return super().read(window)

    events = classify_all(
        [ArrayJob(Damaged(scene(rng, 64, 128).image))], Tiling(Size(32, 32), 0, 8, 4), exact_network(0, 8)
    )
    *mapped, failed = list(events)
    assert isinstance(failed, Failed)
    assert str(failed.error) == "rows 32–63, columns 64–95"
    assert len(mapped) == 4 + 2


def test_windows_that_wait_hold_no_others(rng: np.random.Generator) -> None:
    """Of a run of windows, read at once, one is computed: it must not keep the pixels of all of them."""
    raster = scene(rng, 32, 32 * 16)
    raster.valid[:, 32:] = False
    (batch, *_) = read_batches([ArrayJob(raster)], Tiling(Size(32, 32), 0, 8, 16))
    alone = batch.image.base
    assert batch.image.shape == (1, 32, 32, 2)
    assert alone is None or alone.nbytes == batch.image.nbytes


def test_few_windows_without_data_wait_for_one_that_is_computed(rng: np.random.Generator) -> None:
    """Memory: a batch is given out, full or not, while others of its size are read."""
    raster, batch = scene(rng, 32, 32 * 400), 4
    raster.valid[:, 32:] = False
    read: list[Window] = []

    class Counted(ArrayRaster):
        def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            read.append(window)
            return super().read(window)

    batches = read_batches([ArrayJob(Counted(raster.image, raster.valid))], Tiling(Size(32, 32), 0, 8, batch))
    assert next(iter(batches)).image.shape[0] == 1
    assert sum(window.width for window in read) <= 32 * (4 * batch + 64 + batch)
