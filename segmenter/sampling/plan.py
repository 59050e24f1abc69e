"""Batch plan: an epoch as rows of tiles, each row holding every class. Pure NumPy.

All randomness is keyed by (seed, epoch), so that a plan is the same on every machine, for any number of
replicas and workers, and any step can be read without the previous ones. The promise and the number of steps
depend on the seed alone: the schedule needs epochs of equal length, a user needs one promise.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, counted
from segmenter.config.sampling import SamplingConfig
from segmenter.sampling.kinds import (
    MOST_CLASSES,
    ONE,
    Kinds,
    RowRules,
    class_codes,
    holders,
    number_kinds,
    project_kinds,
    smallest_batch,
)
from segmenter.sampling.methods import drawn_epoch
from segmenter.sampling.quotas import PARTS, Part, PartTable, Quota, Wishes, part_table
from segmenter.sampling.rows import PlannedKinds, lay_out, uses_of_tiles
from segmenter.sampling.search import RequiredKinds, TooRareError, cover


def order_for_replicas(
    row: NDArray[np.int64], shares: Sequence[int], holds: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return a row's tiles reordered for replicas that take contiguous blocks of it.

    Only the order changes, so the step is unchanged. The same input gives the same order.

    Args:
        row: (B,) tile indices.
        shares: number of tiles of each replica, in order; the sum is B.
        holds: (B, K) mask of classes held by each tile.

    Returns:
        (B,) the same tiles.

    Raises:
        ValueError: the shares or `holds` do not fit the row.
    """
    if sum(shares) != len(row) or min(shares) < 0 or len(holds) != len(row):
        raise ValueError(f"expected shares of {len(row)} tiles in all, got {list(shares)}, {len(holds)} sets")
    if len(shares) == 1:
        return row
    block_B = _scarce_first(holds, shares)
    _improve(block_B, holds, len(shares))
    return row[np.argsort(block_B, kind="stable")]


def _scarce_first(holds: NDArray[np.bool_], shares: Sequence[int]) -> NDArray[np.int64]:
    """Return (B,) the block of each tile; classes with fewest tiles are spread first."""
    block_B = np.full(len(holds), -1)
    seen_RK = np.zeros((len(shares), holds.shape[1]), bool)
    room_R = np.array(shares)
    for c in np.argsort(holds.sum(axis=0), kind="stable"):
        for _ in shares:
            open_R = np.flatnonzero(~seen_RK[:, c] & (room_R > 0))
            pool = np.flatnonzero((block_B < 0) & holds[:, c])
            if not len(open_R) or not len(pool):
                break
            gain = (~seen_RK[open_R]).astype(int) @ holds[pool].T.astype(int)
            r, i = divmod(int(np.argmax(gain)), len(pool))
            block_B[pool[i]] = open_R[r]
            seen_RK[open_R[r]] |= holds[pool[i]]
            room_R[open_R[r]] -= 1
    block_B[block_B < 0] = np.repeat(np.arange(len(shares)), room_R)
    return block_B


def _improve(block_B: NDArray[np.int64], holds: NDArray[np.bool_], blocks: int) -> None:
    """Swap tiles between blocks in place, while the number of (block, class) pairs grows."""
    most = int(np.minimum(holds.sum(axis=0), blocks).sum())
    count_RK = np.stack([holds[block_B == r].sum(axis=0) for r in range(blocks)])
    while int((count_RK > 0).sum()) < most:
        best, swap = 0, (0, 0)
        for p in range(blocks):
            for q in range(p + 1, blocks):
                i, j = np.flatnonzero(block_B == p), np.flatnonzero(block_B == q)
                if not len(i) or not len(j):
                    continue
                change = holds[j][None, :, :].astype(int) - holds[i][:, None, :]
                seen = ((count_RK[p] + change) > 0).sum(-1) + ((count_RK[q] - change) > 0).sum(-1)
                gain = seen - int((count_RK[p] > 0).sum() + (count_RK[q] > 0).sum())
                if gain.max() > best:
                    best = int(gain.max())
                    first, second = divmod(int(np.argmax(gain)), len(j))
                    swap = (int(i[first]), int(j[second]))
        if not best:
            return
        a, b = swap
        change = holds[b].astype(int) - holds[a]
        count_RK[block_B[a]] += change
        count_RK[block_B[b]] -= change
        block_B[a], block_B[b] = block_B[b], block_B[a]


