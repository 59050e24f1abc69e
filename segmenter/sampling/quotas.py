"""Quotas: numbers of tiles of each class promised to a step. Pure NumPy.

A quota is a number of tiles a step, at least 1. A step is promised ⌊quota⌋ or ⌈quota⌉ tiles of the class,
on average `quota`; it may hold more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        wish_K: tiles in a row, in 1/1024 of a tile; 1024 or more.
        lift_K: most uses of a tile of the class in an epoch, on average; None: only each tile's own limit.
    """

    wish_K: tuple[int, ...]
    lift_K: tuple[float | None, ...]

    @classmethod
    def of(cls, table: PartTable, batch: int, blocks: int, config: SamplingConfig) -> Wishes:
        """Return the wishes for the columns of a table.

        Args:
            batch: tiles of a row, of which `blocks` make a step.

        Raises:
            DatasetError: the recipe names an unknown class, or more tiles than a row has places for.
        """
        fixed = _by_hand(table, batch, blocks, config)
        odds_P = np.zeros(len(table.parts))
        if config.quota == "rarity":
            odds_P = rare_class_odds(table.counts_NP, config.min_pixels, config.rare_temperature)
        lift_P = [None if p in fixed else config.lift for p in range(len(table.parts))]
        return cls(tuple(_wished(odds_P, batch, fixed).tolist()), tuple(lift_P))

    def demand(self, columns: Sequence[int], holders_K: Ints, max_repeats: int | None) -> Demand:
        """Return the demand for some columns, given the number of tiles that hold each.

        A row never needs more tiles of a class than exist.
        """
        most = 1 + max_repeats if max_repeats is not None else _NO_LIMIT
        uses_K = [min(most, self.lift_K[c] or most) for c in columns]
        most_K = np.floor(np.array(uses_K) * holders_K).astype(np.int64)
        wish_K = np.array([self.wish_K[c] for c in columns], np.int64)
        return Demand(np.minimum(wish_K, holders_K * ONE), most_K)


def _by_hand(table: PartTable, batch: int, blocks: int, config: SamplingConfig) -> dict[int, int]:
    """Return tiles per row of the columns of a class in `sampling.quotas`; its parts share its tiles."""
    names = list(table.names or ())
    check_quotas(config, names, batch * blocks)
    fixed: dict[int, int] = {}
    for name, tiles in config.quotas.items():
        columns = [p for p, part in enumerate(table.parts) if part.class_id == names.index(name)]
        fixed |= dict.fromkeys(columns, -(-tiles // (blocks * max(1, len(columns)))))
    others = len(table.parts) - len(fixed)
    if fixed and sum(fixed.values()) + others > batch:
        raise DatasetError(_too_many(sum(fixed.values()), others, batch))
    return fixed


def check_quotas(config: SamplingConfig, names: Sequence[str], batch: int) -> None:
    """Refuse amounts of tiles in `sampling.quotas` for other classes than `names`, or beyond the batch.

    Raises:
        DatasetError: the message names the class, or the number of tiles.
    """
    for name in config.quotas:
        if name not in names:
            raise DatasetError(f"sampling.quotas: expected a class of {', '.join(names)}, got {name}")
    others, tiles = len(names) - len(config.quotas), sum(config.quotas.values())
    if config.quotas and tiles + others > batch:
        raise DatasetError(_too_many(tiles, others, batch))


def _too_many(tiles: int, others: int, batch: int) -> str:
    return (
        f"sampling.quotas: expected at most {max(0, batch - others)} tiles in all, beside one of each other "
        f"class in {batch} places, got {tiles}"
    )


def _wished(odds_K: NDArray[np.float64], batch: int, fixed: Mapping[int, int]) -> Ints:
    """Return (K,) tiles of each class that a row of `batch` places should hold, in 1/1024 of a tile.

    max(1, a · odds · batch), with the largest a ≤ 1 for which the sum fits into the row, as if each tile
    held one class. If a row has no more places than classes, 1 for each.

    Args:
        odds_K: probability of drawing each class; all 0: 1 for each.
        fixed: amounts of some classes by hand; they take precedence.
    """
    amount_K = np.full(len(odds_K), ONE, np.int64)
    amount_K[list(fixed)] = np.array(list(fixed.values()), np.int64) * ONE
    free_K = np.array([c not in fixed for c in range(len(odds_K))], bool)
    room = batch * ONE - int(amount_K[~free_K].sum())
    low, high, middle = 0.0, 1.0, 1.0
    for _ in range(40):
        tried_K = np.maximum(ONE, np.floor(middle * odds_K * batch * ONE)).astype(np.int64)
        if int(tried_K[free_K].sum()) <= room:
            low, amount_K[free_K] = middle, tried_K[free_K]
        else:
            high = middle
        middle = (low + high) / 2
    return amount_K
