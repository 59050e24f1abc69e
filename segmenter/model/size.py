"""Size of a model: shapes of weights and tensors, memory, arithmetic; does not import Keras.

The weights of a U-Net are known without building it: a misfit is refused before TensorFlow is imported and
memory allocated. The law: names and shapes equal those of `building.build_model`, without dropout's random
state. Everything else is counted on the graph of a built model.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError
from segmenter.config.models import UNetConfig
from segmenter.model.graph import Graph, LayerCall, graph_of
from segmenter.model.layer_reach import Extent, GlobalLayerError, reach

Shape = tuple[int, ...]
_LAYER = re.compile(r"(down|bottom|up|enlarge|logits)(\d*)")


def weight_shapes(config: UNetConfig, bands: int, classes: int) -> dict[str, Shape]:
    """Return path of each weight of a U-Net → its shape, in the order of the data's way through it.

    Its shapes follow from few settings; networks of the literature are described by building them
    (`building.shapes_of`).
    """
    return dict(_unet(config, bands, classes))


def stage_of(path: str, config: UNetConfig) -> str:
    """Return the stage of a U-Net's weight, with the names that users see.

    Encoder and decoder stages are counted from 1 in the direction of data flow.
    """
    match = _LAYER.match(path)
    if match is None:
        return path.split("/")[0]
    kind, level = match[1], int(match[2] or 0)
    return {
        "down": f"encoder stage {level + 1}",
        "bottom": "bottleneck",
        "logits": "head",
    }.get(kind, f"decoder stage {config.depth - level}")


def check_weights(arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, Shape], file: Path) -> None:
    """Refuse a checkpoint whose weights (under `model/`) are not those of a model of these shapes.

    Raises:
        CheckpointError: naming the first weight that is missing, of another shape, or not finite.
    """
    for name, shape in shapes.items():
        value = arrays.get(f"model/{name}")
        if value is None or value.shape != shape or value.dtype.kind != "f":
            got = "none" if value is None else f"{value.shape} of {value.dtype}"
            raise CheckpointError(
                file,
                expected=f"weight {name} of shape {shape} and floats, as recipe.yaml and run.json beside it "
                "say",
                got=got,
                remedy="are they of another run?",
            )
        if not np.isfinite(value).all():
            raise CheckpointError(
                file, expected=f"finite weights, {name} has others", remedy="use another checkpoint"
            )


def _unet(config: UNetConfig, bands: int, classes: int) -> Iterator[tuple[str, Shape]]:
    widths = [min(config.width * 2**level, config.max_width) for level in range(config.depth + 1)]
    channels = bands
    for level, width in enumerate(widths):
        name = f"down{level}" if level < config.depth else "bottom"
        yield from _block(config, name, channels, width)
        channels = width
    for level in reversed(range(config.depth)):
        width = widths[level]
        if config.upsampling == "transpose":
            yield f"enlarge{level}/kernel", (2, 2, width, channels)
            yield f"enlarge{level}/bias", (width,)
            channels = width
        yield from _block(config, f"up{level}", channels + width, width)
        channels = width
    yield "logits/kernel", (1, 1, channels, classes)
    yield "logits/bias", (classes,)


def _block(config: UNetConfig, name: str, channels: int, width: int) -> Iterator[tuple[str, Shape]]:
    """Yield the weights of two 3×3 convolutions, each with BatchNorm or a bias."""
    for i, before in enumerate((channels, width)):
        yield f"{name}_conv{i}/kernel", (3, 3, before, width)
        if config.normalisation == "batch":
            for part in ("gamma", "beta", "moving_mean", "moving_variance"):
                yield f"{name}_norm{i}/{part}", (width,)
        else:
            yield f"{name}_conv{i}/bias", (width,)


# ---------------------------------------------------------------------------------------------------- tensors

AXES = (0, 1)
"""Rows and columns."""


@dataclass(frozen=True)
class Plane:
    """A tensor of the model.

    Attributes:
        extents: extents of rows and columns; None: its size does not grow with the image, or is unknown.
        unlimited: reason why a pixel depends on more than a neighbourhood; empty: it does not.
    """

    extents: tuple[Extent, Extent] | None
    unlimited: str = ""


def planes_of(graph: Graph) -> list[Plane]:
    """Return the tensors of a graph as planes."""
    planes: list[Plane] = [Plane(None)] * len(graph.shapes)
    for tensor in graph.inputs:
        planes[tensor] = Plane((Extent(), Extent()))
    for call in graph.calls:
        result = _output_plane(call, [planes[tensor] for tensor in call.inputs])
        for tensor in call.outputs:
            planes[tensor] = result
    return planes


def _output_plane(call: LayerCall, inputs: Sequence[Plane]) -> Plane:
    unlimited = next((plane.unlimited for plane in inputs if plane.unlimited), "")
    if call.kind == "SpreadParts":  # as large as its second input
        return Plane(inputs[1].extents, unlimited)
    try:
        reaches = [reach(call, axis) for axis in AXES]
    except GlobalLayerError as error:
        return Plane(None, unlimited or str(error))
    extents = next((plane.extents for plane in inputs if plane.extents is not None), None)
    if extents is None:
        return Plane(None, unlimited)
    rows, cols = (of_axis.size(extents[axis]) for axis, of_axis in enumerate(reaches))
    return Plane((rows, cols), unlimited)


# ----------------------------------------------------------------------------------------------------- memory

_IN_PLACE = {
    "BatchNormalization",
    "GlobalDropout",
    "SyncBatchNorm",
    "ReLU",
    "Activation",
    "Dropout",
    "Softmax",
}
_NEITHER = {
    *("Add", "Subtract", "Concatenate", "UpSampling2D", "ZeroPadding2D", "Cropping2D"),
    *("AveragePooling2D", "GlobalAveragePooling2D", "Reshape", "SpreadParts"),
}
"""Layers whose gradient needs neither input nor output; bilinear enlargement's has its input for a shape."""
_OUTPUT_KEPT = {"ReLU", "relu", "relu6"}
"""Layers and activations whose gradient needs the output alone."""
_WITHIN = {"gelu": 3, "ChannelNorm": 2}
"""Layer or activation → tensors of its output's size that its gradient needs in place of its input: of
0.5 x (1 + erf(x / √2)) the two factors and erf's input; of a normalisation the centred and the scaled one."""
_WORKSPACE = 1.7
"""Factor of a process on a CPU over the tensors' sum: convolutions need room, freed memory is not at once
given back. Measured: 1.64 (depth 4, width 16)."""