Tiles = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Batches of one epoch, with facts about their plan.

    Attributes:
        rows_SB: (steps, global batch) tile indices.
        coverage_repeats: repeated uses of tiles that the promise requires, or `sampling.quota: rarity`.
        repeats_bound: lower bound of these for that many steps: the largest `steps − tiles with c` over
            promised classes; with quotas, the uses that rarity asks for and `least_repeats` beyond them.
        proven: no plan has fewer steps, nor as many steps and fewer coverage repeats; with quotas, no plan of
            the same amounts and uses by rarity.
        fillers: repeated uses that complete the last row; fewer than the global batch.
        promised: ids of the classes that every row holds.
        best_effort: ids of the classes that are too rare to be promised.
        blocks: equal parts of a row that hold each promised class on their own; 1 unless
            `sampling.per_replica: guarantee`.
        parts: requirements on every row if classes are planned by scale: of each promised class the strata in
            which it is promised, or the class as a whole.
        rare_parts: classes at a scale that are too rare to be promised there.
        quotas: of each of the `promises`, in their order; empty: one tile of each.
        wanted_SB: (steps, global batch) class for which a tile was drawn and which it must show as the model
            receives it; −1: no requirement for this tile. None: no requirements.
    """

    rows_SB: Tiles
    coverage_repeats: int
    repeats_bound: int
    proven: bool
    fillers: int
    promised: tuple[int, ...]
    best_effort: tuple[int, ...]
    blocks: int = 1
    parts: tuple[Part, ...] = ()
    rare_parts: tuple[Part, ...] = ()
    quotas: tuple[Quota, ...] = ()
    wanted_SB: Tiles | None = None

    @property
    def promises(self) -> tuple[Part, ...]:
        """Classes, or classes at a scale, that every row holds."""
        return self.parts or tuple(map(Part, self.promised))

    @functools.cached_property
    def least_tiles(self) -> dict[int, int]:
        """Fewest tiles of each promised class in a row."""
        return {c: int(tiles) for c, tiles in self._tiles(math.floor).items()}

    @functools.cached_property
    def mean_tiles(self) -> dict[int, float]:
        """Promised mean of tiles of each promised class in a row."""
        return self._tiles(float)

    def _tiles(self, rounded: Callable[[float], float]) -> dict[int, float]:
        """Return the tiles of each class; one of the class at a scale is one of the class as a whole, too."""
        whole, parts = (dict.fromkeys(self.promised, 0.0) for _ in range(2))
        for part, quota in zip(self.promises, self.quotas or itertools.repeat(Quota(1, 1)), strict=False):
            of = whole if part.stratum is None else parts
            of[part.class_id] += self.blocks * rounded(quota.given)
        return {c: max(whole[c], parts[c]) for c in self.promised}

    def shares(self, counts_NK: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return each class's share (K,) of the labelled pixels that the rows show, by (N, K) counts."""
        uses_N = np.bincount(self.rows_SB.ravel(), minlength=len(counts_NK))
        shown_K = uses_N @ counts_NK.astype(np.float64)
        return np.asarray(shown_K / max(1.0, float(shown_K.sum())))

    @property
    def steps(self) -> int:
        """Number of optimiser steps of the epoch."""
        return int(self.rows_SB.shape[0])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the rows, and of the classes for which their tiles were drawn."""
        rows = np.ascontiguousarray(self.rows_SB, "<i8")
        content = hashlib.sha256(repr((rows.shape, self.blocks)).encode() + rows.tobytes())
        if self.wanted_SB is not None:
            content.update(np.ascontiguousarray(self.wanted_SB, "<i8").tobytes())
        return content.hexdigest()


@dataclass(frozen=True)
class Rules:
    """Rules of the plan of an epoch.

    Attributes:
        min_pixels: least pixels of a class for a tile to hold it.
        max_repeats: coverage shows no tile more often than 1 + `max_repeats` times an epoch; a class that
            needs more is not promised, and its tiles are used once like others. None: no limit.
        seed, epoch: equal values give the same plan; other epochs give other batches.

    Raises:
        DatasetError: a number is out of range.
    """

    min_pixels: int = 32
    max_repeats: int | None = 4
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        least = min(self.min_pixels - 1, self.max_repeats or 0, self.seed, self.epoch)
        if least < 0:
            raise DatasetError(
                expected="min_pixels of at least 1, max_repeats, seed and epoch of at least 0",
                got=f"{self.min_pixels}, {self.max_repeats}, {self.seed}, {self.epoch}",
            )


def plan(
    counts: NDArray[np.integer] | PartTable,
    global_batch: int,
    config: SamplingConfig,
    seed: int,
    epoch: int,
    *,
    replicas: int = 1,
) -> Plan:
    """Return the plan of an epoch under the recipe's sampling rules; see `planned_rows` for the law.

    Methods other than `plan`, and `coverage: off`, promise no class (`sampling.methods`).

    Args:
        counts: (tiles, classes) pixels of each class in each tile, or a table with names and strata.
        replicas: used only by `per_replica: guarantee`: each replica's block of a row holds each class.

    Raises:
        DatasetError: there are no tiles, no `global_batch` tiles hold all classes, or `strict` coverage
            would need repeats.
    """
    table = _checked_table(counts, global_batch)
    if not config.plans_classes:
        drawn = drawn_epoch(table.counts_NK, global_batch, config, seed, epoch)
        return Plan(drawn.rows_SB, 0, 0, True, drawn.fillers, (), (), wanted_SB=drawn.wanted_SB)
    blocks = replicas if config.planned_per_replica else 1
    if global_batch % blocks:
        raise DatasetError(
            "sampling.per_replica: guarantee",
            expected=f"a training.global_batch that is a multiple of the {blocks} devices",
            got=global_batch,
        )
    rules = Rules(config.min_pixels, config.max_repeats_per_tile, seed, epoch)

    def of(table: PartTable) -> Plan:
        wishes = Wishes.of(table, blocks, config) if config.plans_amounts else None
        return _plan_table(table, global_batch // blocks, rules, blocks, wishes)

    table.check_size()
    result = of(table)
    whole = table.with_whole(result.promised)
    if len(whole.parts) > len(table.parts):
        table, result = whole, of(whole)
    if config.coverage == "strict" and (result.coverage_repeats or result.best_effort):
        raise DatasetError(_strict_refusal(table.counts_NP, result, config.min_pixels, table.titles))
    return result if table.strata is None else _of_classes(result, table)


def planned_rows(
    counts: NDArray[np.integer] | PartTable,
    global_batch: int,
    rules: Rules,
    amounts: SamplingConfig | None = None,
) -> Plan:
    """Return the plan of an epoch by rules that no recipe needs to have.

    The law. A tile *holds* a class if it shows at least `min_pixels` pixels of it. Each class that some
    tile holds, and that `max_repeats` allows, is held by at least one tile of every row. Every tile is in
    the plan. It occurs once, except for coverage repeats, if the counts require them, and for at most
    `global_batch` − 1 fillers, which complete the last row. The plan has the fewest possible steps and, for
    these, the fewest repeats: proven for small tables and if the repeats equal their lower bound, the
    largest `steps − tiles with c`; else found by a greedy search. Otherwise the plan is random.

    Args:
        counts: (tiles, classes) pixels of each class in each tile, any integer type; at most 62 classes.
        global_batch: tiles of a step, over all replicas; the plan does not depend on their number.
        amounts: quotas of classes; None: one tile of each.

    Raises:
        DatasetError: there are no tiles; no `global_batch` tiles hold all classes, or, with more than 20
            classes, a row has no more places than classes.
    """
    table, wishes = _checked_table(counts, global_batch), None
    if amounts is not None and amounts.plans_amounts:
        wishes = Wishes.of(table, 1, amounts, global_batch)
    return _plan_table(table, global_batch, rules, 1, wishes)


def _of_classes(result: Plan, table: PartTable) -> Plan:
    """Return a plan of a table's columns as a plan of its classes."""
    held = tuple(table.parts[p] for p in result.promised)
    promised = sorted({part.class_id for part in held})
    rare = [table.parts[p] for p in result.best_effort]
    return replace(
        result,
        promised=tuple(promised),
        best_effort=tuple(sorted({part.class_id for part in rare} - set(promised))),
        parts=held,
        rare_parts=tuple(part for part in rare if part.stratum is not None),
    )


