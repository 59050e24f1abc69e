"""Forecast from the tiles' class counts: classes held by tiles, and expected content of random batches.

Independent of plans. It forecasts a batch drawn at random without replacement, as a shuffled epoch
draws it: exact by inclusion–exclusion, or simulated if there are too many classes for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError

_MOST_EXACT_CLASSES = 20
"""Inclusion–exclusion has 2^classes terms: a million take a tenth of a second, and a billion too long."""
_ORDERS = 4096
"""Random orders of a simulation: a standard error of at most 0.8 %."""
_START = 1024
"""Tiles of an order that are searched one by one; only rarer classes lie beyond."""
_LONGEST_PRODUCT = 1024
"""Largest batch whose hypergeometric ratios are multiplied out; beyond, logarithms are accurate enough."""
_ROUNDING = 1e-9
"""Tolerance for rounding of a computed probability; a share is reached within it."""

Wide = NDArray[np.longdouble]
"""64 bits of mantissa if the processor has them: the terms of a sum of 2^20 cancel each other."""


def holds(counts_NK: NDArray[np.integer], min_pixels: int) -> NDArray[np.bool_]:
    """Return a (tiles, classes) mask: a tile alone shows at least `min_pixels` pixels of a class."""
    return np.asarray(counts_NK >= min_pixels)


# ------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class ClassStatistics:
    """Frequency of the classes.

    Attributes:
        pixels_K: number of pixels of the class in all tiles; a pixel counts in every tile that has it.
        scenes_K: number of scenes with at least one pixel of the class in a tile.
        tiles_by_classes: (K + 1,) number of tiles that hold exactly 0, 1, … K classes.
        together_KK: number of tiles that hold both classes; on the diagonal `tiles_K`.
    """

    tiles_K: NDArray[np.int64]
    pixels_K: NDArray[np.int64]
    scenes_K: NDArray[np.int64]
    tiles_by_classes: NDArray[np.int64]
    together_KK: NDArray[np.int64]


def class_statistics(
    counts_NK: NDArray[np.int64], scene_N: NDArray[np.integer], min_pixels: int
) -> ClassStatistics:
    """Count tiles, pixels and scenes of each class, from (tiles, classes) pixel counts and tiles' scenes."""
    classes = counts_NK.shape[1]
    holds_NK = holds(counts_NK, min_pixels)
    together_KK = np.zeros((classes, classes), np.int64)
    for start in range(0, len(holds_NK), 1 << 16):  # as floats, for the fast product; bounded memory
        part = holds_NK[start : start + (1 << 16)].astype(np.float32)
        together_KK += (part.T @ part).astype(np.int64)
    scenes = int(scene_N.max()) + 1 if len(scene_N) else 0
    return ClassStatistics(
        tiles_K=holds_NK.sum(axis=0),
        pixels_K=counts_NK.sum(axis=0),
        scenes_K=(scene_pixels(counts_NK, scene_N, scenes) > 0).sum(axis=0),
        tiles_by_classes=np.bincount(holds_NK.sum(axis=1), minlength=classes + 1),
        together_KK=together_KK,
    )


def scene_pixels(
    counts_NK: NDArray[np.int64], scene_N: NDArray[np.integer], scenes: int
) -> NDArray[np.int64]:
    """Return (scenes, classes) sums of the tiles' counts."""
    total = np.zeros((scenes, counts_NK.shape[1]), np.int64)
    np.add.at(total, scene_N, counts_NK)
    return total


# --------------------------------------------------------------------------------------- forecast


@dataclass(frozen=True)
class Outlook:
    """Expected content of a random batch of `batch` tiles.

    Attributes:
        probability: that a batch holds all classes that occur.
        error: standard error of the probability; 0 if exact.
        expected_classes: mean number of classes in a batch; always exact.
    """

    batch: int
    probability: float
    error: float
    expected_classes: float


@dataclass(frozen=True)
class Forecast:
    """The outlook of random batches of any size.

    Attributes:
        classes: ids of the classes that occur: held by at least one tile.
    """

    method: Literal["exact", "simulation"]
    classes: tuple[int, ...]
    tiles: int
    _lacking_C: NDArray[np.int64]
    _law: _Law

    def outlook(self, batches: Sequence[int]) -> list[Outlook]:
        """Return the outlook for each batch size; sizes beyond the number of tiles count as all tiles.

        Expected classes: the sum over the classes of 1 − C(N − n, B) / C(N, B), where n of N tiles hold it.
        """
        sizes = [min(batch, self.tiles) for batch in batches]
        expected = (1 - _chance_to_avoid(self._lacking_C, self.tiles, sizes)).sum(axis=1)
        chances = self._law.chances(sizes)
        return [
            Outlook(batch, probability, error, float(classes))
            for batch, (probability, error), classes in zip(batches, chances, expected, strict=True)
        ]

    def batch_for(self, share: float) -> int:
        """Return the smallest batch that holds all classes with a probability of at least `share` (0 … 1)."""
        return self._law.batch_for(share)


