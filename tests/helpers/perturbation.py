"""Reach of a model, measured: what moves when an input pixel changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.model.receptive_field import network_geometry


def make_all_contributions_count(model: Any, rng: np.random.Generator, gain: float = 0.5) -> None:
    """Positive weights that average: nothing cancels, no rectifier closes, none saturates."""
    for variable in model.variables:
        shape = tuple(variable.shape)
        if variable.dtype not in ("float32", "float64"):
            continue
        if "moving" in variable.path or len(shape) < 2:
            plain = (
                0.0 if "mean" in variable.name or "beta" in variable.name or "bias" in variable.name else 1.0
            )
            variable.assign(np.full(shape, gain if variable.name == "gamma" else plain))
        else:
            weights = rng.uniform(0.5, 1.5, shape)
            depthwise = shape[-1] == 1 and len(shape) == 4
            variable.assign(weights / weights.sum(axis=(0, 1) if depthwise else tuple(range(len(shape) - 1))))


def farthest_moved(
    model: Any, stride: int, middle: int, side: int, rng: np.random.Generator
) -> tuple[int, int]:
    """The farthest output pixel that moves along (rows, columns) when one input pixel changes.

    Every pixel of one cell of the stride's grid is changed, in an image of its own, the others being 0, so
    that what comes of the change wins in every pool.
    """
    bands, farthest = model.inputs[0].shape[-1], [0, 0]
    before = np.asarray(model(np.zeros((1, side, side, bands)), training=False))
    for row in range(middle, middle + stride):
        images = np.zeros((stride, side, side, bands))
        images[np.arange(stride), row, middle + np.arange(stride)] = rng.uniform(1, 2, (stride, bands))
        moved = (np.asarray(model(images, training=False)) != before).any(axis=3)
        number, rows, cols = np.nonzero(moved)
        for axis, far in enumerate((rows - row, cols - middle - number)):
            farthest[axis] = max(farthest[axis], int(np.abs(far).max(initial=0)))
    return farthest[0], farthest[1]


@dataclass(frozen=True)
class Moved:
    """What a changed pixel moves in one output of a model, along a strip.

    Attributes:
        scale: input pixels that an output pixel covers.
        first: the first place of the changed pixel; the others follow one by one, for a step of the stride.
        sums: (place, output pixel along the strip): of the values that moved.
    """

    scale: int
    first: int
    sums: NDArray[np.float64]

    def farthest(self) -> int:
        """The farthest from the changed pixel, beyond the pixels that an output pixel covers."""
        place, at = np.nonzero(self.sums)
        changed, covered = self.first + place, self.scale * at
        return int(np.maximum(covered - changed, changed - (covered + self.scale - 1)).max())

    def shifts(self) -> list[int]:
        """The steps of the changed pixel with which all that moves goes along, to float64's rounding.

        A step between two output pixels may take it to either.
        """
        return [step for step in range(1, len(self.sums)) if self._goes_along(step)]

    def _goes_along(self, step: int) -> bool:
        before, after = self.sums[0], self.sums[step]
        pixels = {step // self.scale, -(-step // self.scale)}
        return any(
            np.allclose(after[by:], before[: len(before) - by], rtol=1e-12, atol=0)  # matrices of other sizes
            for by in pixels
        )


def moved_along(model: Any, stride: int, radius: int, axis: int) -> list[Moved]:
    """What a changed pixel moves in each output, along rows (axis 0) or columns (1).

    The image is a strip, a step of the stride across: what a pixel reaches along it, it reaches whatever is
    across. It is 0 but for the changed pixel, so that the smallest value shows. There is room for a step more
    than the radius.
    """
    cells = -(-radius // stride) + 1
    length, first = (2 * cells + 2) * stride, cells * stride
    sums: list[list[NDArray[np.float64]]] = [[] for _ in model.outputs]
    places = range(first, first + stride + 1)
    for some in (places[i : i + _TOGETHER] for i in range(0, len(places), _TOGETHER)):
        for found, values in zip(sums, _on_strips(model, length, stride, some, axis), strict=True):
            found.extend(np.abs(values).sum(axis=(1, 3)))
    return [Moved(length // len(found[0]), first, np.stack(found)) for found in sums]


def all_move(model: Any, length: int, around: float) -> list[bool]:
    """Of each output, whether all of it moves when the first pixel along a strip of one value changes."""
    outputs = _on_strips(model, length, network_geometry(model).stride, (0, None), 1, around)
    return [bool((changed != plain).any(axis=2).all()) for changed, plain in outputs]


_TOGETHER = 11
"""Strips: more take more memory and no less time."""


def _on_strips(
    model: Any, length: int, across: int, places: Sequence[int | None], axis: int, around: float = 0
) -> list[NDArray[np.float64]]:
    """Outputs for strips in one of whose pixels, or none, something is added; their columns lie along it."""
    strips = np.full((len(places), across, length, model.inputs[0].shape[-1]), float(around))
    for strip, place in zip(strips, places, strict=True):
        if place is not None:
            strip[across // 2, place] += np.linspace(1, 2, strips.shape[3])
    turn = (0, 2, 1, 3) if axis == 0 else (0, 1, 2, 3)
    return [
        np.asarray(each).transpose(turn) for each in as_list(model(strips.transpose(turn), training=False))
    ]


def as_list(outputs: Any) -> list[Any]:
    """Outputs of a model, also where it has one."""
    return outputs if isinstance(outputs, list) else [outputs]