def held_by_rows(rows_SB: Tiles, counts_NK: NDArray[np.integer], min_pixels: int) -> NDArray[np.bool_]:
    """Return a (steps, classes) mask: one tile of the row shows at least `min_pixels` pixels of the class."""
    return np.asarray((counts_NK >= min_pixels)[rows_SB].any(axis=1))


_EVERY_EPOCH = (1,)
"""Spawn key of randomness that all epochs of a seed share."""


def _checked_table(counts: NDArray[np.integer] | PartTable, global_batch: int) -> PartTable:
    counts_NK = counts.counts_NK if isinstance(counts, PartTable) else counts
    if counts_NK.ndim != 2 or counts_NK.dtype.kind not in "iu":
        raise DatasetError(
            expected="a table of whole numbers (tiles, classes)", got=f"{counts_NK.dtype} {counts_NK.shape}"
        )
    if len(counts_NK) == 0:
        raise DatasetError(
            "no tiles to train on", expected="at least one labelled tile", remedy="see tiles.min_labelled"
        )
    if global_batch < 1:
        raise DatasetError("training.global_batch", expected="at least 1 tile", got=global_batch)
    return counts if isinstance(counts, PartTable) else part_table(counts)


def _plan_table(table: PartTable, batch: int, rules: Rules, blocks: int, wishes: Wishes | None) -> Plan:
    counts_NK, rows = table.counts_NP, RowRules(batch, blocks, rules.max_repeats)
    if counts_NK.shape[1] > MOST_CLASSES:
        raise DatasetError(
            expected=f"at most {MOST_CLASSES} classes to plan for",
            got=counts_NK.shape[1],
            remedy="use sampling.coverage: off",
        )
    codes_T, kind_N, tiles_T = number_kinds(class_codes(counts_NK, rules.min_pixels))
    held_K = holders(codes_T, tiles_T, counts_NK.shape[1])
    key = codes_T.tobytes(), tiles_T.tobytes(), len(held_K)
    shared = _promise_of_all(key, rows, tuple(table.titles or ()), rules.seed, wishes)
    rng = np.random.default_rng(np.random.SeedSequence((rules.seed, rules.epoch)))
    needed = _another(shared, rows, rng)
    present = np.flatnonzero((held_K > 0) | counts_NK.any(axis=0))
    uses_N = None if shared.uses_T is None else uses_of_tiles(kind_N, tiles_T, shared.uses_T, rng)
    rows_SB = lay_out(needed, shared, kind_N, uses_N, batch, rng)
    wanted_SB = None
    if wishes is not None:
        kinds = Kinds(codes_T, tiles_T, len(held_K), tiles_T)
        wanted_SB = wishes.wanted_classes(shared.promised, kinds, kind_N[rows_SB], rng)
    shape = needed.steps // blocks, blocks * batch
    again = shared.kinds.tiles - len(kind_N)  # as rarity asks
    return Plan(
        rows_SB=rows_SB.reshape(shape),
        coverage_repeats=again + needed.repeats,
        repeats_bound=again + needed.bound,
        proven=needed.proven,
        fillers=rows_SB.size - shared.kinds.tiles - needed.repeats,
        promised=tuple(shared.promised),
        best_effort=tuple(int(c) for c in present if c not in shared.promised),
        blocks=blocks,
        quotas=shared.quotas,
        wanted_SB=None if wanted_SB is None else wanted_SB.reshape(shape),
    )