def forecast(holds_NK: NDArray[np.bool_], *, seed: int = 0) -> Forecast:
    """Forecast the content of random batches, drawn from the tiles without replacement.

    Exact for up to 20 classes that occur, else from 4096 random orders of the tiles, drawn from `seed`.

    Raises:
        DatasetError: there are no tiles.
    """
    tiles = len(holds_NK)
    if tiles == 0:
        raise DatasetError(expected="at least one tile to tell the coverage of, there is none")
    present = np.flatnonzero(holds_NK.any(axis=0))
    there_NC = holds_NK[:, present]
    law: _Law
    method: Literal["exact", "simulation"]
    if len(present) <= _MOST_EXACT_CLASSES:
        method, law = "exact", _exact(there_NC)
    else:
        method, law = "simulation", _Simulated(_cover_times(there_NC, np.random.default_rng(seed)))
    return Forecast(method, tuple(map(int, present)), tiles, tiles - there_NC.sum(axis=0), law)


class _Law(Protocol):
    """Probability that a random batch holds all classes."""

    def chances(self, sizes: Sequence[int]) -> list[tuple[float, float]]:
        """Return the probability and its standard error for each size of 1 … tiles."""

    def batch_for(self, share: float) -> int:
        """Return the smallest batch size with at least probability `share`."""


@dataclass(frozen=True)
class _Exact:
    """Inclusion–exclusion over sets of classes, its terms grouped by the tiles that avoid the set.

    P(all held) = Σ over sets S of classes of (−1)^|S| · C(M_S, B) / C(N, B), with M_S the tiles that hold
    none of S. `avoid_M`: distinct values of M_S; `terms_M`: sums of their signs, as whole numbers.
    """

    tiles: int
    avoid_M: NDArray[np.int64]
    terms_M: NDArray[np.int64]

    def chances(self, sizes: Sequence[int]) -> list[tuple[float, float]]:
        return [(p, 0.0) for p in self._probabilities(_chance_to_avoid(self.avoid_M, self.tiles, sizes))]

    def batch_for(self, share: float) -> int:
        low, high = 1, self.tiles  # all tiles hold all classes that occur
        while low < high:
            middle = (low + high) // 2
            ratios = self._logarithms.ratios(self.avoid_M, middle)
            if self._probabilities(ratios[None])[0] >= share - _ROUNDING:
                high = middle
            else:
                low = middle + 1
        return low

    def _probabilities(self, ratios_BM: Wide) -> list[float]:
        sums = (ratios_BM * self.terms_M).sum(axis=1)
        return [float(min(max(value, 0), 1)) for value in sums]

    @cached_property
    def _logarithms(self) -> _LogFactorials:
        return _LogFactorials(self.tiles)


def _exact(there_NC: NDArray[np.bool_]) -> _Exact:
    tiles, classes = there_NC.shape
    sets = 1 << classes
    mask_N = there_NC @ (1 << np.arange(classes, dtype=np.int64))
    inside = np.bincount(mask_N, minlength=sets)  # tiles by exactly what they hold
    for c in range(classes):  # then, by what they hold at most: a sum over subsets, class by class
        halves = inside.reshape(-1, 2, 1 << c)
        halves[:, 1] += halves[:, 0]
    avoid = inside[::-1]  # a tile avoids S if what it holds is a subset of the other classes
    odd = np.bitwise_count(np.arange(sets, dtype=np.uint64)) % 2 == 1
    signs = np.bincount(avoid[~odd], minlength=tiles + 1) - np.bincount(avoid[odd], minlength=tiles + 1)
    avoid_M = np.flatnonzero(signs)
    return _Exact(tiles, avoid_M, signs[avoid_M])


