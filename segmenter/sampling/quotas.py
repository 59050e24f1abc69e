"""Quotas: numbers of tiles of each class promised to a step. Pure NumPy.

A quota is a number of tiles a step, at least 1. A step is promised ⌊quota⌋ or ⌈quota⌉ tiles of the class,
on average `quota`; it may hold more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.config.sampling import SamplingConfig
from segmenter.sampling.demand import ONE, Demand
from segmenter.sampling.methods import rare_class_odds
from segmenter.sampling.strata import PartTable

Ints = NDArray[np.int64]

_NO_LIMIT = 1 << 20
"""Uses of a tile if repeats are unlimited."""


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
        lift: most uses of a column's tiles in an epoch, on average, if the odds ask for them.
        blocks: rows of a step.
    """

    class_P: tuple[int, ...]
    odds_P: tuple[float, ...]
    by_hand: tuple[tuple[int, int], ...]
    lift: float
    blocks: int

    @classmethod
    def of(cls, table: PartTable, blocks: int, config: SamplingConfig) -> Wishes:
        """Return the wishes for the columns of a table.

        Raises:
            DatasetError: the recipe names an unknown class.
        """
        names = list(table.names or ())
        check_quotas(config, names)
        odds_P = np.zeros(len(table.parts))
        if config.quota == "rarity":
            odds_P = rare_class_odds(table.counts_NP, config.min_pixels, config.rare_temperature)
        by_hand = tuple((names.index(name), tiles) for name, tiles in config.quotas.items())
        class_P = tuple(part.class_id for part in table.parts)
        return cls(class_P, tuple(odds_P.tolist()), by_hand, config.lift, blocks)

    def amounts(self, promised: Sequence[int], batch: int) -> tuple[Ints, Ints]:
        """Return the tiles of promised columns as wished, and as they fit into a row, in 1/1024 of a tile.

        By the odds, max(1, odds · batch). If the sum exceeds the row, as if each tile held one class, the
        amounts beyond 1 shrink in proportion: those by the odds first.
        """
        hand = dict(self.by_hand)
        class_P = np.array([self.class_P[p] for p in promised], np.int64)
        odds_P = np.array([self.odds_P[p] for p in promised])
        by_odds_P = np.floor(odds_P / max(odds_P.sum(), 1e-300) * batch * ONE).astype(np.int64)
        by_hand_P = np.array([c in hand for c in class_P.tolist()], bool)
        parts = {c: self.blocks * int((class_P == c).sum()) for c in hand}
        tiles_P = np.array([-(-hand.get(c, 0) // parts.get(c, 1)) for c in class_P.tolist()], np.int64)
        wished_P = np.maximum(ONE, np.where(by_hand_P, tiles_P * ONE, by_odds_P))
        fits_P, room = wished_P.copy(), max(0, batch - len(promised)) * ONE
        for chosen_P in (by_hand_P, ~by_hand_P):
            beyond_P = wished_P[chosen_P] - ONE
            if (total := int(beyond_P.sum())) > room:
                fits_P[chosen_P] = ONE + beyond_P * room // total
            room -= int((fits_P[chosen_P] - ONE).sum())
        return np.where(by_hand_P, wished_P, fits_P), fits_P

    def demand(
        self, fits_P: Ints, columns: Sequence[int], holders_P: Ints, max_repeats: int | None
    ) -> Demand:
        """Return the demand for columns with these amounts, held by so many tiles.

        A row never needs more tiles of a class than exist.
        """
        most = 1 + max_repeats if max_repeats is not None else _NO_LIMIT
        hand = dict(self.by_hand)
        uses_P = np.array([most if self.class_P[p] in hand else min(most, self.lift) for p in columns])
        return Demand(np.minimum(fits_P, holders_P * ONE), np.floor(uses_P * holders_P).astype(np.int64))


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