@dataclass(frozen=True, kw_only=True)
class _Promise(PlannedKinds):
    """Part of the plans that all epochs of a seed share.

    Attributes:
        promised: classes of every row.
        asked: promised classes that some tile lacks; the classes of `kinds` and of `demand`, in that order.
        needed: kinds that rows need.
        uses_T: uses of the tiles of each finer kind in every epoch; None: one of each tile.
        quotas: quota of each promised class; empty if none is above one tile.
    """

    promised: list[int]
    asked: list[int]
    needed: RequiredKinds
    uses_T: Tiles | None = None
    quotas: tuple[Quota, ...] = ()


@functools.lru_cache(maxsize=4)
def _promise_of_all(
    table_key: tuple[bytes, bytes, int],
    rows: RowRules,
    names: tuple[str, ...],
    seed: int,
    wishes: Wishes | None,
) -> _Promise:
    """Compute once what all epochs of a seed share; see `_promise`. Do not modify the result.

    Args:
        table_key: classes of each kind of tile and tiles of each kind, as bytes; number of classes.
    """
    codes_T, tiles_T = (np.frombuffer(each, np.int64) for each in table_key[:2])
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_EVERY_EPOCH))
    table = Kinds(codes_T, tiles_T, table_key[2], tiles_T)
    found = _promise(table, rows, names, rng)
    return _raise_promise(found, wishes, table, rows, rng) if wishes else found


