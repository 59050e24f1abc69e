"""Geometry and memory of a model, read off its layers: total stride, receptive-field radius, bytes a step.

No Keras is imported: layers are told apart by the names of their classes, so that prediction can use the
values without it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

_IN_PLACE = {
    "BatchNormalization",
    "DropPath",
    "GlobalDropout",
    "SyncBatchNorm",
    "ReLU",
    "Activation",
    "Dropout",
    "Rescaling",
    "Softmax",
}
_WORKSPACE = 1.7
"""What a process on a CPU takes over the tensors' sum: convolutions need room, freed memory is not at once
given back. Measured: 1.64 (depth 4, width 16)."""
Interval = tuple[int, int]
_ENLARGING = ("UpSampling2D", "BilinearUpSampling")
_POINTWISE = {
    "InputLayer",
    "BatchNormalization",
    "SyncBatchNorm",
    "ReLU",
    "Activation",
    "Dropout",
    "DropPath",
    "GlobalDropout",
    "ChannelNorm",
    "LayerScale",
    "Share",
    "Concatenate",
    "Add",
    "Multiply",
    "Softmax",
    "Rescaling",
}


@dataclass(frozen=True)
class NetworkGeometry:
    """Attributes:
    stride: the model's total stride in pixels; windows of exact prediction lie on its grid.
    radius: the farthest input pixel, along a row or column, that an output pixel depends on; None where
        it depends on all of them.
    bytes_per_pixel: memory that a pixel of a window takes while it is predicted; 0: not known.
    unlimited: why there is no radius.
    """

    stride: int
    radius: int | None
    bytes_per_pixel: float = 0.0
    unlimited: str = ""

    def suits(self, model: NetworkGeometry) -> bool:
        """Whether windows that are cut by this geometry give a model all that its pixels depend on."""
        if self.stride % model.stride:
            return False
        return self.radius is None or (model.radius is not None and self.radius >= model.radius)


class GlobalLayerError(ValueError):
    """The model has a layer that looks at the whole image, or one whose reach is not known."""


def describe(model: Any) -> NetworkGeometry:
    """Geometry for prediction, of a functional Keras model with one input and one output."""
    memory = inference_bytes_per_pixel(model)
    try:
        known = geometry_of(model)
    except GlobalLayerError as error:
        layers = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
        return NetworkGeometry(_total_stride(model, layers, strict=False), None, memory, str(error))
    return replace(known, bytes_per_pixel=memory)


def geometry_of(model: Any) -> NetworkGeometry:
    """Stride and receptive-field radius of a functional Keras model with one input and one output.

    For each position of an output pixel on the stride's grid, the interval of input pixels that it depends
    on is followed back through every layer (both axes alike); the radius is the largest reach found.

    Raises:
        GlobalLayerError: where a layer's reach is unlimited or unknown.
    """
    layers = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
    stride = _total_stride(model, layers)
    radius = 0
    for pixel in range(stride):
        reach: dict[int, Interval] = {id(model.outputs[0]): (pixel, pixel)}
        for layer in reversed(layers):
            if id(layer.output) not in reach:
                continue
            needed = _needed_input(layer, reach[id(layer.output)])
            for tensor in _inputs(layer):
                low, high = reach.get(id(tensor), needed)
                reach[id(tensor)] = min(low, needed[0]), max(high, needed[1])
        low, high = reach[id(model.inputs[0])]
        radius = max(radius, pixel - low, high - pixel)
    return NetworkGeometry(stride, radius)


def training_bytes_per_image(model: Any, height: int, width: int, *, mixed: bool = False) -> int:
    """Bytes of GPU memory that one image adds to a training step, by counting tensors.

    Forward, each layer's output is kept for the backward pass; backward, the gradients of the largest
    layers live beside them: Σ over layers of output elements × bytes, plus twice the largest layer. In
    mixed float16, outputs take 2 bytes, except in the float32 head and in BatchNorm, which computes in
    float32: Keras keeps its input and its output so (4 + 4); `SyncBatchNorm` keeps neither, and gets 4 for
    what it computes with on the way back. `python -m benchmarks.memory` holds the formula against what a
    step takes.
    """
    scales, sizes = _scales(model), []
    for layer in model.layers:
        scale = scales[id(layer.output)] or Fraction(1)
        elements = math.ceil(height / scale) * math.ceil(width / scale) * layer.output.shape[-1]
        sizes.append(elements * _bytes_per_element(layer, mixed))
    return sum(sizes) + 2 * max(sizes)


def inference_bytes_per_pixel(model: Any) -> float:
    """Bytes of memory that a pixel of a window takes while it is predicted, by counting tensors.

    Layers run in order; a tensor lives until the last layer that takes it has run. The peak is the largest
    sum over the tensors that live while a layer runs, its output among them, in float32, times
    `_WORKSPACE`. Normalisation and activation are fused into the convolution before them, or overwrite
    their input. `python -m benchmarks.prediction_memory` holds it against a process. Layers whose output
    has another shape than an image's (the global ones) count nothing.
    """
    scales, layers = (
        _scales(model, strict=False),
        [x for x in model.layers if type(x).__name__ != "InputLayer"],
    )
    left: dict[int, int] = Counter(id(tensor) for layer in layers for tensor in _inputs(layer))
    left[id(model.outputs[0])] += 1
    sizes = {
        id(layer.output): 4 * layer.output.shape[-1] / float(scale) ** 2 if scale else 0.0
        for layer in model.layers
        for scale in [scales[id(layer.output)]]
    }
    alive = {id(model.inputs[0])}
    peak = 0.0
    for layer in layers:
        inputs = {id(tensor) for tensor in _inputs(layer)}
        for tensor in inputs:
            left[tensor] -= sum(id(t) == tensor for t in _inputs(layer))
        ended = {tensor for tensor in inputs if not left[tensor]}
        if type(layer).__name__ in _IN_PLACE:
            alive -= ended
        alive.add(id(layer.output))
        peak = max(peak, sum(sizes[tensor] for tensor in alive))
        alive -= ended
    return peak * _WORKSPACE


def _bytes_per_element(layer: Any, mixed: bool) -> int:
    kind = type(layer).__name__
    if not mixed or kind == "InputLayer" or layer.compute_dtype == "float32":
        return 4
    return {"BatchNormalization": 8, "SyncBatchNorm": 4}.get(kind, 2)


def _inputs(layer: Any) -> list[Any]:
    return list(layer.input) if isinstance(layer.input, list | tuple) else [layer.input]


def _down_and_up(layer: Any) -> tuple[int, int]:
    """(factor by which a layer shrinks, factor by which it enlarges)."""
    kind = type(layer).__name__
    if kind in ("Conv2D", "MaxPooling2D", "AveragePooling2D", "SeparableConv2D", "DepthwiseConv2D"):
        return _same(layer.strides, layer), 1
    if kind == "Conv2DTranspose":
        return 1, _same(layer.strides, layer)
    if kind in _ENLARGING:
        return 1, _same(layer.size, layer)
    if kind in _POINTWISE or kind == "ZeroPadding2D":
        return 1, 1
    raise GlobalLayerError(f"layer {layer.name} ({kind}) looks at the whole image, or its reach is not known")


def _same(pair: Any, layer: Any) -> int:
    if isinstance(pair, int):
        return pair
    if pair[0] != pair[1]:
        raise GlobalLayerError(f"layer {layer.name} treats rows and columns differently: {pair}")
    return int(pair[0])


def _scales(model: Any, *, strict: bool = True) -> dict[int, Fraction | None]:
    """Number of input pixels that one pixel of each tensor covers, along an axis.

    Without `strict`, None for what global and unknown layers give.
    """
    scales: dict[int, Fraction | None] = {id(model.inputs[0]): Fraction(1)}
    for layer in model.layers:
        if type(layer).__name__ == "InputLayer":
            continue
        known = [scale for tensor in _inputs(layer) if (scale := scales[id(tensor)]) is not None]
        try:
            down, up = _down_and_up(layer)
            scales[id(layer.output)] = max(known) * Fraction(down, up) if known else None
        except GlobalLayerError:
            if strict:
                raise
            scales[id(layer.output)] = None
    return scales


def _total_stride(model: Any, layers: list[Any], *, strict: bool = True) -> int:
    scales = _scales(model, strict=strict)
    return math.lcm(*(scale.numerator for layer in layers if (scale := scales[id(layer.output)])))


def _needed_input(layer: Any, output: Interval) -> Interval:
    """The input pixels that a layer's output pixels low … high depend on; `same` padding is TensorFlow's."""
    low, high = output
    kind = type(layer).__name__
    down, up = _down_and_up(layer)
    if kind in _POINTWISE:
        return output
    if kind == "ZeroPadding2D":
        before = max(layer.padding[0][0], layer.padding[1][0])
        return low - before, high - min(layer.padding[0][0], layer.padding[1][0])
    if kind in _ENLARGING:
        if layer.interpolation == "nearest":
            return low // up, high // up
        # Bilinear with half-pixel centres: source position (i + ½)/up − ½, its floor and the next.
        return (2 * low + 1 - up) // (2 * up), (2 * high + 1 - up) // (2 * up) + 1
    kernel = _same(layer.pool_size if "Pooling" in kind else layer.kernel_size, layer)
    if kind == "Conv2DTranspose":
        before = max(kernel - up, 0) // 2
        return -((kernel - 1 - low - before) // up), (high + before) // up
    span = (kernel - 1) * (1 if "Pooling" in kind else _same(layer.dilation_rate, layer))
    before = max(span + 1 - down, 0) // 2 if layer.padding == "same" else 0
    return low * down - before, high * down - before + span
