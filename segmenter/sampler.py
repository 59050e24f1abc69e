"""The batch plan: an epoch as rows of tiles, each row holding every class. Pure NumPy.

All randomness is keyed by (seed, epoch), so that a plan is the same on every machine, for any number of
replicas and workers, and any step can be had without the ones before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import DatasetError
from segmenter.schema import SamplingConfig

Tiles = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """One epoch.

    Attributes:
        rows_SB: (steps, global batch) tile indices.
        coverage_repeats: uses of a tile beyond its first that coverage forced.
        fillers: uses beyond the first that complete the last rows.
        promised: ids of the classes that every row holds.
        best_effort: ids of the classes that are too rare to be promised.
    """

    rows_SB: Tiles
    coverage_repeats: int
    fillers: int
    promised: tuple[int, ...]
    best_effort: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Optimiser steps of the epoch."""
        return int(self.rows_SB.shape[0])


def plan(
    counts_NK: NDArray[np.int64], global_batch: int, config: SamplingConfig, seed: int, epoch: int
) -> Plan:
    """The plan of an epoch under the recipe's sampling rules.

    Law 1, *coverage*: each class of `promised` is held by at least one tile of every row, and every tile
    is used; a tile is used again only where the counts force it.

    Args:
        counts_NK: (tiles, classes) pixels of each class in each tile.
        global_batch: tiles of a step, over all replicas.

    Raises:
        DatasetError: there are no tiles, a step has fewer places than there are classes to hold, or
            `strict` coverage would need repeats.
    """
    tiles = counts_NK.shape[0]
    if tiles == 0:
        raise DatasetError(
            "no tiles to train on: expected at least one labelled tile; see tiles.min_labelled"
        )
    rng = np.random.default_rng(np.random.SeedSequence([seed, epoch]))
    holds_NK = counts_NK >= config.min_pixels
    if config.coverage == "off":
        return _shuffle(tiles, global_batch, rng)
    holders = holds_NK.sum(axis=0)
    present = np.flatnonzero(counts_NK.sum(axis=0) > 0)
    steps = -(-tiles // global_batch)
    promised = [int(c) for c in present]
    most = 1 + config.max_repeats_per_tile
    while True:
        promised = [c for c in promised if holders[c] * most >= steps]
        if len(promised) > global_batch:
            raise DatasetError(
                f"a step of {global_batch} tiles may not hold {len(promised)} classes; expected "
                f"training.global_batch of at least {len(promised)}, or sampling.coverage: off"
            )
        rows_SB, repeats = _covering_rows(holds_NK, promised, global_batch, rng)
        if all(holders[c] * most >= len(rows_SB) for c in promised):
            break
        steps = len(rows_SB)  # repeats have added steps, which would ask for more repeats than allowed
    best_effort = tuple(int(c) for c in present if c not in promised)
    fillers = rows_SB.size - tiles - repeats
    if config.coverage == "strict" and (repeats or best_effort):
        raise DatasetError(_strict_refusal(holders, steps, best_effort, tiles))
    return Plan(rows_SB, repeats, fillers, tuple(promised), best_effort)


def held_by_rows(rows_SB: Tiles, counts_NK: NDArray[np.int64], min_pixels: int) -> NDArray[np.bool_]:
    """(steps, classes): whether a row has a tile that alone shows at least `min_pixels` of the class."""
    return np.asarray((counts_NK >= min_pixels)[rows_SB].any(axis=1))


def _shuffle(tiles: int, global_batch: int, rng: np.random.Generator) -> Plan:
    rows = -(-tiles // global_batch)
    fillers = rows * global_batch - tiles
    order = np.concatenate([rng.permutation(tiles), _spread(np.arange(tiles), fillers, rng)])
    return Plan(order.reshape(rows, global_batch), 0, fillers, (), ())


def _spread(pool: Tiles, number: int, rng: np.random.Generator) -> Tiles:
    """`number` tiles of a pool, none more than once oftener than another."""
    rounds = [rng.permutation(pool) for _ in range(-(-number // max(len(pool), 1)))]
    return np.concatenate(rounds)[:number] if rounds else np.empty(0, np.int64)


def _covering_rows(
    holds_NK: NDArray[np.bool_], promised: list[int], global_batch: int, rng: np.random.Generator
) -> tuple[Tiles, int]:
    """Rows that hold all promised classes, and the number of coverage repeats, in as few steps as it can."""
    tiles = holds_NK.shape[0]
    steps = -(-tiles // global_batch)
    while True:
        required, unused, repeats = _required(holds_NK, promised, steps, rng)
        missing = steps * global_batch - required.size_used - len(unused)
        if missing >= 0 and required.most_in_a_row <= global_batch:
            return _fill(required, unused, missing, global_batch, rng), repeats
        steps += max(1, -(-max(0, -missing) // global_batch))


@dataclass(frozen=True)
class _Required:
    """Tiles that are in their rows for coverage, as parallel arrays of row and tile."""

    rows: Tiles
    tiles: Tiles
    steps: int

    @property
    def size_used(self) -> int:
        return len(self.tiles)

    @property
    def most_in_a_row(self) -> int:
        return int(np.bincount(self.rows, minlength=1).max()) if len(self.rows) else 0


def _required(
    holds_NK: NDArray[np.bool_], promised: list[int], steps: int, rng: np.random.Generator
) -> tuple[_Required, Tiles, int]:
    """Give each row a tile for each class it lacks, the rarest class first; (required, unused, repeats)."""
    free = np.ones(holds_NK.shape[0], bool)
    held_SK = np.zeros((steps, holds_NK.shape[1]), bool)
    rows: list[Tiles] = []
    picked: list[Tiles] = []
    repeats = 0
    for c in sorted(promised, key=lambda c: int(holds_NK[:, c].sum())):
        lacking = rng.permutation(np.flatnonzero(~held_SK[:, c]))
        pool = rng.permutation(np.flatnonzero(free & holds_NK[:, c]))[: len(lacking)]
        again = _spread(np.flatnonzero(holds_NK[:, c]), len(lacking) - len(pool), rng)
        repeats += len(again)
        chosen = np.concatenate([pool, again])
        free[pool] = False
        held_SK[lacking] |= holds_NK[chosen]
        rows.append(lacking)
        picked.append(chosen)
    nothing = [np.empty(0, np.int64)]
    required = _Required(np.concatenate(rows or nothing), np.concatenate(picked or nothing), steps)
    return required, rng.permutation(np.flatnonzero(free)), repeats


def _fill(
    required: _Required, unused: Tiles, fillers: int, global_batch: int, rng: np.random.Generator
) -> Tiles:
    """Complete the rows with the unused tiles and fillers, and shuffle the places in each row."""
    everything = np.unique(np.concatenate([required.tiles, unused]))
    rest = np.concatenate([unused, _spread(everything, fillers, rng)])
    room = global_batch - np.bincount(required.rows, minlength=required.steps)
    rows = np.concatenate([required.rows, rng.permutation(np.repeat(np.arange(required.steps), room))])
    order = np.argsort(rows, kind="stable")
    grid = np.concatenate([required.tiles, rest])[order].reshape(required.steps, global_batch)
    return rng.permuted(grid, axis=1)


def _strict_refusal(holders: NDArray[np.int64], steps: int, best_effort: tuple[int, ...], tiles: int) -> str:
    rarest = int(min((c for c in range(len(holders)) if holders[c] > 0), key=lambda c: int(holders[c])))
    need = -(-tiles // max(int(holders[rarest]), 1))
    also = f"; too rare for any promise: classes {list(best_effort)}" if best_effort else ""
    return (
        f"sampling.coverage: strict: class {rarest} is held by {holders[rarest]} tiles, an epoch has {steps} "
        f"steps, so tiles would have to be repeated{also}; a training.global_batch of {need} would do, or "
        "sampling.coverage: relaxed"
    )