def _chance_to_avoid(avoid_M: NDArray[np.int64], tiles: int, sizes: Sequence[int]) -> Wide:
    """Return (sizes, M) the probability C(M, B) / C(N, B) that B of N tiles are all among M given ones."""
    found: dict[int, Wide] = {}
    steps = sorted({size for size in sizes if size <= _LONGEST_PRODUCT})
    for size, ratios in zip(steps, _products(avoid_M, tiles, steps), strict=True):
        found[size] = ratios
    if len(steps) < len(set(sizes)):
        logarithms = _LogFactorials(tiles)
        found |= {size: logarithms.ratios(avoid_M, size) for size in set(sizes) - set(steps)}
    return np.array([found[size] for size in sizes], np.longdouble).reshape(len(sizes), len(avoid_M))


def _products(avoid_M: NDArray[np.int64], tiles: int, sizes: Sequence[int]) -> Iterator[Wide]:
    """Yield C(M, B) / C(N, B) for increasing B, as the product over i < B of (M − i) / (N − i)."""
    ratios, done = np.ones(len(avoid_M), np.longdouble), 0
    for size in sizes:
        for i in range(done, size):
            ratios *= np.maximum(avoid_M - i, 0)
            ratios /= tiles - i
        done = size
        yield ratios.copy()


class _LogFactorials:
    """ln 0! … ln N!, for ratios of any size in constant time."""

    def __init__(self, tiles: int) -> None:
        self._tiles = tiles
        self._table: Wide = np.zeros(tiles + 1, np.longdouble)
        np.cumsum(np.log(np.arange(1, tiles + 1, dtype=np.longdouble)), out=self._table[1:])

    def ratios(self, avoid_M: NDArray[np.int64], size: int) -> Wide:
        """Return C(M, B) / C(N, B); 0 where M < B."""
        table, rest = self._table, np.maximum(avoid_M - size, 0)
        logs = (table[avoid_M] - table[rest]) - (table[self._tiles] - table[self._tiles - size])
        return np.where(avoid_M >= size, np.exp(logs), 0)


@dataclass(frozen=True)
class _Simulated:
    """Number of tiles until all classes are seen, in random orders of the tiles."""

    times_R: NDArray[np.int64]

    def chances(self, sizes: Sequence[int]) -> list[tuple[float, float]]:
        orders = len(self.times_R)
        reached = np.searchsorted(np.sort(self.times_R), sizes, side="right")
        # Laplace's estimate in the error: none seen in 4096 orders is not the same as impossible.
        careful = (reached + 1) / (orders + 2)
        errors = np.sqrt(careful * (1 - careful) / orders)
        return [(float(k / orders), float(error)) for k, error in zip(reached, errors, strict=True)]

    def batch_for(self, share: float) -> int:
        enough = int(np.ceil(share * len(self.times_R) - _ROUNDING))
        return int(np.sort(self.times_R)[max(enough, 1) - 1])


def _cover_times(there_NC: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return (orders,) the number of tiles until all classes are seen, in each random order."""
    tiles = len(there_NC)
    words_NW = _pack_classes(there_NC)
    full_W = np.bitwise_or.reduce(words_NW, axis=0)
    start = min(_START, tiles)
    holders: dict[int, NDArray[np.int64]] = {}

    def beyond(missing: NDArray[np.int64]) -> int:
        """Return where the last missing class is first seen; all tiles of these lie beyond the start."""
        for c in missing:
            holders.setdefault(int(c), np.flatnonzero(there_NC[:, c]))
        lists = [holders[int(c)] for c in missing]
        theirs = np.unique(np.concatenate(lists))
        places = rng.choice(tiles - start, len(theirs), replace=False)
        return start + 1 + max(int(places[np.searchsorted(theirs, tiles_c)].min()) for tiles_c in lists)

    return np.array([_cover_time(there_NC, words_NW, full_W, start, beyond, rng) for _ in range(_ORDERS)])


def _cover_time(
    there_NC: NDArray[np.bool_],
    words_NW: NDArray[np.uint64],
    full_W: NDArray[np.uint64],
    start: int,
    beyond: Callable[[NDArray[np.int64]], int],
    rng: np.random.Generator,
) -> int:
    order = rng.choice(len(words_NW), start, replace=False)
    seen = np.bitwise_or.accumulate(words_NW[order], axis=0)
    complete = (seen == full_W).all(axis=1)
    if complete[-1]:
        return int(complete.argmax()) + 1
    return beyond(np.flatnonzero(~there_NC[order].any(axis=0)))


def _pack_classes(there_NC: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return the classes of each tile as bits of 64-bit words."""
    bytes_NB = np.packbits(there_NC, axis=1)
    spare = -bytes_NB.shape[1] % 8
    return np.ascontiguousarray(np.pad(bytes_NB, ((0, 0), (0, spare)))).view(np.uint64)
