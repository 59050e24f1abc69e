"""Cost of tiled prediction beside the model, and beside reading and writing the raster.

Two ratios, each to a baseline of the same run. With a U-Net of 1.9 M parameters: the whole prediction, from
file to file, over the compiled model on the same batches held in memory. With a model that costs nothing
(one 1×1 convolution): the whole prediction over reading the raster and writing the same class map with
rasterio alone, block by block: with the compression level that our maps have, 1, and with GDAL's own, 6. The
baseline is timed before and after, and the faster counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from datasets.commands.gpu.prediction import BLOCK, FileJob, make_raster, predict_file
from segmenter.devices.setup import load_tensorflow
from segmenter.grid.geometry import Size
from segmenter.inference.predictor import Tiling
from segmenter.inference.reading import read_batches
from segmenter.model.normalisation import Normalisation

CLASSES = 8


def main() -> None:
    """Make a raster, predict it, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--side", type=int, default=8192, help="of the raster for the model that costs nothing"
    )
    parser.add_argument("--unet-side", type=int, default=3000, help="of the raster for the U-Net")
    parser.add_argument("--repeat", type=int, default=3, help="times; the median ratio counts")
    arguments = parser.parse_args()
    load_tensorflow()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        free = _against_rasterio(folder, arguments.side, arguments.repeat)
        unet = _against_the_model(folder, arguments.unet_side, arguments.repeat)
    print(json.dumps({"benchmark": "prediction", **free, **unet}))


def pixelwise(classes: int) -> Any:
    """A 1×1 convolution, as what predictor takes."""
    from segmenter.inference.function import predict_function

    return predict_function(pixelwise_model(classes), Normalisation.of([60] * 3, [40] * 3))


def pixelwise_model(classes: int) -> Any:
    """A 1×1 convolution, the same in every process."""
    import keras

    keras.utils.set_random_seed(0)
    image = keras.Input((None, None, 3))
    return keras.Model(image, keras.layers.Conv2D(classes, 1)(image))


def unet() -> tuple[Any, int, int]:
    """The U-Net of 1.9 M parameters, its stride and its radius."""
    from segmenter.inference.function import predict_function
    from segmenter.model.receptive_field import network_geometry

    model = unet_model()
    geometry = network_geometry(model)
    assert geometry.radius is not None
    return predict_function(model, Normalisation.of([60] * 3, [40] * 3)), geometry.stride, geometry.radius


def unet_model() -> Any:
    """The U-Net of 1.9 M parameters, with the same weights in every process."""
    import keras

    from segmenter.config.recipe import UNetConfig
    from segmenter.model.building import build_model

    keras.utils.set_random_seed(0)
    return build_model(UNetConfig(depth=4, width=16), 3, CLASSES)


def _against_rasterio(folder: Path, side: int, repeat: int) -> dict[str, Any]:
    path, out = make_raster(folder / "free.tif", side, side), folder / "map.tif"
    predict, tiling = pixelwise(CLASSES), Tiling(Size(256, 256), 32, 1, 16)
    predict_file(path, out, tiling, predict)  # compiles, and warms the page cache
    with rasterio.open(out) as file:
        ids = file.read(1)
    found: dict[str, Any] = {}
    for name, options in (("rasterio", {"zlevel": 1}), ("rasterio_by_default", {})):
        plain = partial(_plain, path, folder / "plain.tif", ids, options)
        ratios, seconds = _ratios(plain, lambda: predict_file(path, out, tiling, predict), repeat)
        found[f"free_model_over_{name}"] = round(float(np.median(ratios)), 2)
    return {**found, "free_model_Mpixel_s": round(side * side / 1e6 / seconds, 1)}


def _plain(path: Path, out: Path, ids: NDArray[np.uint8], options: dict[str, Any]) -> None:
    """Read every block and write the map's, with rasterio alone."""
    profile = {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK, "compress": "deflate"} | options
    with (
        rasterio.open(path) as source,
        rasterio.open(
            out,
            "w",
            driver="GTiff",
            count=1,
            dtype="uint8",
            height=source.height,
            width=source.width,
            **profile,
        ) as target,
    ):
        for _, window in source.block_windows(1):
            source.read(window=window)
            rows, cols = window.toslices()
            target.write(ids[rows, cols], 1, window=window)


def _against_the_model(folder: Path, side: int, repeat: int) -> dict[str, Any]:
    path = make_raster(folder / "unet.tif", side, side)
    predict, stride, radius = unet()
    tiling = Tiling(Size(1024, 1024), radius, stride, 1)
    batches = [batch for batch in read_batches([FileJob(path)], tiling) if batch.image is not None]
    predict(batches[0].image, batches[0].valid)
    ratios, seconds = _ratios(
        lambda: [predict(batch.image, batch.valid) for batch in batches],
        lambda: predict_file(path, folder / "map.tif", tiling, predict),
        repeat,
    )
    kept = sum(batch.valid.size for batch in batches)
    return {
        "unet_over_compiled_model": round(float(np.median(ratios)), 3),
        "unet_Mpixel_s": round(side * side / 1e6 / seconds, 2),
        "unet_useful_share": round(side * side / kept, 2),
    }


def _ratios(
    baseline: Callable[[], Any], measured: Callable[[], Any], repeat: int
) -> tuple[list[float], float]:
    """The ratio of each repetition to the faster baseline beside it, and the fastest time in seconds."""
    ratios, fastest = [], float("inf")
    before = _seconds(baseline)
    for _ in range(repeat):
        taken = _seconds(measured)
        after = _seconds(baseline)
        ratios.append(taken / min(before, after))
        fastest, before = min(fastest, taken), after
    return ratios, fastest


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
