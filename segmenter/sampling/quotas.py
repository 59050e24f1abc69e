"""Quotas: numbers of tiles of each class promised to a step. Pure NumPy.

A quota is a number of tiles a step, at least 1. A step is promised ⌊quota⌋ or ⌈quota⌉ tiles of the class,
on average `quota`; it may hold more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.config.sampling import SamplingConfig
from segmenter.sampling.kinds import MOST_CLASSES, ONE, Demand, Kinds
from segmenter.sampling.methods import rare_class_odds


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
    counts_NK: NDArray[np.integer], strata: TileStrata | None = None, names: Sequence[str] | None = None
) -> PartTable:
    """Return the table to plan for: the classes, or each class in each stratum that shows it.

    A class shown in only one stratum is one column.

    Args:
        counts_NK: (tiles, classes) pixels of each class in each tile.
        strata: strata of the tiles' scale; each class is planned in each stratum that shows it.
        names: names of the classes.
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


Ints = NDArray[np.int64]

PARTS = 16
"""Parts in which wishes are lowered while they are too much."""
_NO_LIMIT = 1 << 20
"""Uses of a tile if repeats are unlimited."""
_DRAWS = 1 << 20
"""Steps in which the probability of a class is counted."""
_ROWS = 1 << 10
"""Rows at once, so that their places stay in the processor's cache."""


class Quota(NamedTuple):
    """Tiles of a class in a step, as the recipe asks and as the tiles allow; 1 or more."""

    wished: float
    given: float


