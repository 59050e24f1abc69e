"""Geometry of a model, computed from its graph: total stride and receptive-field radius.

Keras is not imported: prediction can use the values without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from segmenter.model.graph import Graph, LayerCall, graph_of
from segmenter.model.layer_reach import Extent, Interval, Reach, reach
from segmenter.model.layer_reach import GlobalLayerError as GlobalLayerError
from segmenter.model.size import AXES, Plane, inference_bytes_per_pixel, planes_of


@dataclass(frozen=True)
class NetworkGeometry:
    """Geometry of a model: stride, receptive field, memory.

    Attributes:
        stride: the model's total stride in pixels; windows of exact prediction are aligned to it.
        radius: the farthest input pixel, along a row or column, that an output pixel depends on; None if it
            depends on all pixels, or a layer's reach is unknown.
        bytes_per_pixel: memory for a pixel of a window during prediction; 0: unknown.
    """

    stride: Annotated[int, Field(ge=1, le=1 << 16)]
    radius: Annotated[int, Field(ge=0, le=1 << 24)] | None
    bytes_per_pixel: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    unlimited: str = ""

    def __str__(self) -> str:
        """Return text with stride and radius; without a radius, the reason and the consequence."""
        if self.radius is not None:
            return f"stride {self.stride} px, receptive-field radius {self.radius} px"
        why = self.unlimited or "it is not known"
        return f"stride {self.stride} px, no receptive-field radius ({why}: maps are of smooth windows)"

    def suits(self, model: NetworkGeometry) -> bool:
        """Return True if windows cut by this geometry also suit `model`: no pixel lacks context."""
        if self.stride % model.stride:
            return False
        return self.radius is None or (model.radius is not None and self.radius >= model.radius)


def network_geometry(model: Any) -> NetworkGeometry:
    """Return the geometry of a functional Keras model for prediction.

    If a layer uses the whole image or is unknown, there is no radius, and the stride is that of the tensors
    of known size.
    """
    graph = graph_of(model)
    planes = planes_of(graph)
    memory = inference_bytes_per_pixel(model)
    try:
        return replace(_geometry(graph, planes), bytes_per_pixel=memory)
    except GlobalLayerError as error:
        return NetworkGeometry(_stride(planes), None, memory, str(error))


def _geometry(graph: Graph, planes: Sequence[Plane]) -> NetworkGeometry:
    """Return stride and receptive-field radius.

    For each position of an output pixel on the stride's grid, the interval of input pixels that it depends on
    is followed back through every call of a layer, along rows and along columns; the radius is the largest
    reach found, to either side, beyond the pixels that the output pixel covers.
    """
    for tensor in graph.outputs:
        extents, unlimited = planes[tensor].extents, planes[tensor].unlimited
        if unlimited:
            raise GlobalLayerError(unlimited)
        if extents is None:
            raise GlobalLayerError("the model's output has no rows and columns")
        if any(extent.offset for extent in extents):
            raise GlobalLayerError("the model's output is larger or smaller than its image by some pixels")
    radius = max(_radius(graph, planes, axis) for axis in AXES)
    return NetworkGeometry(_stride(planes), radius)


def _stride(planes: Sequence[Plane], axes: Sequence[int] = AXES) -> int:
    """Return the least common multiple of the strides of all tensors, in image pixels."""
    return math.lcm(*(p.extents[axis].scale.numerator for p in planes if p.extents for axis in axes))


def _radius(graph: Graph, planes: Sequence[Plane], axis: int) -> int:
    stride, radius = _stride(planes, [axis]), 0
    steps = [(call, reach(call, axis)) for call in _leading_to(graph, graph.outputs)]
    for tensor in graph.outputs:
        scale = _extent(planes[tensor], axis).scale
        for pixel in range(math.ceil(stride / scale)):
            needed: dict[int, Interval] = {tensor: (pixel, pixel)}
            for call, layer in steps:
                for result in call.outputs:
                    if result in needed:
                        _add(needed, call.inputs, layer, planes, axis, needed[result])
            first, last = needed.get(graph.inputs[0], (0, -1))
            if first <= last:
                covered = math.floor(pixel * scale), math.ceil((pixel + 1) * scale) - 1
                radius = max(radius, covered[0] - first, last - covered[1])
    return radius


def _leading_to(graph: Graph, tensors: Sequence[int]) -> list[LayerCall]:
    """Return the calls that some tensors depend on, the last call first."""
    wanted, calls = set(tensors), []
    for call in reversed(graph.calls):
        if wanted & set(call.outputs):
            wanted |= set(call.inputs)
            calls.append(call)
    return calls


def _add(
    needed: dict[int, Interval],
    inputs: Sequence[int],
    layer: Reach,
    planes: Sequence[Plane],
    axis: int,
    output: Interval,
) -> None:
    """Extend the needed interval of each input by that of an interval of the output."""
    for tensor in inputs:
        first, last = layer.input_interval(_extent(planes[tensor], axis), output)
        if first <= last:  # a transposed convolution may have gaps
            before = needed.get(tensor, (first, last))
            needed[tensor] = min(before[0], first), max(before[1], last)


def _extent(plane: Plane, axis: int) -> Extent:
    assert plane.extents is not None, "what has a limited reach has a size"
    return plane.extents[axis]
