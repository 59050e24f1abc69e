"""Prediction from file to file, in megapixels a second: one device and all of them, both precisions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure, middle, spread
from benchmarks.prediction import make_raster, predict_file
from benchmarks.scaling import BANDS, CLASSES
from segmenter.geometry import Size
from segmenter.inference.predictor import Tiling
from segmenter.model.normalisation import Normalisation

PRECISIONS = ("float32", "mixed_float16")
SAME = 1e-4
"""Share of the pixels that rounding may give another class: cuDNN chooses its algorithms card by card."""


def figures(bench: Bench) -> Iterator[Figure]:
    """For each precision, one device and all; whether the maps are the same, for the record."""
    import rasterio

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
                f"prediction, {number} device{'s' * (number > 1)}, {precision}", middle(rates), "MPx/s",
                expected_rate(bench, precision) if number == 1 else "", note=spread(rates),
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
    """TensorFlow's names of the first so many devices."""
    return list(first.names if number == 1 else bench.devices(number).names)


def function(bench: Bench, precision: str, names: list[str]) -> tuple[Any, Tiling]:
    """The compiled model on these devices, and the windows for it."""
    from segmenter.inference.function import on_all_gpus, predict_function
    from segmenter.model.building import build_model, network_geometry

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


def expected_rate(bench: Bench, precision: str) -> str:
    """Of one 2080 Ti that computes all the time, from slow to fast."""
    from benchmarks.four_gpus import predicted_megapixels

    low, high = predicted_megapixels(bench.sizes.model, precision, bench.sizes.window)
    return f"{low:.3g} … {high:.3g} MPx/s"


def reading_rate(path: Path) -> float:
    """Megapixels a second of reading a raster block by block with rasterio alone, in one thread."""
    import rasterio

    started = time.perf_counter()
    with rasterio.open(path) as file:
        for _, window in file.block_windows(1):
            file.read(window=window)
        pixels = file.width * file.height
    return float(pixels / 1e6 / (time.perf_counter() - started))