@dataclass(frozen=True)
class Wishes:
    """Tiles of each class that a recipe asks for, before the tiles limit them.

    Attributes:
        class_P: class of each column of the table.
        odds_P: probability of each column by the rarity of its pixels; all 0: one tile of each.
        by_hand: (class, tiles in a step), in place of the odds.
        lift: passes of rare-class sampling over the tiles in an epoch.
        blocks: parts of a step that are planned alike.
    """

    class_P: tuple[int, ...]
    odds_P: tuple[float, ...]
    by_hand: tuple[tuple[int, int], ...]
    lift: float
    blocks: int

    @classmethod
    def of(cls, table: PartTable, blocks: int, config: SamplingConfig, batch: int | None = None) -> Wishes:
        """Return the wishes for the columns of a table.

        Raises:
            DatasetError: as in `check_quotas`.
        """
        names = list(table.names or ())
        check_quotas(config, names, batch)
        odds_P = np.zeros(len(table.parts))
        if config.quota == "rarity":
            odds_P = rare_class_odds(table.counts_NP, config.min_pixels, config.rare_temperature)
        by_hand = tuple((names.index(name), tiles) for name, tiles in config.quotas.items())
        class_P = tuple(part.class_id for part in table.parts)
        return cls(class_P, tuple(odds_P.tolist()), by_hand, config.lift, blocks)

    def amounts(
        self, promised: Sequence[int], batch: int, asked: Sequence[int] | None = None
    ) -> tuple[Ints, Ints]:
        """Return the tiles of promised columns as wished, and as they fit into a row, in 1/1024 of a tile.

        By the odds, max(1, odds · batch). If the sum exceeds the row, as if each tile held one class, the
        amounts beyond 1 shrink in proportion: those by the odds first.

        Args:
            asked: promised columns that some tile lacks; beside amounts by hand, the others need no place.
        """
        hand = dict(self.by_hand)
        class_P = np.array([self.class_P[p] for p in promised], np.int64)
        odds_P = np.array([self.odds_P[p] for p in promised])
        by_odds_P = np.floor(odds_P / max(odds_P.sum(), 1e-300) * batch * ONE).astype(np.int64)
        by_hand_P = self._by_hand(promised)
        parts = {c: self.blocks * int((class_P == c).sum()) for c in hand}
        tiles_P = np.array([-(-hand.get(c, 0) // parts.get(c, 1)) for c in class_P.tolist()], np.int64)
        wished_P = np.maximum(ONE, np.where(by_hand_P, tiles_P * ONE, by_odds_P))
        placed_P = np.isin(promised, promised if asked is None or not hand else asked)
        fits_P, room = wished_P.copy(), max(0, batch - int(placed_P.sum())) * ONE
        for chosen_P in (by_hand_P & placed_P, ~by_hand_P & placed_P):
            beyond_P = wished_P[chosen_P] - ONE
            if (total := int(beyond_P.sum())) > room:
                fits_P[chosen_P] = ONE + beyond_P * room // total
            room -= int((fits_P[chosen_P] - ONE).sum())
        return np.where(by_hand_P, wished_P, fits_P), fits_P

    def uses(
        self, promised: Sequence[int], table: Kinds, most: int, rows: int, batch: int, part: int
    ) -> Ints:
        """Return (T,) how often every epoch uses the tiles of each kind, all together; at least once each.

        Rare-class sampling of the promised columns draws one by its odds, then one of the N_p tiles with
        it: in a pass over N tiles, a tile with the columns p is drawn w = N · Σ odds_p / N_p times. Here it
        is used max(1, lift · w) times, at most `most`, and no more often than there are rows to hold it; of
        its uses beyond one only `part` / `PARTS` count.

        Args:
            table: kinds of tile by all columns.
            rows: rows of an epoch that uses each tile once, of `batch` tiles.
        """
        each_T = self._draws(promised, table).sum(axis=1)
        while True:
            beyond_T = np.rint((np.clip(each_T, 1, min(most, rows)) - 1) * ONE)  # alike on all machines
            beyond_T = beyond_T.astype(np.int64) * part // PARTS
            uses_T = np.asarray(table.tiles_T + (table.tiles_T * beyond_T + ONE // 2) // ONE)
            filled = int(uses_T.sum()) // batch
            if rows >= min(most, filled):
                return uses_T
            rows = filled

    def wanted_classes(
        self, promised: Sequence[int], table: Kinds, kind_SB: NDArray[np.integer], rng: np.random.Generator
    ) -> Ints | None:
        """Return (S, B) the class that each use of a tile must show, −1 for none; None without odds.

        Of a tile's uses, as many as rare-class sampling would draw are drawn for one of its classes, in the
        proportions of that sampling; all, if it would draw more.

        Args:
            kind_SB: kind of the tile in each place of the rows.
        """
        if not any(self.odds_P):
            return None
        draws_TP = self._draws(promised, table)
        share_TP = draws_TP.cumsum(axis=1) / np.maximum(1, draws_TP.sum(axis=1, keepdims=True))
        below_PT = np.rint(share_TP.T * _DRAWS).astype(np.int32)  # alike on all machines
        draw_SB = rng.integers(_DRAWS, size=kind_SB.shape, dtype=np.int32)
        number_SB = np.zeros(kind_SB.shape, np.int8)
        for first in range(0, len(kind_SB), _ROWS):
            rows = slice(first, first + _ROWS)
            kind, draw = kind_SB[rows].astype(np.intp), draw_SB[rows]
            for below_T in below_PT:
                number_SB[rows] += draw >= below_T[kind]
        return np.array([*(self.class_P[p] for p in promised), -1], np.int64)[number_SB]

    def _draws(self, promised: Sequence[int], table: Kinds) -> NDArray[np.float64]:
        """Return (T, P) how often `lift` passes of rare-class sampling draw a tile of a kind for a column.

        0 for a class with an amount by hand, which stands in place of its odds.
        """
        columns = np.array(promised, np.int64)
        odds_P = np.array(self.odds_P)[columns]
        weight_P = odds_P / np.maximum(table.holders_K[columns], 1) / max(odds_P.sum(), 1e-300)
        weight_P[self._by_hand(promised)] = 0
        holds_TP = (table.codes_T[:, None] >> columns) & 1
        return np.asarray(self.lift * table.tiles * (holds_TP * weight_P))

    def _by_hand(self, columns: Sequence[int]) -> NDArray[np.bool_]:
        return np.isin([self.class_P[p] for p in columns], [c for c, _ in self.by_hand])

    def demand(self, fits_P: Ints, columns: Sequence[int], kinds: Kinds, max_repeats: int | None) -> Demand:
        """Return the demand for columns with these amounts, of the uses that an epoch has of their tiles.

        By hand, tiles may be used more often. A row never needs more tiles of a class than exist.
        """
        most = 1 + max_repeats if max_repeats is not None else _NO_LIMIT
        most_P = np.where(self._by_hand(columns), most * kinds.different_K, kinds.holders_K)
        return Demand(np.minimum(fits_P, kinds.different_K * ONE), most_P)


def check_quotas(config: SamplingConfig, names: Sequence[str], batch: int | None = None) -> None:
    """Refuse amounts of tiles in `sampling.quotas` of other classes than `names`, or beyond the batch.

    Raises:
        DatasetError: the message names the class, or the number of tiles.
    """
    for name in config.quotas:
        if name not in names:
            raise DatasetError("sampling.quotas", expected=f"a class of {', '.join(names)}", got=name)
    if batch is not None and (tiles := sum(config.quotas.values())) > batch:
        raise DatasetError(
            "sampling.quotas", expected=f"no more tiles in all than training.global_batch, {batch}", got=tiles
        )