def _raise_promise(
    found: _Promise, wishes: Wishes, table: Kinds, rules: RowRules, rng: np.random.Generator
) -> _Promise:
    """Return the promise with the largest part of the wishes that keeps every promised class in every row."""
    batch, max_repeats = rules.batch, rules.max_repeats
    wished_P, fits_P = wishes.amounts(found.promised, batch, found.asked)
    most, often, rows = None, table.tiles, found.needed.steps
    if max_repeats is not None:
        often = 1 + max_repeats
        most = int(found.kinds.holders_K.min(initial=found.kinds.tiles)) * often
    is_asked = np.isin(found.promised, found.asked)
    low, high, part = 0, PARTS, PARTS
    while low < high and found.asked and (any(wishes.odds_P) or (fits_P > ONE).any()):
        uses_T = wishes.uses(found.promised, table, often, rows, batch, part)
        kinds, _ = project_kinds(table.codes_T, table.tiles_T, found.asked, uses_T)
        demand = wishes.demand(fits_P[is_asked], found.asked, kinds, max_repeats).lowered(part, PARTS)
        try:
            needed = cover(kinds, rules, rng, demand, most)
        except TooRareError:
            high = part - 1
        else:
            low, found = part, replace(found, kinds=kinds, uses_T=uses_T, needed=needed, demand=demand)
        part = (low + high + 1) // 2
    if (wished_P <= ONE).all():
        return found
    given_P = fits_P / ONE
    given_P[is_asked] = 1.0
    if found.demand is not None:
        given_P[is_asked] = found.demand.amount_K(found.needed.steps) / found.needed.steps
    quotas = map(Quota, (wished_P / ONE).tolist(), given_P.tolist())
    return replace(found, quotas=tuple(quotas))


