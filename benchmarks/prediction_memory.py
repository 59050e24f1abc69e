"""Memory of prediction against the raster's size, and the formula for the model's part.

Peak memory of whole processes, each predicting one file to another: a raster, one of five times its height
and one of as many pixels and eight times its width, with the model that costs nothing, in exact and in smooth
mode. Then what a pixel of a U-Net's window takes, as the growth of a process that computes a large window
after a small one, against `receptive_field.inference_bytes_per_pixel`; with `--model`, that of another model
alone. Baseline of the maps: the process after one window.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.prediction import pixelwise, unet
from datasets.commands.gpu.prediction import make_raster, predict_file
from segmenter.devices.setup import load_tensorflow
from segmenter.grid.geometry import Size
from segmenter.inference.blending import Blend
from segmenter.inference.predictor import Tiling
from segmenter.model.normalisation import Normalisation

if TYPE_CHECKING:
    from segmenter.inference.function import PredictFunction

CLASSES, MIB = 8, 2**20
COLUMN = 1 << 12
EXACT = Tiling(Size(256, 256), 32, 1, 16, column=COLUMN)
SMOOTH = Tiling(Size(256, 256), 0, 1, 16, Blend(50), column=COLUMN)


def main() -> None:
    """Without `--child`: make the rasters, measure each in a process of its own, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=20_000)
    parser.add_argument("--heights", type=int, nargs=2, default=(20_000, 100_000))
    parser.add_argument("--window", type=int, default=1024, help="of the model, for its formula")
    parser.add_argument("--model", metavar="ENCODER+DECODER", help="its formula alone")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_child(*arguments.child)))
        return
    if arguments.model:
        found = {"model": arguments.model, **_formula(arguments.model, arguments.window)}
    else:
        found = {**_maps(arguments.width, arguments.heights), **_formula("unet", arguments.window)}
    print(json.dumps({"benchmark": "prediction_memory", **found}))


def _maps(width: int, heights: Sequence[int]) -> dict[str, Any]:
    """Peaks of mapping rasters of these heights, and one of as many pixels and eight times the width."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        low, high = heights
        sizes = ((low, width), (high, width), (low // 8, 8 * width))
        paths = [make_raster(Path(folder) / f"{h}_{w}.tif", h, w) for h, w in sizes]
        for mode in ("exact", "smooth"):
            found = [_in_a_process("map", mode, str(path), f"{path}.map.tif") for path in paths]
            peaks = [f["peak"] for f in found]
            figures[f"{mode}_MiB"] = [round(peak / MIB) for peak in peaks]
            figures[f"{mode}_ratios"] = [round(peak / peaks[0], 3) for peak in peaks[1:]]
            figures[f"{mode}_over_one_window_MiB"] = [round((f["peak"] - f["base"]) / MIB) for f in found]
    return figures


def _formula(model: str, side: int) -> dict[str, Any]:
    """Bytes that a pixel of a window takes, and by how much the formula has more."""
    found = _in_a_process("model", model, str(side))
    return {
        "bytes_per_pixel": round(found["measured"]),
        "formula_over_measured": round(found["formula"] / found["measured"], 2),
    }


def _in_a_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.prediction_memory", "--child", *arguments]
    result: dict[str, float] = json.loads(subprocess.check_output(command).splitlines()[-1])
    return result


def _child(what: str, *arguments: str) -> dict[str, float]:
    load_tensorflow()
    return _model(arguments[0], int(arguments[1])) if what == "model" else _map(*arguments)


def _map(mode: str, source: str, target: str) -> dict[str, float]:
    predict, tiling = pixelwise(CLASSES), EXACT if mode == "exact" else SMOOTH
    image, valid = np.zeros((16, 256, 256, 3), np.uint8), np.ones((16, 256, 256), np.bool_)
    predict(image, valid)
    predict.weighted(image, valid, *[np.ones((16, 256), np.float32)] * 2)
    base = _peak()
    predict_file(Path(source), Path(target), tiling, predict)
    return {"base": base, "peak": _peak()}


def _model(name: str, side: int) -> dict[str, float]:
    predict = unet()[0] if name == "unet" else _encoder_decoder(name)
    predict(np.zeros((1, 64, 64, 3), np.uint8), np.ones((1, 64, 64), np.bool_))
    base = _peak()
    predict(np.zeros((1, side, side, 3), np.uint8), np.ones((1, side, side), np.bool_))
    return {"measured": (_peak() - base) / side**2, "formula": predict.bytes_per_pixel}


def _encoder_decoder(name: str) -> PredictFunction:
    from segmenter.config.models import EncoderDecoderConfig
    from segmenter.inference.function import predict_function
    from segmenter.model.building import build_model

    encoder, _, decoder = name.partition("+")
    described = {"kind": "encoder_decoder", "encoder": encoder, "decoder": decoder}
    model = build_model(EncoderDecoderConfig.model_validate(described), 3, CLASSES)
    return predict_function(model, Normalisation.of([60] * 3, [40] * 3))


def _peak() -> int:
    """Bytes; there are no child processes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
