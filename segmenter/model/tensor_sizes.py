"""Sizes of a model's tensors as the image grows, and why some of them have no limited reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from segmenter.model.graph import Call, Graph
from segmenter.model.layer_reach import Extent, GlobalLayerError, reach, takes_several

AXES = (0, 1)
"""Rows and columns."""

_MANY = 3360
"""Pixels that the strides of most layers divide: 2⁵ · 3 · 5 · 7."""


@dataclass(frozen=True)
class Plane:
    """A tensor of the model.

    Attributes:
        extents: its rows and columns; None: its size does not grow with the image's, or is not known.
        unlimited: why a pixel of it depends on more than a neighbourhood; empty: it does not.
    """

    extents: tuple[Extent, Extent] | None
    unlimited: str = ""

    @property
    def scale(self) -> Fraction | None:
        """Pixels of the image behind one of the tensor's, rows × columns."""
        return None if self.extents is None else self.extents[0].scale * self.extents[1].scale


def planes_of(graph: Graph) -> list[Plane]:
    """Each tensor of a graph as a plane."""
    planes: list[Plane] = [Plane(None)] * len(graph.shapes)
    for tensor in graph.inputs:
        is_image = len(graph.shapes[tensor]) == 4 and len(graph.inputs) == 1
        planes[tensor] = (
            Plane((Extent(), Extent()))
            if is_image
            else Plane(None, f"expected one input of (rows, columns, bands), got {len(graph.inputs)} inputs")
        )
    for call in graph.calls:
        result = _given(call, [planes[tensor] for tensor in call.inputs])
        for number, tensor in enumerate(call.outputs):
            # No known layer gives several: of an unknown one's, the first alone is measured.
            planes[tensor] = result if number == 0 else Plane(None, result.unlimited)
    return planes


def _given(call: Call, inputs: Sequence[Plane]) -> Plane:
    unlimited = next((plane.unlimited for plane in inputs if plane.unlimited), "")
    extents = [plane.extents for plane in inputs if plane.extents is not None]
    try:
        reaches = [reach(call, axis) for axis in AXES]
    except GlobalLayerError as error:
        return Plane(_probed(call, inputs), unlimited or str(error))
    if not extents:
        return Plane(None, unlimited)
    if len(set(extents)) > 1 or (len(inputs) > 1 and not takes_several(call)):
        return Plane(_probed(call, inputs), unlimited or f"{call} joins tensors of different sizes")
    rows, cols = (of_axis.size(extents[0][axis]) for axis, of_axis in enumerate(reaches))
    return Plane((rows, cols), unlimited)


def _probed(call: Call, inputs: Sequence[Plane]) -> tuple[Extent, Extent] | None:
    """Size of an unknown layer's output, as Keras itself infers it for images of three sizes.

    None where it does not grow like the image, or Keras cannot tell.
    """
    scales = [extent.scale for plane in inputs for extent in plane.extents or ()]
    if not scales:
        return None
    unit = _MANY * math.lcm(*(scale.numerator for scale in scales))
    try:
        small, middle, large = (shape_for(call, inputs, unit * times) for times in (1, 2, 3))
    except Exception:  # somebody else's code, asked about sizes it may never have thought of
        return None
    found = [_line(unit, small[1 + a], middle[1 + a], large[1 + a]) for a in AXES if len(small) == 4]
    return (found[0], found[1]) if len(found) == 2 and found[0] and found[1] else None


def shape_for(call: Call, inputs: Sequence[Plane], pixels: int) -> Any:
    """Shape of a call's first output for an image of so many rows and columns."""
    made = {}
    for tensor, plane in zip(call.node.input_tensors, inputs, strict=True):
        shape = list(tensor.shape)
        for axis, extent in enumerate(plane.extents or ()):
            shape[1 + axis] = int(pixels / extent.scale) + extent.offset
        made[id(tensor)] = type(tensor)(shape, dtype=tensor.dtype)
    positional, named = call.node.arguments.fill_in(made)
    result = call.operation.compute_output_spec(*positional, **named)
    while isinstance(result, list | tuple):
        result = result[0]
    return result.shape


def _line(unit: int, small: Any, middle: Any, large: Any) -> Extent | None:
    """The line through three sizes of images of 1, 2 and 3 units."""
    sizes = (small, middle, large)
    if (
        not all(isinstance(size, int) for size in sizes)
        or large - middle != middle - small
        or middle <= small
    ):
        return None
    return Extent(Fraction(unit, middle - small), 2 * small - middle)
