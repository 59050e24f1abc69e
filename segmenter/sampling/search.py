"""Search for the kinds of tile that each row of a plan needs to hold every class. Pure NumPy.

Tiles that hold the same classes are interchangeable: they are planned together, as one *kind*, a set of
classes as bits of an integer. The cost depends on the number of kinds and rows, hardly on that of tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from segmenter.sampling.exact import exact_rows
from segmenter.sampling.kinds import (
    ONE,
    Demand,
    Kinds,
    RowRules,
    cover_sizes,
    fewest_rows,
    least_repeats,
    narrow,
    pick,
    repeat_limits,
    water_fill,
)

Ints = NDArray[np.int64]

_PAIRS = 1 << 16
"""Pairs of row states and kinds that are matched one by one, at most."""
_TRIES = 12
"""Runs of the greedy search, each with other random choices, if none is proven the best."""
_TRIES_SIZE = 50_000
"""Rows × kinds up to which `_TRIES` runs are made; beyond, two: one repeat hardly matters there."""
_EXACT_REPEATS = 12
"""Classes up to which the repeats of a row are a smallest set cover; beyond, a greedy one."""


@dataclass(frozen=True)
class RequiredKinds:
    """Kinds required in each row, as parallel arrays.

    Attributes:
        row_P, kind_P: each entry puts a tile of a kind into a row.
        repeat_P: True for a repeated use of a tile; the other entries use each tile at most once.
        bound: lower bound of the repeats for that many steps: the largest `steps − tiles with c`; with a
            demand, `least_repeats`.
        proven: no plan has fewer steps, nor as many steps and fewer repeats.
    """

    steps: int
    row_P: Ints
    kind_P: Ints
    repeat_P: NDArray[np.bool_]
    bound: int
    proven: bool

    @property
    def repeats(self) -> int:
        """Number of repeated uses of tiles."""
        return int(self.repeat_P.sum())


class TooRareError(Exception):
    """Classes (as bits) that cannot be in every row within the limit of repeats."""

    def __init__(self, lacking: int) -> None:
        super().__init__(lacking)
        self.lacking = lacking


def cover(
    kinds: Kinds,
    rules: RowRules,
    rng: np.random.Generator,
    demand: Demand | None = None,
    most: int | None = None,
) -> RequiredKinds:
    """Return a cover with every class in each row: the fewest rows, then the fewest repeats.

    `demand`: tiles of each class, together at most a batch a row; None: one of each. With it there are at
    most `most` rows.

    Raises:
        TooRareError: some class cannot be in every row within the limits.
    """
    if demand is None:
        found = _of_presence(kinds, rules, rng)
        amounts = Demand.presence(kinds.classes)
        limit_T = repeat_limits(kinds, rules.max_repeats, found.steps)
        bound = least_repeats(kinds, amounts.amount_K(found.steps), limit_T)
        found = replace(found, bound=bound)
        if found.proven or found.repeats > bound:
            return found
        return replace(found, proven=found.steps == fewest_rows(kinds, amounts, rules))
    fewest = fewest_rows(kinds, demand, rules, most)
    if most is not None and fewest > most:
        raise TooRareError(0)
    found = _greedy_cover(kinds, rules, fewest, rng, demand)
    if most is not None and found.steps > most:
        raise TooRareError(0)
    return replace(found, proven=found.steps == fewest and found.repeats == found.bound)


def _of_presence(kinds: Kinds, rules: RowRules, rng: np.random.Generator) -> RequiredKinds:
    """Return a cover with one tile of each class in each row."""
    fewest = _fewest_steps(kinds, rules.batch, rules.multiple)
    found = _greedy_cover(kinds, rules, fewest, rng)
    if found.steps == fewest and found.repeats == found.bound:
        return replace(found, proven=True)
    exact = exact_rows(kinds, rules, fewest, found.steps, rng)
    if exact is None:
        return found
    steps, rows = exact
    row_P = np.repeat(np.arange(steps), [len(row) for row in rows])
    kind_P = np.array([kind for row in rows for kind in row], np.int64)
    bound = _bound(kinds, steps)
    return RequiredKinds(steps, row_P, kind_P, _beyond_first(kind_P, kinds.tiles_T), bound, proven=True)


def _beyond_first(kind_P: Ints, tiles_T: Ints) -> NDArray[np.bool_]:
    """Return a mask of entries that come after all tiles of their kind have been used once."""
    order = np.argsort(narrow(kind_P, len(tiles_T)), kind="stable")
    uses_T = np.bincount(kind_P, minlength=len(tiles_T))
    number = np.arange(len(kind_P)) - np.repeat(np.cumsum(uses_T) - uses_T, uses_T)
    beyond = np.empty(len(kind_P), bool)
    beyond[order] = number >= tiles_T[kind_P[order]]
    return beyond


def _bound(kinds: Kinds, steps: int) -> int:
    return max(0, steps - kinds.scarcest) if kinds.classes else 0


def _by_row(found: RequiredKinds, kinds: Kinds) -> RequiredKinds:
    """Return a cover with its entries sorted by row, so that a kind's tiles are used in turn."""
    order = np.argsort(found.row_P, kind="stable")
    kind_P = found.kind_P[order]
    return replace(
        found, row_P=found.row_P[order], kind_P=kind_P, repeat_P=_beyond_first(kind_P, kinds.tiles_T)
    )


