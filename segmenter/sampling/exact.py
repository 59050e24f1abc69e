"""Optimal plan of a small table, by dynamic programming over the remaining tiles. Pure NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from segmenter.sampling.kinds import Kinds, RowRules

_CELLS = 4_000_000
"""Table entries over all rows, for memory."""
_WORK = 100_000_000
"""Table entries over all rows and sets: a second at most."""
_TRIED = 20_000
"""Sets of kinds searched at most; four classes have at most 49 minimal sets, five 462."""
_NEVER = np.int32(1 << 20)


def exact_rows(
    kinds: Kinds, rules: RowRules, fewest: int, most: int, rng: np.random.Generator
) -> tuple[int, list[tuple[int, ...]]] | None:
    """Return the fewest steps and, with the fewest repeats for these, the kinds that each row needs.

    None if the table is too large to search. Ties are broken at random.

    The least number of repeats for s rows follows from that for s − 1 rows: a row takes a minimal set of
    kinds that holds all classes; an unused tile of a kind costs nothing, a used one is a repeat.
    """
    search = _Search(kinds, rules.max_repeats, most)
    cells = search.cells * (most + 1)
    sets = _minimal_sets(kinds, rules.batch) if cells <= _CELLS else None
    if sets is None or cells * len(sets) > _WORK:
        return None
    tables = [np.zeros(search.shape, np.int32)]
    for steps in range(1, most + 1):
        tables.append(search.one_more_row(tables[-1], sets))
        repeats = int(tables[-1][search.start])
        if steps >= fewest and steps % rules.multiple == 0 and kinds.tiles + repeats <= steps * rules.batch:
            return steps, search.trace(tables, sets, rng)
    return None


def _minimal_sets(kinds: Kinds, batch: int) -> list[tuple[int, ...]] | None:
    """Return all minimal sets of at most `batch` kinds that hold all classes; None if there are too many."""
    codes = [int(code) for code in kinds.codes_T]
    found: set[tuple[int, ...]] = set()
    waiting: list[tuple[int, ...]] = [()]
    for _ in range(_TRIED):
        if not waiting:
            return sorted(found)
        chosen = waiting.pop()
        missing = kinds.everything & ~_union(codes, chosen)
        if not missing:
            found.add(tuple(sorted(chosen)))
        elif len(chosen) < batch:
            lowest = missing & -missing  # every set has a kind for the lowest class that is missing
            wider = [(*chosen, t) for t, code in enumerate(codes) if code & lowest]
            waiting += [one for one in wider if _each_needed(codes, one)]
    return None


def _union(codes: list[int], chosen: Iterable[int]) -> int:
    return reduce(or_, (codes[t] for t in chosen), 0)


def _each_needed(codes: list[int], chosen: tuple[int, ...]) -> bool:
    """Return whether each chosen kind has a class that no other has; further kinds cannot change a False."""
    return all(codes[t] & ~_union(codes, (u for u in chosen if u != t)) for t in chosen)


class _Search:
    """Tables indexed by the remaining uses of each kind."""

    def __init__(self, kinds: Kinds, max_repeats: int | None, most: int) -> None:
        """Store the kinds and the limit of uses of each kind in `most` rows."""
        self._paid: list[int] = []
        shape = []
        for code, tiles in zip(kinds.codes_T.tolist(), kinds.tiles_T.tolist(), strict=True):
            limit = tiles * (1 + max_repeats) if max_repeats is not None else most
            if not code:  # of no use for coverage
                shape.append(1)
                self._paid.append(-1)
            elif limit < most:  # the limit may be met: each use counts, the last ones are repeats
                shape.append(limit + 1)
                self._paid.append(limit - tiles)
            else:  # a place below the end means: no unused tile is left, and repeats go on for ever
                shape.append(min(tiles, most) + 1)
                self._paid.append(-1)
        self.shape = tuple(shape)
        self.start = tuple(n - 1 for n in shape)
        self.cells = math.prod(shape)

    def one_more_row(self, table: NDArray[np.int32], sets: list[tuple[int, ...]]) -> NDArray[np.int32]:
        best = np.full(self.shape, _NEVER, np.int32)
        for values in self._repeats_after(table, sets):
            np.minimum(best, values, out=best)
        return best

    def _repeats_after(
        self, table: NDArray[np.int32], sets: list[tuple[int, ...]]
    ) -> Iterator[NDArray[np.int32]]:
        """Yield the total repeats if the next row takes each set; common prefixes are computed once."""
        stack: list[tuple[int, NDArray[np.int32]]] = []
        before: tuple[int, ...] = ()
        for chosen in sets:
            same = 0
            while same < min(len(before), len(chosen)) and before[same] == chosen[same]:
                same += 1
            del stack[same:]
            for kind in chosen[same:]:
                stack.append((kind, self._use(stack[-1][1] if stack else table, kind)))
            before = chosen
            yield stack[-1][1] if stack else table

    def _use(self, table: NDArray[np.int32], axis: int) -> NDArray[np.int32]:
        """Return the total repeats after one more use of a kind."""
        moved = np.moveaxis(table, axis, 0)
        used = np.empty_like(moved)
        used[1:] = moved[:-1]
        paid = self._paid[axis]
        if paid < 0:
            used[0] = moved[0] + 1
        else:
            used[1 : paid + 1] += 1
            used[0] = _NEVER
        return np.moveaxis(used, 0, axis)

    def trace(
        self, tables: list[NDArray[np.int32]], sets: list[tuple[int, ...]], rng: np.random.Generator
    ) -> list[tuple[int, ...]]:
        """Return the sets of kinds of the rows of an optimal plan."""
        left, rows = list(self.start), []
        for table in reversed(tables[:-1]):
            results = [self._step(table, left, chosen) for chosen in sets]
            least = min(repeats for repeats, _ in results)
            best = [i for i, (repeats, _) in enumerate(results) if repeats == least]
            number = int(rng.choice(best))
            rows.append(sets[number])
            left = results[number][1]
        return rows

    def _step(
        self, table: NDArray[np.int32], left: list[int], chosen: tuple[int, ...]
    ) -> tuple[int, list[int]]:
        after, repeats = list(left), 0
        for kind in chosen:
            paid = self._paid[kind]
            if paid < 0:
                repeats += after[kind] == 0
                after[kind] = max(0, after[kind] - 1)
            else:
                if after[kind] == 0:
                    return int(_NEVER), after
                repeats += after[kind] <= paid
                after[kind] -= 1
        return repeats + int(table[tuple(after)]), after
