"""Prediction from file to file in megapixels a second: one device and all, in both precisions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window as GdalWindow

from segmenter.grid.geometry import Size
from segmenter.inference.predictor import Mapped, Tiling, classify_all
from segmenter.model.normalisation import Normalisation
from segmenter.raster import Raster, RasterSpec, RasterWriter, open_raster

from .bench import Bench
from .figures import Figure, spread
from .step import BANDS, CLASSES

PRECISIONS = ("float32", "mixed_float16")
BLOCK = 512
SAME = 1e-4
"""Share of the pixels that rounding may give another class: cuDNN chooses its algorithms card by card."""


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield for each precision the speed of one device and of all, and whether the maps are equal."""
    devices, sizes = bench.devices(1), bench.sizes
    path = make_raster(bench.folder / "scene.tif", sizes.raster, sizes.raster)
    for precision in PRECISIONS[1:] if sizes.tiny else PRECISIONS:
        maps: list[NDArray[Any]] = []
        numbers = sorted({1, bench.most} if bench.place == "cards" else {1, min(2, bench.most)})
        for number in numbers:
            predict, tiling = function(bench, precision, bench_names(bench, number, devices))
            out = bench.folder / "map.tif"
            rates = [
                sizes.raster**2 / 1e6 / predict_file(path, out, tiling, predict)
                for _ in range(min(sizes.rounds, 3) + 1)
            ][1:]  # the first compiles
            yield Figure(
                f"prediction, {number} device{'s' * (number > 1)}, {precision}", median(rates), "MPx/s",
                note=spread(rates),
            )  # fmt: skip
            with rasterio.open(out) as file:
                maps.append(file.read(1))
        if len(maps) > 1:
            share = float(np.mean(maps[0] != maps[-1]))
            yield Figure(
                f"pixels with another class on all devices, {precision}",
                share,
                "",
                f"≤ {SAME}",
                share <= SAME,
            )


def bench_names(bench: Bench, number: int, first: Any) -> list[str]:
    """Return TensorFlow's names of the first `number` devices."""
    return list(first.names if number == 1 else bench.devices(number).names)


def function(bench: Bench, precision: str, names: list[str]) -> tuple[Any, Tiling]:
    """Return the compiled model on these devices, and its tiling."""
    from segmenter.inference.function import on_all_gpus, predict_function
    from segmenter.model.building import build_model
    from segmenter.model.receptive_field import network_geometry

    normalisation, built = Normalisation.of([60.0] * BANDS, [40.0] * BANDS), []

    def build() -> Any:
        import keras

        keras.utils.set_random_seed(0)
        built.append(build_model(bench.sizes.model, BANDS, CLASSES, dtype=precision))
        return predict_function(built[-1], normalisation)

    predict = on_all_gpus(build, names)
    geometry = network_geometry(built[0])
    assert geometry.radius is not None
    window = Size(bench.sizes.window, bench.sizes.window)
    return predict, Tiling(window, geometry.radius, geometry.stride, 4)


class FileJob:
    """Job that maps a whole file."""

    part, columns, done_rows, abandoned = None, None, 0, False

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> Raster:
        """Open the file."""
        return open_raster(self._path)


def make_raster(path: Path, height: int, width: int) -> Path:
    """Write a tiled, compressed RGB raster with some texture, in rows of blocks; return its path."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (3, BLOCK, width + BLOCK), np.uint8) // 8
    profile = {
        "driver": "GTiff",
        "tiled": True,
        "blockxsize": BLOCK,
        "blockysize": BLOCK,
        "bigtiff": "IF_SAFER",
    }
    profile |= {"compress": "deflate", "zlevel": 1, "interleave": "pixel"}
    with rasterio.open(path, "w", height=height, width=width, count=3, dtype="uint8", **profile) as file:
        for row in range(0, height, BLOCK):
            rows = min(BLOCK, height - row)
            shift = int(rng.integers(BLOCK))
            ramp = ((np.arange(width) // 64 + row // 64) % 200).astype(np.uint8)
            file.write(noise[:, :rows, shift : shift + width] + ramp, window=GdalWindow(0, row, width, rows))
    return path


def predict_file(path: Path, out: Path, tiling: Tiling, predict: Any) -> float:
    """Map a file to a file and return the time in seconds."""
    start = time.perf_counter()
    with open_raster(path) as raster:
        size = raster.info.size
    with RasterWriter(out, size, RasterSpec(nodata=255), column=tiling.column) as writer:
        for event in classify_all([FileJob(path)], tiling, predict):
            if isinstance(event, Mapped):
                writer.write(event.window, event.ids)
    return time.perf_counter() - start
