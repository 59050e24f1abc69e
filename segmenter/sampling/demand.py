"""Demand of rows for tiles of each class, and a lower bound of its repeats. Pure NumPy.

Amounts are whole numbers of 1/1024 of a tile, so that all machines round alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.sampling.kinds import Kinds

Ints = NDArray[np.int64]

ONE = 1024
"""A tile, in the unit of amounts."""
_SCARCE = 9
"""Classes, those that lack most, of which all sets are searched for the least repeats."""


@dataclass(frozen=True)
class Demand:
    """Tiles that rows need of each class.

    Attributes:
        wish_K: tiles a row, in 1/1024 of a tile; at least 1024.
        most_K: most uses of the class's tiles in an epoch; one tile a row is needed even beyond it.
    """

    wish_K: Ints
    most_K: Ints

    @classmethod
    def presence(cls, classes: int) -> Demand:
        """Return the demand for one tile of each class in each row."""
        one_K = np.full(classes, ONE, np.int64)
        return cls(one_K, one_K)

    @property
    def of_one(self) -> bool:
        """True if no row needs more than one tile of a class."""
        return bool((self.wish_K <= ONE).all())

    def amount_K(self, rows: int) -> Ints:
        """Return (K,) tiles of each class that all `rows` rows together need."""
        return np.asarray(np.maximum(rows, np.minimum(self.wish_K * rows // ONE, self.most_K)))

    def shared_out(self, rows: int) -> NDArray[np.int32]:
        """Return (rows, K) tiles that each row needs; sums over the classes are as even as possible."""
        whole_K, over_K = np.divmod(self.amount_K(rows), rows)
        need_SK = np.tile(whole_K.astype(np.int32), (rows, 1))
        first = 0
        for c, over in enumerate(over_K.tolist()):
            need_SK[np.arange(first, first + over) % rows, c] += 1
            first += over
        return need_SK

    def lowered(self, part: int, parts: int) -> Demand:
        """Return the demand with `part` / `parts` of the tiles beyond one a row."""
        return Demand(ONE + (self.wish_K - ONE) * part // parts, self.most_K)


def repeat_limits(kinds: Kinds, max_repeats: int | None, rows: int) -> Ints:
    """Return the largest total of repeats of each kind: a tile is once in a row at most."""
    most = rows - 1 if max_repeats is None else min(max_repeats, rows - 1)
    return np.asarray(kinds.tiles_T * most)


def least_repeats(kinds: Kinds, amount_K: Ints, limit_T: Ints) -> int:
    """Return a lower bound of the repeated uses of tiles in any plan with these amounts.

    A set of classes lacks a number of uses in total; kinds that hold most of the set supply these first, each
    within its limit. The bound is the largest over all sets of the classes that lack most.

    Args:
        limit_T: most repeated uses of each kind.
    """
    lacking_K = np.maximum(0, amount_K - kinds.holders_K)
    scarce = [int(c) for c in np.argsort(-lacking_K, kind="stable")[:_SCARCE] if lacking_K[c]]
    code_T = sum((((kinds.codes_T >> c) & 1) << i for i, c in enumerate(scarce)), np.zeros_like(limit_T))
    room = np.bincount(code_T, weights=limit_T, minlength=1 << len(scarce))
    codes = np.arange(1 << len(scarce))
    held_XC = np.bitwise_count(codes[:, None] & codes)
    lacking_X = ((codes[:, None] >> np.arange(len(scarce))) & 1) @ lacking_K[scarce]
    uses_X = np.zeros(len(codes), np.int64)
    for number in range(len(scarce), 0, -1):
        most_X = np.where(held_XC == number, room, 0).sum(axis=1)
        now_X = np.minimum(most_X, -(-lacking_X // number)).astype(np.int64)
        uses_X += now_X
        lacking_X = np.maximum(0, lacking_X - number * now_X)
    return int(uses_X.max())


def fewest_rows(
    kinds: Kinds, demand: Demand, batch: int, multiple: int, max_repeats: int | None, most: int | None = None
) -> int:
    """Return the least number of rows with places for all tiles and least repeats; stop beyond `most`."""
    rows, enough = 0, -(-kinds.tiles // (batch * multiple)) * multiple
    while rows < enough and (most is None or rows <= most):
        rows = enough
        least = least_repeats(kinds, demand.amount_K(rows), repeat_limits(kinds, max_repeats, rows))
        enough = -(-(kinds.tiles + least) // (batch * multiple)) * multiple
    return rows
