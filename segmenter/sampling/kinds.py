"""Kinds of tile: the sets of classes that tiles hold, and the number of tiles of each kind. Pure NumPy.

Amounts of tiles that rows demand are whole numbers of 1/1024 of a tile, so that all machines round alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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

    def amount_K(self, rows: int) -> Ints:
        """Return (K,) tiles of each class that all `rows` rows together need."""
        return np.asarray(np.maximum(rows, np.minimum(self.wish_K * rows // ONE, self.most_K)))

    def share_out(self, rows: int) -> NDArray[np.int32]:
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


@dataclass(frozen=True)
class RowRules:
    """Rules of the rows of a plan.

    Attributes:
        batch: tiles of a row.
        multiple: the number of rows is a multiple of it.
        max_repeats: coverage uses a tile in at most 1 + `max_repeats` rows; None: in any number.
    """

    batch: int
    multiple: int
    max_repeats: int | None


def repeat_limits(kinds: Kinds, max_repeats: int | None, rows: int) -> Ints:
    """Return the largest total of repeats of each kind: a tile is once in a row at most."""
    most = rows if max_repeats is None else min(1 + max_repeats, rows)
    return np.asarray(np.maximum(0, kinds.different_T * most - kinds.tiles_T))


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


def fewest_rows(kinds: Kinds, demand: Demand, rules: RowRules, most: int | None = None) -> int:
    """Return the least number of rows with places for all tiles and least repeats; stop beyond `most`."""
    multiple, places = rules.multiple, rules.batch * rules.multiple
    rows, enough = 0, -(-kinds.tiles // places) * multiple
    while rows < enough and (most is None or rows <= most):
        rows = enough
        least = least_repeats(kinds, demand.amount_K(rows), repeat_limits(kinds, rules.max_repeats, rows))
        enough = -(-(kinds.tiles + least) // places) * multiple
    return rows


Ints = NDArray[np.int64]

MOST_CLASSES = 62
"""Sets of classes are bits of a signed 64-bit integer."""
TABLE_CLASSES = 20
"""Classes up to which a table over all their sets fits into memory: a million entries."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Kinds:
    """The kinds of tile of a table.

    Attributes:
        codes_T: classes of each kind as bits; all different.
        tiles_T: tiles of each kind, each counted as often as every epoch uses it.
        classes: number of classes (bits in use); each is held by at least one tile.
        different_T: different tiles of each kind.
    """

    codes_T: Ints
    tiles_T: Ints
    classes: int
    different_T: Ints

    def __len__(self) -> int:
        return len(self.codes_T)

    @property
    def everything(self) -> int:
        """All classes, as bits."""
        return (1 << self.classes) - 1

    @cached_property
    def tiles(self) -> int:
        """Number of tiles."""
        return int(self.tiles_T.sum())

    @cached_property
    def holders_K(self) -> Ints:
        """(K,) number of tiles that hold each class, counted as in `tiles_T`."""
        return holders(self.codes_T, self.tiles_T, self.classes)

    @cached_property
    def different_K(self) -> Ints:
        """(K,) number of different tiles that hold each class."""
        return holders(self.codes_T, self.different_T, self.classes)

    @cached_property
    def scarcest(self) -> int:
        """Number of tiles that hold the scarcest class; all tiles if there are no classes."""
        return int(self.holders_K.min()) if self.classes else self.tiles

    def holds_both(self, a: int, b: int) -> bool:
        """Return whether a kind holds both classes."""
        both = (1 << a) | (1 << b)
        return bool(((self.codes_T & both) == both).any())


def holders(codes_T: Ints, tiles_T: Ints, classes: int) -> Ints:
    """Return (K,) the number of tiles that hold each class."""
    bits = (codes_T[:, None] >> np.arange(classes)) & 1
    return np.asarray(tiles_T @ bits, np.int64)


def class_codes(counts_NK: NDArray[np.integer], min_pixels: int) -> Ints | NDArray[np.uint16]:
    """Return (N,) the set of classes of each tile, as bits; uint16 for up to 16 classes.

    Raises:
        ValueError: there are more than 62 classes.
    """
    tiles, classes = counts_NK.shape
    if classes > MOST_CLASSES:
        raise ValueError(f"expected at most {MOST_CLASSES} classes, got {classes}")
    width = 2 if classes <= 16 else 8
    packed = np.zeros((tiles, width), np.uint8)
    for first in range(0, tiles, _CHUNK):  # a part at a time stays in the processor's cache
        part = packed[first : first + _CHUNK]
        bits = np.packbits(counts_NK[first : first + _CHUNK] >= min_pixels, axis=1, bitorder="little")
        part[:, : bits.shape[1]] = bits
    return packed.reshape(-1).view("<u2" if width == 2 else "<i8")


def number_kinds(codes_N: NDArray[np.integer]) -> tuple[Ints, NDArray[np.integer], Ints]:
    """Return codes of the kinds, kind of each tile, and number of tiles of each kind."""
    if codes_N.dtype != np.uint16:
        codes_T, kind_N, tiles_T = np.unique(codes_N, return_inverse=True, return_counts=True)
        return codes_T.astype(np.int64), kind_N.reshape(-1), tiles_T.astype(np.int64)
    every = np.zeros(1 << 16, np.int64)
    for first in range(0, len(codes_N), _CHUNK * 16):
        every += np.bincount(codes_N[first : first + _CHUNK * 16], minlength=1 << 16)
    codes_T = np.flatnonzero(every)
    number = np.zeros(1 << 16, np.uint16)
    number[codes_T] = np.arange(len(codes_T))
    return codes_T, number[codes_N], every[codes_T]