def _fewest_steps(kinds: Kinds, batch: int, multiple: int) -> int:
    """Return the least number of rows with places for all tiles and for the lower bound of repeats."""
    tiles = kinds.tiles
    steps = -(-tiles // batch)
    if batch > 1 and kinds.scarcest < steps:
        steps = max(steps, -(-(tiles - kinds.scarcest) // (batch - 1)))
    return -(-steps // multiple) * multiple


def _greedy_cover(
    kinds: Kinds, rules: RowRules, steps: int, rng: np.random.Generator, demand: Demand | None = None
) -> RequiredKinds:
    """Return a cover of few rows and repeats: the best of several greedy runs."""
    batch, multiple = rules.batch, rules.multiple
    sizes = _sizes(kinds, batch)
    most_in_row = int(demand.wish_K.max()) // ONE if demand else 1
    while True:
        best: RequiredKinds | None = None
        refusal: TooRareError | None = None
        for number in range(_TRIES if steps * len(kinds) * most_in_row <= _TRIES_SIZE else 2):
            try:
                search = _Greedy(kinds, rules, steps, sizes, rng, demand)
                found = search.cover(early=number % 2 == 1)
                found = _by_row(found, kinds) if demand else _trim_rows(found, kinds, batch, multiple)
            except TooRareError as error:
                refusal = error
                continue
            if best is None or (found.steps, found.repeats) < (best.steps, best.repeats):
                best = found
            if best.repeats == best.bound:
                break
        if best is None:
            assert refusal is not None
            raise refusal
        if kinds.tiles + best.repeats <= best.steps * batch:
            return best
        steps = max(steps + multiple, -(-(kinds.tiles + best.repeats) // (batch * multiple)) * multiple)


def _trim_rows(found: RequiredKinds, kinds: Kinds, batch: int, multiple: int) -> RequiredKinds:
    """Drop surplus rows, those with most repeats first; their other tiles go to places of the rest."""
    while (steps := -(-(kinds.tiles + found.repeats) // (batch * multiple)) * multiple) < found.steps:
        again_S = np.bincount(found.row_P, weights=found.repeat_P, minlength=found.steps)
        kept_S = np.zeros(found.steps, bool)
        kept_S[np.argsort(again_S, kind="stable")[:steps]] = True
        entry_P = kept_S[found.row_P]
        row_P, kind_P = (np.cumsum(kept_S) - 1)[found.row_P[entry_P]], found.kind_P[entry_P]
        again_P = _beyond_first(kind_P, kinds.tiles_T)
        found = RequiredKinds(steps, row_P, kind_P, again_P, _bound(kinds, steps), proven=False)
    return found


def _sizes(kinds: Kinds, batch: int) -> NDArray[np.int8] | None:
    """Return the smallest number of tiles for each set of classes; None if too expensive."""
    crowded = batch < kinds.classes
    return cover_sizes(kinds) if crowded or kinds.classes <= _EXACT_REPEATS else None


class _Greedy:
    """Greedy run: for the scarcest class first, each row that lacks it gets the tile that wastes least."""

    def __init__(
        self,
        kinds: Kinds,
        rules: RowRules,
        steps: int,
        sizes: NDArray[np.int8] | None,
        rng: np.random.Generator,
        demand: Demand | None,
    ) -> None:
        batch, max_repeats = rules.batch, rules.max_repeats
        self._kinds, self._batch, self._steps, self._sizes, self._rng = kinds, batch, steps, sizes, rng
        self._crowded = batch < kinds.classes
        # What rows still need of each class; without a demand the bits of `_lack_S` say it all.
        self._need_SK = demand.share_out(steps) if demand else None
        self._holds_TK = ((kinds.codes_T[:, None] >> np.arange(kinds.classes)) & 1).astype(np.int32)
        amount_K = demand.amount_K(steps) if demand else np.full(kinds.classes, steps)
        self._lack_S = np.full(steps, kinds.everything, np.int64)
        self._used_S = np.zeros(steps, np.int64)
        self._free_T = kinds.tiles_T.copy()
        self._again_T = np.zeros(len(kinds), np.int64)
        none = 1 << 40  # more than there can be; a sum of some still fits
        self._limit_T = kinds.tiles_T * max_repeats if max_repeats is not None else np.full(len(kinds), none)
        if demand:
            self._limit_T = repeat_limits(kinds, max_repeats, steps)
        self._amount_K = amount_K
        self._bound = least_repeats(kinds, amount_K, self._limit_T) if demand else _bound(kinds, steps)
        # A class with tiles for twice the rows is not worth saving.
        self._weight_K = np.clip(2 - kinds.holders_K / amount_K, 0, 1)
        self._entries: list[tuple[Ints, Ints, bool]] = []
        if demand:
            self._stock_up()

    def cover(self, *, early: bool) -> RequiredKinds:
        """Return the kinds that rows need; `early`: repeat a class as soon as its tiles are used up.

        Early repeats may also supply the next scarce classes; late ones can serve several remaining needs
        at once. Which way needs fewer repeats depends on the table.
        """
        for c in np.argsort(self._kinds.holders_K / self._amount_K, kind="stable"):
            for _ in range(self._rounds(int(c))):
                self._first_uses(int(c))
                if early and self._kinds.holders_K[c] < self._amount_K[c]:
                    self._early_repeats(int(c))
        while (self._lack_S != 0).any():
            self._complete()
        row_P = np.concatenate([rows for rows, _, _ in self._entries] or [np.empty(0, np.int64)])
        kind_P = np.concatenate([kinds for _, kinds, _ in self._entries] or [np.empty(0, np.int64)])
        repeat_P = np.repeat(
            np.array([again for _, _, again in self._entries], bool), [len(r) for r, _, _ in self._entries]
        )
        return RequiredKinds(self._steps, row_P, kind_P, repeat_P, self._bound, proven=False)

    def _stock_up(self) -> None:
        """Add the repeats that amounts require to kinds' free uses, those with most lacking classes first."""
        lacking_K = np.maximum(0, self._amount_K - self._kinds.holders_K)
        while (lacking_K > 0).any():
            lacks = int((lacking_K > 0) @ (1 << np.arange(len(lacking_K))))
            code_T = np.where(self._again_T < self._limit_T, self._kinds.codes_T & lacks, 0)
            gain_T = np.bitwise_count(code_T)
            if not gain_T.max():
                raise TooRareError(lacks)
            codes = np.unique(code_T[gain_T == gain_T.max()])
            least = [
                int(lacking_K[holds].min())
                for holds in ((codes[:, None] >> np.arange(len(lacking_K))) & 1).astype(bool)
            ]
            best = int(np.argmax(least))
            same = np.flatnonzero(code_T == codes[best])
            room = self._limit_T[same] - self._again_T[same]
            number = min(least[best], int(room.sum()))
            again = water_fill(
                number, self._kinds.tiles_T[same], self._again_T[same], self._limit_T[same], self._rng
            )
            self._again_T[same] += again
            self._free_T[same] += again
            lacking_K -= again @ self._holds_TK[same]

    def _rounds(self, c: int) -> int:
        return 1 if self._need_SK is None else int(self._need_SK[:, c].max())

    def _put(self, rows: Ints, kinds: Ints, *, again: bool) -> None:
        """Put one tile of each kind into the row at the same index; the rows are distinct."""
        self._entries.append((rows, kinds, again))
        counter = self._again_T if again else self._free_T
        counter += np.bincount(kinds, minlength=len(counter)) * (1 if again else -1)
        if self._need_SK is None:
            self._lack_S[rows] &= ~self._kinds.codes_T[kinds]
        else:
            need = self._need_SK[rows] - self._holds_TK[kinds]
            self._need_SK[rows] = need
            self._lack_S[rows] = (need > 0) @ (1 << np.arange(self._kinds.classes))
        self._used_S[rows] += 1

    # ------------------------------------------------------------------------------ first uses

    def _first_uses(self, c: int) -> None:
        """Put unused tiles with class `c` into rows that lack it, at most one a row."""
        bit = 1 << c
        rows = self._rng.permutation(np.flatnonzero(self._lack_S & bit))
        kinds = np.flatnonzero((self._kinds.codes_T & bit != 0) & (self._free_T > 0))
        if not len(rows) or not len(kinds):
            return
        mask = self._mask(c, kinds, rows)
        row_keys, row_group = np.unique(self._row_key(rows, mask), return_inverse=True)
        kind_keys, kind_group = np.unique(self._kinds.codes_T[kinds] & mask, return_inverse=True)
        rows_of = _members(rows, row_group, len(row_keys))
        kinds_of = _members(kinds, kind_group, len(kind_keys))
        score = self._scores(c, row_keys, kind_keys)
        for g, t, number in _matches(
            score, [len(r) for r in rows_of], [int(self._free_T[k].sum()) for k in kinds_of], self._rng
        ):
            chosen, rows_of[g] = rows_of[g][:number], rows_of[g][number:]
            picked = pick(kinds_of[t], self._free_T[kinds_of[t]], number, self._rng)
            self._put(chosen, picked, again=False)

    def _row_key(self, rows: Ints, mask: int) -> Ints:
        """Return a key for each row: its missing classes and, if places are scarce, its number of tiles."""
        key = self._lack_S[rows] & mask
        return key * (self._batch + 1) + self._used_S[rows] if self._crowded else key

    def _mask(self, c: int, kinds: Ints, rows: Ints) -> int:
        """Return the classes (as bits) that matter when rows and kinds are matched."""
        if self._crowded:
            return self._kinds.everything
        scarce = [int(k) for k in np.argsort(self._kinds.holders_K) if self._weight_K[k] > 0 and k != c]
        while scarce:
            mask = sum(1 << k for k in scarce)
            states = len(np.unique(self._lack_S[rows] & mask))
            if states * len(np.unique(self._kinds.codes_T[kinds] & mask)) <= _PAIRS:
                return mask
            scarce.pop()
        return 0

    def _scores(self, c: int, row_keys: Ints, kind_keys: Ints) -> NDArray[np.float64]:
        """Return (row states, kinds) a row's gain in scarce classes, minus those that it already has.

        Rows that lack another class with too few tiles come last: the repeat that supplies that class may
        supply this one too.
        """
        lack = row_keys // (self._batch + 1) if self._crowded else row_keys
        used = row_keys % (self._batch + 1) if self._crowded else np.zeros_like(row_keys)
        score = np.zeros((len(row_keys), len(kind_keys)))
        for k in np.flatnonzero(self._weight_K):
            lacks, has = (lack >> k) & 1, (kind_keys >> k) & 1
            if k != c:
                score += self._weight_K[k] * np.outer(2 * lacks - 1, has)
                if self._kinds.holders_K[k] < self._amount_K[k] and self._kinds.holds_both(c, int(k)):
                    score -= 0.5 * np.outer(lacks, 1 - has)
        if self._crowded:
            assert self._sizes is not None
            after = self._sizes[lack[:, None] & ~kind_keys[None, :]]
            score[after > (self._batch - used - 1)[:, None]] = -np.inf
        return score

    # ------------------------------------------------------------------------------ repeats

    def _complete(self) -> None:
        """Give each incomplete row the tile that helps most, an unused one if possible."""
        lacking = self._rng.permutation(np.flatnonzero(self._lack_S))
        states, group = np.unique(self._lack_S[lacking], return_inverse=True)
        rows_of = _members(lacking, group, len(states))
        useful = [self._useful(int(state)) for state in states]
        # Who has least to choose from chooses first.
        choice = [int(self._kinds.tiles_T[kinds].sum()) for kinds in useful]
        for g in np.argsort(choice, kind="stable"):
            rows, kinds = rows_of[g], useful[g]
            unused = self._free_T[kinds]
            number = min(len(rows), int(unused.sum()))
            if number:
                self._put(rows[:number], pick(kinds, unused, number, self._rng), again=False)
            left = rows[number:]
            if len(left):
                self._repeat(int(states[g]), left, kinds)

    def _early_repeats(self, c: int) -> None:
        """Put class `c` into rows that lack it, by kinds with most of the other scarce classes."""
        rows = self._rng.permutation(np.flatnonzero(self._lack_S & (1 << c)))
        if not len(rows):
            return
        keys, group = np.unique(self._row_key(rows, self._kinds.everything), return_inverse=True)
        kinds = np.flatnonzero(self._kinds.codes_T & (1 << c))
        codes = self._kinds.codes_T[kinds]
        scarce = self._kinds.holders_K < self._amount_K
        for key, members in zip(keys.tolist(), _members(rows, group, len(keys)), strict=True):
            state = key // (self._batch + 1) if self._crowded else key
            weight_K = self._weight_K * scarce * ((state >> np.arange(self._kinds.classes)) & 1)
            gain = ((codes[:, None] >> np.arange(self._kinds.classes)) & 1) @ weight_K
            if self._crowded and self._sizes is not None:
                left = self._batch - key % (self._batch + 1) - 1
                gain[self._sizes[state & ~codes] > left] = -1
            while len(members) and gain.max() > 0:
                best = kinds[gain == gain.max()]
                gain[gain == gain.max()] = -1
                room = int((self._limit_T - self._again_T)[best].sum())
                now, members = members[:room], members[room:]
                if len(now):
                    self._put(now, self._spread(len(now), best), again=True)

    def _repeat(self, state: int, rows: Ints, kinds: Ints) -> None:
        room = self._limit_T - self._again_T
        if int(room[kinds].sum()) < len(rows):  # the best are used up: whatever helps
            kinds = np.flatnonzero((self._kinds.codes_T & state != 0) & (room > 0))
            if self._crowded and self._sizes is not None:
                left = self._batch - self._used_S[rows].max() - 1
                kinds = kinds[self._sizes[state & ~self._kinds.codes_T[kinds]] <= left]
        if int(room[kinds].sum()) < len(rows):
            raise TooRareError(state)
        self._put(rows, self._spread(len(rows), kinds), again=True)

    def _spread(self, number: int, kinds: Ints) -> Ints:
        """Return kinds for `number` repeats, spread as evenly as possible over their tiles."""
        number_T = water_fill(
            number, self._kinds.tiles_T[kinds], self._again_T[kinds], self._limit_T[kinds], self._rng
        )
        return self._rng.permutation(np.repeat(kinds, number_T))

    def _useful(self, state: int) -> Ints:
        """Return the kinds after which a row with these missing classes needs the fewest further tiles."""
        codes = self._kinds.codes_T
        if self._sizes is not None:
            return np.flatnonzero(self._sizes[state & ~codes] == self._sizes[state] - 1)
        gain = np.bitwise_count(codes & state)
        return np.flatnonzero(gain == gain.max())


def _members(values: Ints, group: Ints, groups: int) -> list[Ints]:
    """Return the values of each group, in their order."""
    order = np.argsort(narrow(group.reshape(-1), groups), kind="stable")
    ends = np.cumsum(np.bincount(group.reshape(-1), minlength=groups))
    return np.split(values[order], ends[:-1])


def _matches(
    score: NDArray[np.float64], rows: list[int], tiles: list[int], rng: np.random.Generator
) -> Iterator[tuple[int, int, int]]:
    """Yield (row state, kind, number) by decreasing score, ties at random, until rows or tiles run out."""
    noise = rng.random(score.shape) * 1e-6
    order = np.argsort(-(score + noise), axis=None)
    rows_left, tiles_left = list(rows), list(tiles)
    for g, t in zip(*np.unravel_index(order, score.shape), strict=True):
        number = min(rows_left[g], tiles_left[t])
        if number and score[g, t] > -np.inf:
            rows_left[g] -= number
            tiles_left[t] -= number
            yield int(g), int(t), number
