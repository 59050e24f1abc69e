"""Maps from file to file in megapixels a second, by one device and by all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import rasterio
from rasterio.windows import Window as GdalWindow

from segmenter.grid.geometry import Size
from segmenter.grid.windows import round_up
from segmenter.inference.predictor import MappedWindow, Tiling, classify_all
from segmenter.model.normalisation import Normalisation
from segmenter.raster import Raster, RasterSpec, RasterWriter, open_raster
from segmenter.training.timing import BANDS, CLASSES

from .bench import Bench
from .figures import Figure, spread

BLOCK = 512
SAME = 1e-4
"""Share of the pixels that rounding may give another class: cuDNN chooses its algorithms card by card."""
_BATCH = 4
"""Windows at once; on a processor one."""


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield the speed of one device and its share of the time, then of all, and whether maps are equal."""
    sizes, maps, speeds = bench.sizes, [], []
    path, out = make_raster(bench.folder / "scene.tif", sizes.raster, sizes.raster), bench.folder / "map.tif"
    for number in sorted({1, bench.cards if bench.place == "cards" else min(2, bench.cards)}):
        names = bench.devices(number).names
        predict, tiling = function(bench, names)
        rates = [
            sizes.raster**2 / 1e6 / predict_file(path, out, tiling, predict)
            for _ in range(min(sizes.rounds, 3) + 1)
        ][1:]  # the first compiles
        speeds.append(median(rates))
        name = f"map, {number} device{'s' * (number > 1)}"
        yield Figure(name, speeds[-1], "Mpx/s", note=spread(rates), told=True)
        if number == 1:
            alone = computed_rate(predict, tiling)
            share = 100 * min(speeds[0] / alone, 1.0)
            yield Figure("of the time, the device computes", share, "%", note=f"alone {alone:.3g} Mpx/s")
        with rasterio.open(out) as file:
            maps.append(file.read(1))
    if len(maps) > 1:
        other = float(np.mean(maps[0] != maps[-1]))
        yield Figure("pixels with another class on all devices", other, "", f"≤ {SAME}", other <= SAME)


def computed_rate(predict: Any, tiling: Tiling) -> float:
    """Return megapixels a second that arrive in a map, were there no file to read and write."""
    window = round_up(tiling.window.height, tiling.stride)
    batch = tiling.batch
    read = np.random.default_rng(1).integers(0, 255, (batch, window, window, BANDS), np.uint8)
    valid, calls = np.ones(read.shape[:3], bool), 3
    predict(read, valid)
    started = time.perf_counter()
    for _ in range(calls):
        predict(read, valid)
    kept = (window - 2 * round_up(tiling.halo, tiling.stride)) ** 2
    return calls * batch * kept / 1e6 / (time.perf_counter() - started)


def function(bench: Bench, names: Sequence[str]) -> tuple[Any, Tiling]:
    """Return the planned model, compiled on these devices, and its tiling."""
    from segmenter.inference.function import on_all_gpus, predict_function
    from segmenter.model.building import build_model
    from segmenter.model.receptive_field import network_geometry

    recipe = bench.settings()
    normalisation, built = Normalisation.of([60.0] * BANDS, [40.0] * BANDS), []

    def build() -> Any:
        import keras

        keras.utils.set_random_seed(0)
        built.append(build_model(recipe.model, BANDS, CLASSES, dtype=recipe.training.precision))
        return predict_function(built[-1], normalisation)

    predict = on_all_gpus(build, list(names))
    geometry = network_geometry(built[0])
    assert geometry.radius is not None, "what segmenter start plans has exact windows"
    side = max(bench.sizes.window, 3 * round_up(geometry.radius, geometry.stride))
    batch = 1 if bench.place == "logical" else _BATCH
    return predict, Tiling(Size(side, side), geometry.radius, geometry.stride, batch)


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
            if isinstance(event, MappedWindow):
                writer.write(event.window, event.ids)
    return time.perf_counter() - start
