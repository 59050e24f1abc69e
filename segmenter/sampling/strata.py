"""Classes by strata of metres a pixel: columns of the table behind a plan. Pure NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.sampling.kinds import MOST_CLASSES


class Part(NamedTuple):
    """Class in one stratum of the scenes' scale, or in all of them if `stratum` is None."""

    class_id: int
    stratum: int | None = None


@dataclass(frozen=True)
class TileStrata:
    """Tiles by strata of their scenes' scale.

    Attributes:
        number_N: (tiles,) stratum of each tile.
        titles: titles of the strata, such as `0.3–1 m`.
    """

    number_N: NDArray[np.int32]
    titles: tuple[str, ...]


@dataclass(frozen=True)
class PartTable:
    """Columns of a plan: the classes, or their parts by scale.

    If a part is in every row, so is its class.
    """

    counts_NK: NDArray[np.integer]
    parts: tuple[Part, ...]
    strata: TileStrata | None
    names: Sequence[str] | None

    @cached_property
    def counts_NP(self) -> NDArray[np.integer]:
        """(tiles, parts) pixels of each part's class in the tiles of its stratum."""
        if self.strata is None:
            return self.counts_NK
        counts_NP = self.counts_NK[:, [part.class_id for part in self.parts]]
        return np.where(tiles_of_parts(self.parts, self.strata.number_N), counts_NP, 0)

    @property
    def titles(self) -> list[str] | None:
        """Names of the parts, such as `water at 0.3–1 m`; None without names and strata."""
        if self.names is None and self.strata is None:
            return None
        return [part_title(part, self.names, self.strata) for part in self.parts]

    def check_size(self) -> None:
        """Refuse more columns than a plan can have, including one spare column per class.

        Raises:
            DatasetError: there are too many columns; the message has their number.
        """
        classes = self.counts_NK.shape[1]
        if self.strata is not None and len(self.parts) > MOST_CLASSES - classes:
            raise DatasetError(
                "sampling.scale_strata",
                expected=f"at most {MOST_CLASSES} classes and classes at a scale to plan for",
                got=f"{classes} and {len(self.parts)}",
                remedy="name fewer boundaries",
            )

    def with_whole(self, promised: Sequence[int]) -> PartTable:
        """Add the whole class for each class planned by scale without a promised part.

        A class that is too rare at each scale may still be common enough for every row.
        """
        promised_ids = {self.parts[p].class_id for p in promised}
        promised_ids |= {part.class_id for part in self.parts if part.stratum is None}
        lost = sorted({part.class_id for part in self.parts} - promised_ids)
        return PartTable(self.counts_NK, (*self.parts, *map(Part, lost)), self.strata, self.names)


def part_table(
    counts_NK: NDArray[np.integer], strata: TileStrata | None, names: Sequence[str] | None
) -> PartTable:
    """Return the table to plan for: the classes, or each class in each stratum that shows it.

    A class shown in only one stratum is one column.
    """
    classes = range(counts_NK.shape[1])
    if strata is None:
        return PartTable(counts_NK, tuple(map(Part, classes)), None, names)
    parts: list[Part] = []
    shown_TK = [counts_NK[strata.number_N == t].any(axis=0) for t in range(len(strata.titles))]
    for c in classes:
        there = [t for t, shown_K in enumerate(shown_TK) if shown_K[c]]
        parts += [Part(c, t) for t in there] if len(there) > 1 else [Part(c)]
    return PartTable(counts_NK, tuple(parts), strata, names)


def tiles_of_parts(parts: Sequence[Part], number_N: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return a (tiles, parts) mask: the part includes the tile's stratum."""
    wanted_P = np.array([-1 if part.stratum is None else part.stratum for part in parts], np.int64)
    return np.asarray((wanted_P < 0) | (wanted_P == number_N[:, None]))


def part_title(part: Part, names: Sequence[str] | None, strata: TileStrata | None) -> str:
    """Return a title such as `water at 0.3–1 m`, or the class alone."""
    name = names[part.class_id] if names else f"class {part.class_id}"
    return name if part.stratum is None or strata is None else f"{name} at {strata.titles[part.stratum]}"
