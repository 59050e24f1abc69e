"""Test-time augmentation: predictions averaged over the symmetries of the square, and over scales.

With scales, windows stay exact. A copy at scale a/b is resampled within the compiled graph; if windows begin
and end on the grid of `seen_by`, its pixels equal those of the whole raster's copy, and they are aligned to
the model's stride. The halo covers everything beyond a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from segmenter.base.errors import ConfigError
from segmenter.model.receptive_field import NetworkGeometry

Transpose = Callable[[Any, list[int]], Any]


@dataclass(frozen=True)
class Symmetry:
    """One of eight symmetries: rows and columns swapped or not, then each order reversed or not.

    A window aligned to a model's stride stays aligned: windows and the padded raster have sides that are
    multiples of the stride, so mirroring keeps the grid.
    """

    transpose: bool = False
    reverse_rows: bool = False
    reverse_cols: bool = False

    def apply(self, array_BHWC: Any, transpose: Transpose) -> Any:
        """Apply the symmetry to NumPy arrays with `np.transpose`, to tensors with `tf.transpose`."""
        if self.transpose:
            array_BHWC = transpose(array_BHWC, [0, 2, 1, 3])
        return self._reverse(array_BHWC)

    def undo(self, array_BHWC: Any, transpose: Transpose) -> Any:
        """Apply the inverse of `apply`."""
        array_BHWC = self._reverse(array_BHWC)
        return transpose(array_BHWC, [0, 2, 1, 3]) if self.transpose else array_BHWC

    def _reverse(self, array_BHWC: Any) -> Any:
        if self.reverse_rows:
            array_BHWC = array_BHWC[:, ::-1]
        return array_BHWC[:, :, ::-1] if self.reverse_cols else array_BHWC


_FLIPS = tuple(Symmetry(False, rows, cols) for rows in (False, True) for cols in (False, True))
SYMMETRIES: dict[str, tuple[Symmetry, ...]] = {
    "none": _FLIPS[:1],
    "mirror": _FLIPS[:2],
    "flips": _FLIPS,
    "all": (*_FLIPS, *(Symmetry(True, s.reverse_rows, s.reverse_cols) for s in _FLIPS)),
}
_ONE = Fraction(1)
_LONGEST = 20  # characters of a scale
_SCALES = (Fraction(3, 4), _ONE, Fraction(5, 4))
_SMALLEST, _LARGEST, _DENOMINATOR = Fraction(1, 4), Fraction(4), 16
"""Bounds of a scale and of its denominator; windows lie on multiples of its denominator times the stride."""
EXPECTED = (
    "none, mirror, flips, all or auto, with or without scales (0.75,1,1.25) or numbers, as flips,scales or "
    "0.5,1"
)
AUTO = "auto"
"""Symmetries that stand for those of the training: `settled_tta`."""


@dataclass(frozen=True)
class Tta:
    """Test-time augmentation: every symmetry at every scale, with equal weights.

    Attributes:
        symmetries: one of `SYMMETRIES`, or `AUTO` until it is settled.
        scales: model pixels per input pixel, along one side.
    """

    symmetries: str = "none"
    scales: tuple[Fraction, ...] = (_ONE,)

    @property
    def count(self) -> int:
        """Number of predictions to average."""
        return len(SYMMETRIES[self.symmetries]) * len(self.scales)

    def __str__(self) -> str:
        """Return the canonical text of the option: one text for one meaning."""
        if self.scales == (_ONE,):
            return self.symmetries
        numbers = [_number(scale) for scale in self.scales]
        return ",".join([*([] if self.symmetries == "none" else [self.symmetries]), *numbers])


def parse_tta(text: str) -> Tta:
    """Parse `--tta`: none, mirror, flips, all, auto, or scales as numbers, separated by commas."""
    words = [word.strip() for word in text.split(",")]
    symmetries = [word for word in words if word in SYMMETRIES or word == AUTO]
    scales: list[Fraction] = []
    for word in words:
        if word not in symmetries:
            scales += _SCALES if word == "scales" else [_scale(word, text)]
    if len(symmetries) > 1 or len(set(scales)) < len(scales):
        raise ConfigError("--tta", expected=f"{EXPECTED}, each once", got=text)
    return Tta(symmetries[0] if symmetries else "none", tuple(sorted(scales)) or (_ONE,))


def settled_tta(tta: Tta, trained: Iterable[str]) -> Tta:
    """Return what is averaged: for `AUTO`, the symmetries by which all runs were trained.

    Args:
        trained: name of the symmetries of each run, `AugmentationConfig.symmetries`.
    """
    if tta.symmetries != AUTO:
        return tta
    return replace(tta, symmetries=min(trained, key=lambda name: len(SYMMETRIES[name])))


def _number(scale: Fraction) -> str:
    """Return a terminating decimal such as 0.75, else a fraction such as 2/3."""
    decimal = f"{float(scale):.15g}"
    return decimal if Fraction(decimal) == scale else str(scale)


def _scale(word: str, text: str) -> Fraction:
    try:
        if len(word) > _LONGEST or "e" in word.lower():  # of 1e99999999 the integer would be made
            raise ValueError(word)
        scale = Fraction(word)
    except (ValueError, ZeroDivisionError):
        raise ConfigError("--tta", expected=EXPECTED, got=text) from None
    if not _SMALLEST <= scale <= _LARGEST or scale.denominator > _DENOMINATOR:
        raise ConfigError(
            "--tta",
            expected=f"scales from {_SMALLEST} to {_LARGEST} that are fractions of small numbers, at most "
            "sixteenths, as 0.5, 0.75 and 1.25",
            got=word,
        )
    return scale


def seen_by(network: NetworkGeometry, tta: Tta, classes: int) -> NetworkGeometry:
    """Return the geometry of a model averaged over scales, in input pixels.

    At scale a/b, one model pixel has t = b/a input pixels. The grid of stride s is aligned at input pixels
    that are multiples of s b / gcd(s b, a). A pixel depends on those within (radius + 2) t + 2: the radius in
    the copy, and one pixel for each of the two resamplings, which reach one pixel of the coarser grid. Memory
    grows with the largest copy's pixels, and by the sum over the symmetries.
    """
    if tta.count > 1 and network.bytes_per_pixel:
        network = replace(network, bytes_per_pixel=network.bytes_per_pixel + 8 * classes)
    if tta.scales == (_ONE,):
        return network
    stride, far, s = network.stride, 0, network.stride
    for scale in tta.scales:
        stride = math.lcm(stride, s * scale.denominator // math.gcd(s * scale.denominator, scale.numerator))
        if network.radius is not None:
            reach = network.radius if scale == 1 else math.ceil((network.radius + 2) / scale) + 2
            far = max(far, reach)
    most = float(max(_ONE, *tta.scales)) ** 2
    return replace(
        network,
        stride=stride,
        radius=None if network.radius is None else far,
        bytes_per_pixel=network.bytes_per_pixel * most + 16 * classes if network.bytes_per_pixel else 0.0,
    )
