"""Memory of a model, by counting the tensors of its graph: an image in training, a pixel in prediction.

No Keras is imported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from segmenter.model.graph import Call, Graph, graph_of
from segmenter.model.tensor_sizes import Plane, planes_of

_IN_PLACE = {
    "BatchNormalization",
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


def training_bytes_per_image(model: Any, height: int, width: int, *, mixed: bool = False) -> int:
    """Bytes of GPU memory that one image adds to a training step, by counting tensors.

    Forward, each layer's output is kept for the backward pass; backward, the gradients of the largest
    layers live beside them: Σ over layers of output elements × bytes, plus twice the largest layer. In
    mixed float16, outputs take 2 bytes, except in the float32 head and in BatchNorm, which computes in
    float32: Keras keeps its input and its output so (4 + 4); `SyncBatchNorm` keeps neither, and gets 4 for
    what it computes with on the way back. In float64 all takes twice as much. `python -m benchmarks.memory`
    holds the formula against what a step takes.
    """
    graph = graph_of(model)
    planes = planes_of(graph)
    image = [4 * _elements(graph, planes, tensor, height, width) for tensor in graph.inputs]
    sizes = image + [
        _elements(graph, planes, tensor, height, width) * _bytes_per_element(call, mixed)
        for call in graph.calls
        for tensor in call.outputs
    ]
    twice = 2 if model.outputs[0].dtype == "float64" else 1
    return twice * (sum(sizes) + 2 * max(sizes))


def inference_bytes_per_pixel(model: Any) -> float:
    """Bytes of memory that a pixel of a window takes while it is predicted, by counting tensors.

    Layers run in order; a tensor lives until the last layer that takes it has run. The peak is the largest
    sum over the tensors that live while a layer runs, its output among them, in float32, times
    `_WORKSPACE`. Normalisation and activation are fused into the convolution before them, or overwrite
    their input. `python -m benchmarks.prediction_memory` holds it against a process. Tensors that do not
    grow with the image (those of global layers) count nothing.
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
        sizes = [
            math.ceil(side / e.scale) + e.offset for side, e in zip((height, width), extents, strict=True)
        ]
        return math.prod(sizes) * _channels(shape)
    missing = [height, width] if len(shape) == 4 else [1] * len(shape)
    known = [n if n is not None else missing.pop() if missing else 1 for n in shape[1:]]
    return math.prod(known)


def _channels(shape: Sequence[int | None]) -> int:
    return shape[-1] or 1


def _bytes_per_element(call: Call, mixed: bool) -> int:
    if not mixed or getattr(call.operation, "compute_dtype", "float16") == "float32":
        return 4
    return {"BatchNormalization": 8, "SyncBatchNorm": 4}.get(call.kind, 2)
