"""Table of models: parameters, arithmetic, stride, radius, memory, and time beside the U-Net of potsdam.yaml.

Baseline of the times, in the same run: that U-Net. Measured is processor time, of a step (loss and gradients)
and of a prediction, on tiles of 256 × 256; the median of some rounds. `--page` writes each row into the
page's table as it is found, beside those that it has. Another model is one more entry of `models`.

The page has tiles a second of one core, and beside them the ratio to the baseline of the same run, which says
more: what else the machine does changes it less. Each row says on which processor and day it was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, get_args

from benchmarks.page import renew, rows_of, table
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import EncoderDecoderConfig, ModelConfig
from segmenter.devices.setup import processor_model
from segmenter.devices.strategy import load_tensorflow
from segmenter.model.graph import LayerCall, graph_of
from segmenter.model.receptive_field import network_geometry
from segmenter.model.size import planes_of, training_bytes_per_image

SIDE, BANDS, CLASSES, MIB = 256, 3, 6, 2**20
BASELINE = "potsdam"
_CONFIGS = Path(__file__).parents[1] / "configs"
_MARK = "<!-- table: python -m benchmarks.model_table --page -->"
_HEAD = (
    *("model", "parameters", "FLOPs a tile", "stride", "radius", "MiB a tile, training"),
    *("MiB a tile, prediction", "training, tiles/s", "ratio", "prediction, tiles/s", "ratio", "measured"),
)


@dataclass(frozen=True)
class Row:
    """Attributes:
    flops: multiplications and additions of a tile, both counted.
    training, mixed, prediction: MiB a tile, by the formulas.
    step, predicting: processor seconds a tile.
    """

    name: str
    parameters: int
    flops: int
    stride: int
    radius: int | None
    training: float
    mixed: float
    prediction: float
    step: float
    predicting: float

    def cells(self, baseline: Row, measured: str) -> list[str]:
        """Return a row of studies/models.md; ratios are tiles a second over the baseline's."""
        return [
            *(self.name, f"{self.parameters / 1e6:.1f} M", f"{self.flops / 1e9:.1f} G", str(self.stride)),
            "none: smooth" if self.radius is None else str(self.radius),
            *(f"{self.training:.0f} / {self.mixed:.0f}", f"{self.prediction:.0f}"),
            *(f"{1 / self.step:.2f}", f"{baseline.step / self.step:.2f}"),
            *(f"{1 / self.predicting:.2f}", f"{baseline.predicting / self.predicting:.2f}"),
            measured,
        ]


_ATROUS = (16, 8)
"""Output strides, beside 32, that are measured for one encoder of a family."""
_MEASURED_ATROUS = ("resnet18", "resnet50", "efficientnet_lite0", "efficientnet_v2_b0", "mobilenet_v2")


def main() -> None:
    """Measure each model, print JSON, renew the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", help="of the names in the table; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the rows of this page's table")
    options = parser.parse_args()
    found = models()
    if unknown := [name for name in options.models or () if name not in found]:
        parser.error(f"--models: expected names of recipes or '<encoder> <decoder>', got {unknown}")
    load_tensorflow()
    names = [BASELINE, *(name for name in options.models or found if name != BASELINE)]
    rows: list[Row] = []
    here = f"{processor_model()}, {time.strftime('%Y-%m-%d')}"
    for name in names:
        rows.append(measured(name, found[name], options.rounds, options.batch))
        if options.page:
            _write(options.page, rows[-1].cells(rows[0], here), list(found))
    figures = [{**vars(row), "step_ratio": round(rows[0].step / row.step, 2)} for row in rows]
    print(json.dumps({"benchmark": "model_table", "models": figures}))


def _write(page: Path, cells: list[str], order: list[str]) -> None:
    """The table with this model's row, new or in place of an older one."""
    known = {row[0]: row for row in [*_cells_of(page), cells]}
    renew(page, _MARK, table(_HEAD, [known[name] for name in order if name in known]))


def _cells_of(page: Path) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows_of(page, _MARK)[2:]]


def models() -> dict[str, ModelConfig]:
    """Name → model section: of every recipe in configs/, of every encoder with every decoder, atrous ones."""
    fields = EncoderDecoderConfig.model_fields
    found: dict[str, ModelConfig] = {p.stem: load_recipe(p).model for p in sorted(_CONFIGS.glob("*.yaml"))}
    for encoder, decoder in product(
        get_args(fields["encoder"].annotation), get_args(fields["decoder"].annotation)
    ):
        pair = {"kind": "encoder_decoder", "encoder": encoder, "decoder": decoder}
        found[f"{encoder} {decoder}"] = EncoderDecoderConfig.model_validate(pair)
        for stride in _ATROUS if decoder == "deeplabv3plus" and encoder in _MEASURED_ATROUS else ():
            name = f"{encoder} {decoder} {stride}"
            found[name] = EncoderDecoderConfig.model_validate(pair | {"output_stride": stride})
    return found


def measured(name: str, config: ModelConfig, rounds: int, batch: int) -> Row:
    """One model's row."""
    import keras
    import tensorflow as tf

    from segmenter.model.building import build_model

    keras.backend.clear_session()  # of the model before
    model = build_model(config, BANDS, CLASSES, synchronised=True)
    half = build_model(config, BANDS, CLASSES, dtype="mixed_float16", synchronised=True)
    geometry = network_geometry(model)
    images = tf.random.stateless_normal((batch, SIDE, SIDE, BANDS), (0, 1))
    labels = tf.zeros((batch, SIDE, SIDE), tf.int32)
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        return [tf.reduce_sum(gradient) for gradient in tape.gradient(loss, weights)]

    predict = tf.function(lambda: tf.argmax(model(images, training=False), axis=-1))
    return Row(
        name,
        model.count_params(),
        flops(model, SIDE),
        geometry.stride,
        geometry.radius,
        training_bytes_per_image(model, SIDE, SIDE) / MIB,
        training_bytes_per_image(half, SIDE, SIDE, mixed=True) / MIB,
        geometry.bytes_per_pixel * SIDE**2 / MIB,
        _processor_seconds(step, rounds) / batch,
        _processor_seconds(predict, rounds) / batch,
    )


def flops(model: Any, side: int) -> int:
    """Multiplications and additions of convolutions and dense layers for one image of side × side pixels.

    2 · output pixels · kernel pixels · channels in · channels out / groups, as TensorFlow counts them for its
    own operations (`tensorflow/python/framework/graph_util` statistics "flops"); a transposed convolution
    has its input's pixels instead. Normalisation, activation and sums are left out: some percent.
    """
    graph = graph_of(model)
    planes, total = planes_of(graph), 0
    for call in graph.calls:
        transposed = call.kind == "Conv2DTranspose"
        plane = planes[call.inputs[0] if transposed else call.outputs[0]]
        pixels = 1
        if plane.extents is not None:
            pixels = math.prod(math.ceil(side / extent.scale) + extent.offset for extent in plane.extents)
        total += 2 * pixels * _multiplications(call)
    return total


def _multiplications(call: LayerCall) -> int:
    """Of one output pixel: the elements of a kernel, each used once; 0 for layers without one."""
    layer = call.operation
    if call.kind == "DepthwiseConv2D":
        return math.prod(layer.kernel.shape)
    if call.kind in ("Conv2D", "Conv2DTranspose", "Dense"):
        return math.prod(layer.kernel.shape)
    return 0


def _processor_seconds(call: Callable[[], Any], rounds: int) -> float:
    """Median over the rounds; the first call compiles and does not count."""
    call()
    times = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return median(times)


if __name__ == "__main__":
    main()