def project_kinds(
    codes_T: Ints, tiles_T: Ints, classes: Sequence[int], uses_T: Ints | None = None
) -> tuple[Kinds, Ints]:
    """Return the kinds restricted to `classes` (bits 0, 1, …), and the index of each old kind among them.

    Args:
        uses_T: uses of each old kind's tiles in every epoch; None: one of each tile.
    """
    codes = np.zeros(len(codes_T), np.int64)
    for bit, c in enumerate(classes):
        codes |= ((codes_T >> c) & 1) << bit
    fresh, kind_T = np.unique(codes, return_inverse=True)
    kind_T = kind_T.reshape(-1)
    different, tiles = (
        np.bincount(kind_T, weights=each, minlength=len(fresh)).astype(np.int64)
        for each in (tiles_T, tiles_T if uses_T is None else uses_T)
    )
    return Kinds(fresh, tiles, len(classes), different), kind_T


def cover_sizes(kinds: Kinds) -> NDArray[np.int8]:
    """Return (2**K,) the fewest tiles that together hold each set of classes: an exact set cover.

    Raises:
        ValueError: there are more than 20 classes.
    """
    if kinds.classes > TABLE_CLASSES:
        raise ValueError(f"expected at most {TABLE_CLASSES} classes, got {kinds.classes}")
    size = np.full(1 << kinds.classes, np.iinfo(np.int8).max, np.int8)
    size[0] = 0
    best = _maximal(kinds.codes_T, kinds.classes)
    unions = np.zeros(1, np.int64)
    number = 0
    while size[-1] > number:
        number += 1
        reached = np.zeros(len(size), bool)
        for first in range(0, len(unions), 1024):
            reached[(unions[first : first + 1024, None] | best[None, :]).reshape(-1)] = True
        unions = np.flatnonzero(reached)
        for k in range(kinds.classes):  # what a set of tiles holds, it holds in part, too
            halves = reached.reshape(-1, 2, 1 << k)
            halves[:, 0] |= halves[:, 1]
        size[reached & (size > number)] = number
    return size


def _maximal(codes_T: Ints, classes: int) -> Ints:
    """Return the kinds whose set of classes is not part of another kind's."""
    supersets = np.zeros(1 << classes, np.int32)
    supersets[codes_T] = 1
    for k in range(classes):
        halves = supersets.reshape(-1, 2, 1 << k)
        halves[:, 0] += halves[:, 1]
    return codes_T[supersets[codes_T] == 1]


def smallest_batch(kinds: Kinds) -> int:
    """Return the smallest row size with which every tile fits into a row that holds all classes.

    With more than 20 classes this is not searched: the number of classes plus one always suffices.
    """
    if kinds.classes > TABLE_CLASSES:
        return kinds.classes + 1
    sizes = cover_sizes(kinds)
    return 1 + int(sizes[kinds.everything & ~kinds.codes_T].max())


def narrow(numbers: NDArray[np.integer], end: int) -> NDArray[np.integer]:
    """Return whole numbers from 0 to `end` − 1 in 16 bits, if they fit: stable sorts are linear then."""
    return numbers.astype(np.uint16) if end <= 1 << 16 else numbers


def pick(kinds: Ints, tiles: Ints, number: int, rng: np.random.Generator) -> Ints:
    """Draw the kinds of `number` tiles at random, without replacement."""
    ends = np.cumsum(tiles)
    if number == ends[-1]:
        return rng.permutation(np.repeat(kinds, tiles))
    drawn = rng.choice(int(ends[-1]), number, replace=False)
    return kinds[np.searchsorted(ends, drawn, side="right")]


def water_fill(number: int, tiles: Ints, before: Ints, limit: Ints, rng: np.random.Generator) -> Ints:
    """Distribute `number` repeats over kinds so that repeats per tile are as even as possible.

    Args:
        tiles: number of tiles of each kind.
        before: repeats already given to each kind.
        limit: largest total of repeats of each kind; `number` more must fit.
    """
    low, high = 0.0, float((before.sum() + number) / max(1, tiles.min()) + 1)
    for _ in range(64):
        middle = (low + high) / 2
        if _fill_level(middle, tiles, before, limit).sum() <= number:
            low = middle
        else:
            high = middle
    chosen = _fill_level(low, tiles, before, limit)
    while (left := number - int(chosen.sum())) > 0:
        room = np.flatnonzero(before + chosen < limit)
        level = (before + chosen)[room] / tiles[room]
        order = room[np.lexsort((rng.random(len(room)), np.floor(level * 1e9)))]
        chosen[order[:left]] += 1
    return chosen


def _fill_level(level: float, tiles: Ints, before: Ints, limit: Ints) -> Ints:
    return np.maximum(0, np.minimum(np.floor(level * tiles).astype(np.int64), limit) - before)
