"""Units of area, and numbers with the digits that their intervals allow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from segmenter.extras.accuracy.estimators import Figure

Unit = Literal["m2", "ha", "km2", "px"]

SQUARE_METRES: dict[str, float] = {"m2": 1.0, "ha": 1e4, "km2": 1e6}
"""Square metres of one unit."""
_SHOWN = {"m2": "m²", "ha": "ha", "km2": "km²", "px": "px", "": ""}
_LARGE = (("km2", 1e7), ("ha", 1e4), ("m2", 0.0))
"""Unit to show, from this area of all strata on, in square metres."""


@dataclass(frozen=True)
class Shown:
    """Unit in which areas are shown.

    Attributes:
        name: `m2`, `ha`, `km2` or `px`; empty: unknown.
        factor: multiply areas by this.
    """

    name: str
    factor: float

    @property
    def sign(self) -> str:
        """Unit behind a number, with a space; empty if unknown."""
        return f" {_SHOWN[self.name]}" if self.name else ""


def unit_for(unit: str, total: float) -> Shown:
    """Return a unit for areas given in `unit`, all of them together `total`."""
    if unit not in SQUARE_METRES:
        return Shown(unit, 1.0)
    metres = total * SQUARE_METRES[unit]
    name = next(name for name, least in _LARGE if metres >= least)
    return Shown(name, SQUARE_METRES[unit] / SQUARE_METRES[name])


def whole_area(value: float) -> str:
    """Return an area in four digits, or in all of its whole ones."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def with_interval(figure: Figure, sign: str = "") -> str:
    """Return `12.4 ± 1.1 km²`: two digits of half the interval or all whole ones, as many decimals."""
    if math.isnan(figure.value):
        return "–"
    if not figure.half > 0:
        return f"{figure.value:,.{0 if figure.value >= 100 else 2}f} ± 0{sign}"
    decimals = max(0, 1 - math.floor(math.log10(float(f"{figure.half:.1e}"))))
    return f"{figure.value:,.{decimals}f} ± {figure.half:,.{decimals}f}{sign}"


def in_percent(figure: Figure) -> str:
    """Return a share such as `88.0 ± 7.4`, in percent."""
    if math.isnan(figure.value):
        return "–"
    hundred = figure.times(100)
    return f"{hundred.value:.1f} ± {hundred.half:.1f}"
