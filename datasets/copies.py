"""Common pixels of two scenes without georeference: proof of a guess, and its description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.raster import Raster

from .landmarks import Floats, Guess, grey

_LARGEST = 512
"""Side of the part of two scenes that is compared."""
_NARROWEST = 12
"""Pixels of the coarser scene: a narrower strip proves nothing."""
_SEARCHED = 3
"""Pixels by which the guess may be off, along each axis."""
_FINE, _WIDE = 1.0, 6.0
"""Widths of Gaussians: what is finer is noise and compression, what is wider may be light or a slope."""
_PROVED, _DISTINCT = 0.7, 0.15
"""Correlation from which two parts are one; by how much it must exceed that of the part with itself, shifted:
a texture that repeats itself lies over itself in many places."""
_BLOCK, _USUAL = 12, 0.65
"""Side of small blocks, and the correlation that half of them must have."""
_LEAST = 20
"""Blocks of the coarser scene: in fewer, one corner of a field reaches everywhere, and fits any other one."""
_FLAT, _FLAT_SHARE = 0.25, 0.005
"""Deviation below which a part is of one colour: that of 8-bit images, or this share of the deviation with
light and slopes, for values of any unit as reflectance from 0 to 1."""

Read = Callable[[Window], Floats]


@dataclass(frozen=True)
class Common:
    """Common pixels of two scenes.

    Attributes:
        matrix_23: x and y in the second scene of (x, y, 1) in the first.
        share: common share of the smaller one's area.
    """

    matrix_23: NDArray[np.float64]
    share: float

    def text(self) -> str:
        """Return how one shows what the other does."""
        turn = self.matrix_23[:, :2]
        scale = float(np.sqrt(abs(np.linalg.det(turn))))
        turned = np.round(turn / scale).astype(int).reshape(-1).tolist()
        how = [_TURNED[tuple(turned)]] if tuple(turned) in _TURNED else []
        if scale != 1:
            how.append(f"{scale:.2g} times as large")
        if self.share < 0.995:
            how.append("shifted")
        words = f", {' and '.join(how)}" if how else ", stored otherwise"
        return f"show the same picture{words} ({self.share:.1%} of the smaller)"


_TURNED = {
    (-1, 0, 0, -1): "turned by 180°",
    (0, -1, 1, 0): "turned by 90°",
    (0, 1, -1, 0): "turned by 270°",
    (-1, 0, 0, 1): "mirrored",
    (1, 0, 0, -1): "mirrored",
    (0, 1, 1, 0): "mirrored and turned",
    (0, -1, -1, 0): "mirrored and turned",
}


def reader(raster: Raster) -> Read:
    """Return a function that reads a window of a raster as one band."""
    return lambda window: grey(*raster.read(window))


def prove_common(guess: Guess, sizes: tuple[Size, Size], reads: tuple[Read, Read]) -> Common | None:
    """Return the common pixels of two scenes, if those of the guess correlate; else None."""
    matrix, (first, second) = guess.matrix_23, sizes
    scale = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    if scale < 1:  # the first one has the larger pixels
        inverse = np.linalg.inv(matrix[:, :2])
        turned = np.concatenate([inverse, -inverse @ matrix[:, 2:]], axis=1)
        back = prove_common(Guess(guess.second, guess.first, turned, guess.votes), sizes[::-1], reads[::-1])
        if back is None:
            return None
        inverse = np.linalg.inv(back.matrix_23[:, :2])
        return Common(np.concatenate([inverse, -inverse @ back.matrix_23[:, 2:]], axis=1), back.share)
    for wanted in _snap(matrix, scale, first, second):
        low, high = _overlap(wanted, first, second)
        if (high - low).min() < _NARROWEST + 2 * _SEARCHED:
            continue
        middle, reach = (low + high) / 2, np.minimum(high - low, _LARGEST) / 2
        part = _window(middle - reach, middle + reach, first)
        shift = _shift_of(part, wanted, second, reads)
        if shift is not None:
            moved = wanted.copy()
            moved[:, 2] -= wanted[:, :2] @ shift
            low, high = _overlap(moved, first, second)
            scale = float(np.sqrt(abs(np.linalg.det(moved[:, :2]))))
            smaller = min(first.pixels, second.pixels / scale**2)
            return Common(moved, float(min(1.0, np.prod(np.maximum(high - low, 0)) / smaller)))
    return None


def _snap(
    matrix_23: NDArray[np.float64], scale: float, first: Size, second: Size
) -> list[NDArray[np.float64]]:
    """Return the matrix as of whole copies, if it is near to one of that, and as it is."""
    turn = matrix_23[:, :2] / scale
    height, width = np.abs(turn) @ (first.width, first.height)
    wanted = []
    whole = float(np.sqrt(second.width * second.height / (width * height)))
    if abs(whole / scale - 1) < 0.06:
        corners = turn @ np.array([[0, first.width - 1, 0], [0, 0, first.height - 1]]) * whole
        origin = -corners.min(axis=1, initial=0) + (whole - 1) / 2
        if np.abs(origin - matrix_23[:, 2]).max() < 0.06 * max(second.width, second.height):
            wanted.append(np.concatenate([turn * whole, origin[:, None]], axis=1))
    return [*wanted, matrix_23]


def _overlap(
    matrix_23: NDArray[np.float64], first: Size, second: Size
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return lower and upper x and y in the first scene of what both show."""
    inverse = np.linalg.inv(matrix_23[:, :2])
    ends = np.array([[-0.5, second.width - 0.5], [-0.5, second.height - 0.5]])
    own = inverse @ (ends - matrix_23[:, 2:])
    return np.maximum(own.min(axis=1), -0.5) + 0.5, np.minimum(
        own.max(axis=1) + 0.5, (first.width, first.height)
    )