ON_PROCESSOR = 1.17
"""Factor of a process on a CPU over the tensors of a training step, at the most: measured 0.94 to 1.17
(benchmarks.memory)."""
BYTES_PER_PARAMETER = 16
"""In training: weight, gradient and the optimiser's two moments, in float32."""


def parts_that_fit(tiles: int, fits: int) -> int:
    """Return the least number of equal parts of a step of which none has more than `fits` tiles."""
    return next((n for n in range(1, tiles + 1) if tiles % n == 0 and tiles // n <= fits), tiles)


def training_bytes_per_image(model: Any, height: int, width: int, *, mixed: bool = False) -> int:
    """Return the bytes of GPU memory that one image adds to a training step, by counting tensors.

    The forward pass keeps the tensors that gradients are computed from (`_kept_tensors`, `_WITHIN`); the
    backward pass adds the gradients of the largest layers: Σ over kept tensors of elements × bytes, plus
    twice the largest tensor. In float32 that is 2 % above a U-Net's peak on an H200; in float64 everything
    takes twice as much. Under XLA, which gives each tensor its place beforehand, it is an upper bound.

    In mixed float16 TensorFlow's allocator takes 1.5 to 1.8 times the living tensors: there every layer's
    output counts, with 2 bytes, and 4 in the float32 head and in normalisations, which compute in float32.
    That is right to 9 % on an H200 (studies/gpu_h200.md). `python -m benchmarks.memory` compares the formula
    with a real step.
    """
    graph = graph_of(model)
    planes = planes_of(graph)
    kept = range(len(graph.shapes)) if mixed else _kept_tensors(graph)
    image = [4 * _elements(graph, planes, tensor, height, width) for tensor in graph.inputs]
    sizes = image + [
        _elements(graph, planes, tensor, height, width) * _bytes_per_element(call, mixed)
        for call in graph.calls
        for tensor in call.outputs
        for _ in range((tensor in kept) + _WITHIN.get(_function(call), 0))
    ]
    twice = 2 if model.outputs[0].dtype == "float64" else 1
    return twice * (sum(sizes) + 2 * max(sizes))


def _kept_tensors(graph: Graph) -> set[int]:
    """Return the tensors of a graph that its backward pass is computed from, and its outputs.

    A convolution's, a BatchNorm's or a product's gradient needs the input; a ReLU's, the output; that of a
    sum, a concatenation, or of most resampling, neither. What a layer keeps of its own is not among them.
    """
    kept = set(graph.outputs)
    for call in graph.calls:
        function = _function(call)
        if function in _OUTPUT_KEPT:
            kept.update(call.outputs)
        elif function not in _NEITHER and function not in _WITHIN:
            kept.update(call.inputs)
        if call.kind in ("MaxPooling2D", "Softmax"):
            kept.update(call.outputs)
    return kept


def _function(call: LayerCall) -> str:
    """Return the kind of a call; of an activation, its function's name."""
    function = getattr(call.operation, "activation", None)
    return getattr(function, "__name__", "") if call.kind == "Activation" else call.kind


def inference_bytes_per_pixel(model: Any) -> float:
    """Return the bytes of memory for a pixel of a window during prediction, by counting tensors.

    Layers run in order; a tensor lives until its last user has run. The peak is the largest sum of living
    tensors while a layer runs, including its output, in float32, times `_WORKSPACE`. Normalisation and
    activation are fused into the convolution before them, or overwrite their input. `python -m
    benchmarks.prediction_memory` compares it with a process. Tensors that do not grow with the image (of
    global layers) are not counted.
    """
    graph = graph_of(model)
    planes = planes_of(graph)
    sizes = [_floats_per_pixel(shape, plane) for shape, plane in zip(graph.shapes, planes, strict=True)]
    left = Counter(tensor for call in graph.calls for tensor in call.inputs)
    left.update(graph.outputs)
    alive, peak = set(graph.inputs), 0.0
    for call in graph.calls:
        left.subtract(call.inputs)
        ended = {tensor for tensor in call.inputs if not left[tensor]}
        if call.kind in _IN_PLACE:
            alive -= ended
        alive.update(call.outputs)
        peak = max(peak, sum(sizes[tensor] for tensor in alive))
        alive -= ended
    return 4 * peak * _WORKSPACE


def _floats_per_pixel(shape: Sequence[int | None], plane: Plane) -> float:
    if plane.extents is not None:
        rows, cols = (extent.scale for extent in plane.extents)
        return _channels(shape) / float(rows * cols)
    # Of unknown size, though as large as something: the image's is the safe side.
    return float(_channels(shape)) if len(shape) == 4 and None in shape[1:3] else 0.0


def _elements(graph: Graph, planes: Sequence[Plane], tensor: int, height: int, width: int) -> int:
    shape, extents = graph.shapes[tensor], planes[tensor].extents
    if extents is not None:
        return _pixels(extents, height, width) * _channels(shape)
    missing = [height, width] if len(shape) == 4 else [1] * len(shape)
    sizes = [n if n is not None else missing.pop() if missing else 1 for n in shape[1:]]
    return math.prod(sizes)


def _pixels(extents: tuple[Extent, Extent], height: int, width: int) -> int:
    sides = zip((height, width), extents, strict=True)
    return math.prod(math.ceil(side / extent.scale) + extent.offset for side, extent in sides)


def _channels(shape: Sequence[int | None]) -> int:
    return shape[-1] or 1


def _bytes_per_element(call: LayerCall, mixed: bool) -> int:
    if not mixed or getattr(call.operation, "compute_dtype", "float16") == "float32":
        return 4
    return 4 if call.kind in ("SyncBatchNorm", "ChannelNorm") else 2


# ------------------------------------------------------------------------------------------------- arithmetic

_KERNELS = ("kernel", "depthwise_kernel", "pointwise_kernel")


def convolution_flops(model: Any, height: int, width: int) -> int:
    """Count multiplications and additions of all convolutions in the forward pass of one image.

    2 · pixels · kernel rows · kernel columns · channels in · channels out; pixels are those of the output, or
    of the input for a transposed convolution. Training takes three times as many: the gradients of weights
    and inputs each cost as much as the forward pass.
    """
    graph = graph_of(model)
    planes, flops = planes_of(graph), 0
    for call in graph.calls:
        if "Conv2D" not in call.kind:
            continue
        tensor = call.inputs[0] if "Transpose" in call.kind else call.outputs[0]
        extents = planes[tensor].extents
        if extents is None:
            continue
        pixels = _pixels(extents, height, width)
        kernels = (getattr(call.operation, name, None) for name in _KERNELS)
        flops += sum(2 * pixels * math.prod(kernel.shape) for kernel in kernels if kernel is not None)
    return flops
