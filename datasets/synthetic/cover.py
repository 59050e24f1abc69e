"""Land cover of procedural scenes, finer than any dataset's classes, with colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Cover(IntEnum):
    """Kinds of cover, mapped to its own classes by each dataset."""

    ROAD = 0
    PAVING = 1
    PARKING = 2
    BUILDING = 3
    LAWN = 4
    MEADOW = 5
    TREE = 6
    FOREST = 7
    CAR = 8
    CLUTTER = 9
    WATER = 10
    CROPS = 11
    GREENHOUSE = 12
    SOIL = 13
    EARTHWORKS = 14
    SPORTS = 15
    AIRPORT = 16


FAMILIES: dict[str, tuple[float, float, float, float]] = {
    "grey": (0.40, 0.40, 0.39, 0.42),
    "dark": (0.22, 0.22, 0.23, 0.24),
    "light": (0.64, 0.63, 0.60, 0.64),
    "red": (0.48, 0.31, 0.25, 0.47),
    "tan": (0.50, 0.45, 0.34, 0.54),
    "green": (0.28, 0.36, 0.20, 0.58),
    "blue": (0.25, 0.34, 0.46, 0.30),
}
"""Reflectance in red, green, blue and near infrared. The classes share these families, as they do in
towns: slate roofs and asphalt, brick paving and tiles, dry lawns and gravel; so colour alone says little."""

_REFLECTANCES = np.array(list(FAMILIES.values()))

MIXES: dict[str, dict[str, float]] = {
    "street": {"grey": 0.70, "dark": 0.18, "light": 0.12},
    "paving": {"grey": 0.40, "light": 0.12, "red": 0.30, "tan": 0.18},
    "roof": {"red": 0.36, "grey": 0.28, "dark": 0.11, "light": 0.07, "tan": 0.09, "green": 0.09},
    "grass": {"green": 0.66, "tan": 0.24, "red": 0.10},
    "crown": {"green": 0.80, "tan": 0.10, "red": 0.10},
    "car": {"grey": 0.26, "dark": 0.20, "light": 0.24, "red": 0.14, "blue": 0.12, "green": 0.04},
    "clutter": {"grey": 0.24, "red": 0.20, "tan": 0.24, "light": 0.08, "green": 0.08, "blue": 0.16},
    "soil": {"red": 0.35, "tan": 0.50, "grey": 0.15},
    "crops": {"green": 0.60, "tan": 0.28, "red": 0.12},
    "forest": {"green": 0.90, "tan": 0.05, "red": 0.05},
    "water": {"blue": 0.75, "dark": 0.25},
}
"""Frequency of each family's colours for each thing."""


@dataclass(frozen=True)
class Season:
    """Colour statistics of one scene: the share of each colour family in each mix.

    Attributes:
        mixes: for each kind of object, cumulative shares in the order of `FAMILIES`.
    """

    mixes: Mapping[str, NDArray[np.float64]]

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Season:
        """Draw the season of a scene: all mixes randomly perturbed."""
        shares = {k: np.array([mix.get(f, 0.0) for f in FAMILIES]) for k, mix in MIXES.items()}
        leaning = {k: s * rng.lognormal(0.0, 0.35, s.size) for k, s in shares.items()}
        return cls({k: np.cumsum(s / s.sum()) for k, s in leaning.items()})

    def colour(self, what: str, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return (4,) reflectance of one object: that of a family, lighter or darker, slightly tinted."""
        family = _REFLECTANCES[min(int(np.searchsorted(self.mixes[what], rng.random())), len(FAMILIES) - 1)]
        tint = rng.lognormal(0.0, 0.15) * rng.lognormal(0.0, 0.05, 4)
        return np.clip(family * tint, 0.03, 0.95).astype(np.float32)