def _window(low: NDArray[np.float64], high: NDArray[np.float64], size: Size) -> Window:
    """Return the whole pixels of a scene in a rectangle of x and y."""
    col, row = np.ceil(low - 1e-6).astype(int).tolist()
    right, below = np.floor(high + 1e-6).astype(int).tolist()
    return Window(row, col, below - row, right - col).intersection(Window.of(size))


def _shift_of(
    part: Window, matrix_23: NDArray[np.float64], second: Size, reads: tuple[Read, Read]
) -> NDArray[np.float64] | None:
    """Return by how many pixels (x, y) the guess is off; None if nothing, or too much, correlates."""
    import cv2

    scale = float(np.sqrt(abs(np.linalg.det(matrix_23[:, :2]))))
    corners = matrix_23 @ np.array(
        [[part.col, part.col + part.width - 1], [part.row, part.row + part.height - 1], [1, 1]]
    )
    margin = 4 * scale
    other = _window(corners.min(axis=1) - margin, corners.max(axis=1) + 1 + margin, second)
    if not other.size.pixels:
        return None
    one, two = reads[0](part), reads[1](other)
    flat = _flat_below(one), _flat_below(two)
    if scale > 1:
        two = cv2.GaussianBlur(two, (0, 0), float(np.hypot(_FINE * scale, 0.4 * (scale - 1))))
    else:
        two = cv2.GaussianBlur(two, (0, 0), _FINE)
    move = matrix_23.copy()  # from pixels of the one part to those of the other
    move[:, 2] += matrix_23[:, :2] @ (part.col, part.row) - (other.col, other.row)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    size = part.width, part.height
    two = cv2.warpAffine(two, move, size, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    one = cv2.GaussianBlur(one, (0, 0), _FINE)
    one, two = (each - cv2.GaussianBlur(each, (0, 0), _WIDE) for each in (one, two))
    template = np.ascontiguousarray(two[_SEARCHED:-_SEARCHED, _SEARCHED:-_SEARCHED])
    few = min(template.shape) < _NARROWEST or template.size < _LEAST * _BLOCK**2
    if few or one.std() <= flat[0] or template.std() <= flat[1]:
        return None
    one, template = one / one.std(), template / template.std()  # tiny squares would vanish
    found = cv2.matchTemplate(one, template, cv2.TM_CCOEFF_NORMED)
    row, col = np.unravel_index(int(np.argmax(found)), found.shape)
    best = float(found[row, col])
    if best < _PROVED or best < _itself(one) + _DISTINCT:
        return None
    part_HW = one[row : row + template.shape[0], col : col + template.shape[1]]
    if _usual(part_HW, template) < _USUAL:
        return None
    return np.array([col - _SEARCHED, row - _SEARCHED], np.float64)


def _flat_below(part_HW: Floats) -> float:
    """Return the deviation up to which a part is of one colour, in its unit; rounding of floats is none."""
    rounding = float(np.finfo(part_HW.dtype).eps * np.abs(part_HW).max())
    return min(_FLAT, _FLAT_SHARE * float(part_HW.std())) + rounding


def _usual(one_HW: Floats, other_HW: Floats) -> float:
    """Return the median correlation of small blocks: few strong edges that fit prove nothing."""
    rows, cols = (n // _BLOCK for n in one_HW.shape)
    if not rows or not cols:
        return 1.0
    a, b = (
        part[: rows * _BLOCK, : cols * _BLOCK]
        .reshape(rows, _BLOCK, cols, _BLOCK)
        .transpose(0, 2, 1, 3)
        .reshape(-1, _BLOCK**2)
        for part in (one_HW, other_HW)
    )
    a, b = (part - part.mean(axis=1, keepdims=True) for part in (a, b))
    lengths = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return float(np.median((a * b).sum(axis=1) / np.maximum(lengths, 1e-9)))


def _itself(part_HW: Floats) -> float:
    """Return the largest correlation of a part with itself shifted, by more than its features are wide."""
    height, width = part_HW.shape
    shape = 2 * height, 2 * width
    spectrum = np.fft.rfft2(part_HW - part_HW.mean(), shape)
    sums = np.fft.irfft2(np.abs(spectrum) ** 2, shape)
    down, across = (np.minimum(np.arange(2 * n), 2 * n - np.arange(2 * n)) for n in (height, width))
    common = np.maximum(height - down, 0)[:, None] * np.maximum(width - across, 0)
    apart = np.maximum(down[:, None], across)
    asked = (apart > 2 * _WIDE) & (common > 0.3 * height * width)
    if not asked.any():
        return 0.0
    return float((sums[asked] / common[asked]).max() / (sums[0, 0] / (height * width)))