def _promise(
    table: Kinds, rules: RowRules, names: Sequence[str] | None, rng: np.random.Generator
) -> _Promise:
    """Return the classes that can be promised, the kinds restricted to them, and the cover of the rows.

    While some class cannot be in every row within the limit of repeats, the rarest such class is dropped.
    """
    codes_T, tiles_T, held_K = table.codes_T, table.tiles_T, table.holders_K
    batch, blocks, max_repeats = rules.batch, rules.multiple, rules.max_repeats
    least = -(-int(tiles_T.sum()) // batch) if max_repeats is not None else 0
    promised = [int(c) for c in np.flatnonzero(held_K) if held_K[c] * (1 + (max_repeats or 0)) >= least]
    while True:
        asked = [c for c in promised if held_K[c] < tiles_T.sum()]  # what all tiles hold, any row holds
        kinds, new_T = project_kinds(codes_T, tiles_T, asked)
        if batch <= kinds.classes and (need := smallest_batch(kinds)) > batch:
            raise DatasetError(_too_small(batch, blocks, need, promised, names))
        try:
            needed = cover(kinds, rules, rng)
        except TooRareError as error:
            rare = [c for bit, c in enumerate(asked) if error.lacking >> bit & 1]
        else:
            rare = [
                c
                for c in promised
                if max_repeats is not None and held_K[c] * (1 + max_repeats) < needed.steps
            ]
            if not rare:
                return _Promise(promised=promised, asked=asked, kinds=kinds, new_T=new_T, needed=needed)
        promised.remove(min(rare, key=lambda c: int(held_K[c])))


def _another(shared: _Promise, rules: RowRules, rng: np.random.Generator) -> RequiredKinds:
    """Return a cover with as few steps and repeats, so that epochs differ; the same if none is found."""
    found = shared.needed
    try:
        other = cover(shared.kinds, rules, rng, shared.demand, found.steps)
    except TooRareError:
        return found
    return other if other.steps == found.steps and other.repeats <= found.repeats else found


def _class_names(ids: Sequence[int], names: Sequence[str] | None) -> str:
    return ", ".join(names[c] if names else f"class {c}" for c in ids)


def _too_small(batch: int, blocks: int, need: int, promised: list[int], names: Sequence[str] | None) -> str:
    where = "a step" if blocks == 1 else "a replica's part of a step"
    return (
        f"{where} of {batch} tiles cannot hold all {len(promised)} classes ({_class_names(promised, names)}) "
        f"whatever tile is in it; expected a training.global_batch of at least {need * blocks}, or "
        "sampling.coverage: off"
    )


def _strict_refusal(
    counts_NK: NDArray[np.integer], result: Plan, min_pixels: int, names: Sequence[str] | None
) -> str:
    held_K = (counts_NK >= min_pixels).sum(axis=0)
    also = ""
    if result.best_effort:
        also = f"; too rare to be promised: {_class_names(result.best_effort, names)}"
    if not result.coverage_repeats and not any(held_K[c] for c in result.best_effort):
        return (
            f"sampling.coverage: strict: no tile holds {min_pixels} pixels of "
            f"{_class_names(result.best_effort, names)}; no batch size would do: expected such tiles, or "
            "sampling.coverage: relaxed"
        )
    held = [c for c in range(len(held_K)) if held_K[c]]
    rarest = min(held, key=lambda c: int(held_K[c]))
    enough = batch_without_repeats(counts_NK, min_pixels, result.blocks)
    return (
        f"sampling.coverage: strict: {_class_names([rarest], names)} is held by "
        f"{counted(int(held_K[rarest]), 'tile')}, an epoch has {counted(result.steps, 'step')}"
        f"{on_devices(result.blocks)}, so tiles would have to be repeated{also}; "
        + (f"a training.global_batch of {enough} would do, or " if enough else "no batch size would do: use ")
        + "sampling.coverage: relaxed"
    )


def on_devices(blocks: int) -> str:
    """Return words after a number of steps in which each of several devices gets every class."""
    return f", in each of which {blocks} devices need it" if blocks > 1 else ""


def batch_without_repeats(counts_NK: NDArray[np.integer], min_pixels: int, blocks: int = 1) -> int | None:
    """Return the smallest global batch found with which every row holds every class without repeats.

    The search starts at tiles ÷ tiles of the scarcest class; smaller batches have too many steps. It ends at
    a batch of all tiles for each block of a row. None: that has repeats, too.
    """
    codes_T, _, tiles_T = number_kinds(class_codes(counts_NK, min_pixels))
    held_K = holders(codes_T, tiles_T, counts_NK.shape[1])
    asked = np.flatnonzero((held_K > 0) & (held_K < tiles_T.sum()))
    kinds, _ = project_kinds(codes_T, tiles_T, [int(c) for c in asked])
    batch = max(-(-kinds.tiles // kinds.scarcest), smallest_batch(kinds)) if kinds.classes else 1
    while cover(kinds, RowRules(batch, blocks, None), np.random.default_rng(0)).repeats:
        if batch >= kinds.tiles:
            return None
        batch = min(batch + max(1, batch // 32), kinds.tiles)
    return batch * blocks
