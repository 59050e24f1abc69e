"""Arithmetic of a model's convolutions, from its own layers."""

from __future__ import annotations

import math
from typing import Any

from segmenter.model.graph import graph_of
from segmenter.model.tensor_sizes import planes_of

_KERNELS = ("kernel", "depthwise_kernel", "pointwise_kernel")


def convolution_flops(model: Any, height: int, width: int) -> int:
    """Multiplications and additions, both counted, of all convolutions of one image, forward.

    2 · pixels · kernel rows · kernel columns · channels in · channels out; pixels are those of the output, or
    for a transposed convolution of the input. Training takes three times as many: the gradients of the
    weights, and of the layer's input, each as many as forward.
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
        pixels = math.prod(
            math.ceil(side / extent.scale) + extent.offset
            for side, extent in zip((height, width), extents, strict=True)
        )
        kernels = (getattr(call.operation, name, None) for name in _KERNELS)
        flops += sum(2 * pixels * math.prod(kernel.shape) for kernel in kernels if kernel is not None)
    return flops
