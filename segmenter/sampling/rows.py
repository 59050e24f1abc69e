"""Layout of tiles in rows: required tiles in their rows, all others at random. Pure NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmenter.sampling.kinds import Demand, Kinds, narrow, water_fill
from segmenter.sampling.search import RequiredKinds

Tiles = NDArray[np.integer]

_SWEEPS = 4
"""Each halves the remaining difference to rows drawn at random among all that hold every class."""


_TWIN_ROWS = 64
"""Rows tried, at most, for the second use of a tile in a row."""
_FILL_ROUNDS = 64
"""Each tries another tile in every open place; of several tiles, one is in another row."""


def shuffle_tiles(tiles: int, batch: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return (steps, batch) all tiles in random order; repeated tiles complete the last row."""
    rows = -(-tiles // batch)
    order = np.concatenate(
        [rng.permutation(tiles), evenly_drawn(np.arange(tiles), rows * batch - tiles, rng)]
    )
    return order.reshape(rows, batch)


@dataclass(frozen=True, kw_only=True)
class PlannedKinds:
    """Kinds of tile that rows are planned by.

    Attributes:
        new_T: kind of each finer kind of the table.
        demand: tiles of each class that a row needs; None: one of each.
    """

    kinds: Kinds
    new_T: Tiles
    demand: Demand | None = None


def lay_out(
    needed: RequiredKinds,
    planned: PlannedKinds,
    kind_N: NDArray[np.integer],
    uses_N: Tiles | None,
    batch: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return (steps, batch) tile indices.

    Args:
        kind_N: finer kind of each tile.
        uses_N: uses of each tile, together those of `kinds.tiles_T`; None: one of each.
    """
    kinds, demand = planned.kinds, planned.demand
    if uses_N is None:
        order_U = rng.permutation(len(kind_N)).astype(np.int32)
    else:
        order_U = rng.permutation(np.repeat(np.arange(len(kind_N), dtype=np.int32), uses_N))
    new_T = narrow(planned.new_T, len(kinds))
    chosen_P, free_U = _tile_places(needed, kinds, new_T[kind_N[order_U]])
    tile_P = order_U[chosen_P]
    if uses_N is not None:
        _repeat_evenly(tile_P, needed, new_T[kind_N], uses_N, rng)
    several_N = np.zeros(len(kind_N), bool) if uses_N is None else uses_N > 1
    grid_SB, fixed_SB = _grid(needed, tile_P, order_U[free_U], several_N, batch, rng)
    codes_SB = kinds.codes_T.astype(_unsigned_type(kinds.classes))[new_T][kind_N[grid_SB]]
    need_SK = None if demand is None else demand.share_out(needed.steps)
    if need_SK is not None:
        fixed_SB[:] = False  # twins are parted at the end
    turn = rng.permutation(needed.steps)
    grid = _Grid(grid_SB[turn], fixed_SB[turn], codes_SB[turn])
    need_SK = None if need_SK is None else need_SK[turn]
    for sweep in range(_SWEEPS):
        _mix(grid, kinds.everything, need_SK, sweep, rng)
    if need_SK is not None:
        _part_twins(grid.tiles_SB, grid.codes_SB, need_SK, rng)
    grid_SB = grid.tiles_SB[rng.permutation(needed.steps)]
    rng.permuted(grid_SB, axis=1, out=grid_SB)
    return grid_SB.astype(np.int64)


def uses_of_tiles(
    kind_N: NDArray[np.integer], tiles_T: Tiles, uses_T: Tiles, rng: np.random.Generator
) -> Tiles:
    """Return (N,) uses of each tile: as even within a kind as can be, tiles with one more drawn at random."""
    whole_T, over_T = np.divmod(uses_T, np.maximum(1, tiles_T))
    by_kind, end_T = np.argsort(kind_N, kind="stable"), np.cumsum(tiles_T)
    uses_N = whole_T[kind_N]
    for t in np.flatnonzero(over_T).tolist():
        tiles = by_kind[end_T[t] - tiles_T[t] : end_T[t]]
        uses_N[rng.choice(tiles, int(over_T[t]), replace=False, shuffle=False)] += 1
    return uses_N


def mean_uses(rows_SB: Tiles, holds_NK: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return (classes,) how often an epoch uses a tile that holds the class, on average; 0 without tiles."""
    uses_N = np.bincount(rows_SB.reshape(-1), minlength=len(holds_NK))
    return np.asarray(uses_N @ holds_NK / holds_NK.sum(axis=0).clip(1))


def _repeat_evenly(
    tile_P: Tiles, needed: RequiredKinds, kind_N: NDArray[np.integer], uses_N: Tiles, rng: np.random.Generator
) -> None:
    """Give repeats, in place, to the tiles of their kind that are used least."""
    for kind in np.unique(needed.kind_P[needed.repeat_P]):
        entries = np.flatnonzero(needed.repeat_P & (needed.kind_P == kind))
        tiles = np.flatnonzero(kind_N == kind)
        before = uses_N[tiles].astype(np.int64)
        again = water_fill(len(entries), np.ones_like(tiles), before, before + len(entries), rng)
        tile_P[entries] = rng.permutation(np.repeat(tiles, again))


def _unsigned_type(classes: int) -> type[np.unsignedinteger]:
    return np.uint8 if classes <= 8 else np.uint16 if classes <= 16 else np.uint64


def _tile_places(
    needed: RequiredKinds, kinds: Kinds, kind_of: NDArray[np.integer]
) -> tuple[Tiles, NDArray[np.bool_]]:
    """Return the position of each entry's tile in the random order, and a mask of unused positions.

    The first entries of a kind use its tiles one by one; further entries start again with the first tile.
    """
    by_kind = np.argsort(kind_of, kind="stable")
    start_T = np.cumsum(kinds.tiles_T) - kinds.tiles_T
    chosen = np.empty(len(needed.kind_P), np.int64)
    # First uses come before repeats, so that a tile is repeated only when all of its kind are in use.
    for again in (False, True):
        entries = np.flatnonzero(needed.repeat_P == again)
        kind_P = needed.kind_P[entries]
        order = np.argsort(narrow(kind_P, len(kinds)), kind="stable")
        uses_T = np.bincount(kind_P, minlength=len(kinds))
        number = np.arange(len(order)) - np.repeat(np.cumsum(uses_T) - uses_T, uses_T)
        kind = kind_P[order]
        chosen[entries[order]] = by_kind[start_T[kind] + number % kinds.tiles_T[kind]]
    free = np.ones(len(kind_of), bool)
    free[chosen] = False
    return chosen, free


def _grid(
    needed: RequiredKinds,
    tile_P: Tiles,
    rest: Tiles,
    several_N: NDArray[np.bool_],
    batch: int,
    rng: np.random.Generator,
) -> tuple[Tiles, NDArray[np.bool_]]:
    """Return tiles (S, B), and a mask (S, B) of places whose tile is used several times; marks such tiles."""
    order = np.argsort(needed.row_P, kind="stable")
    uses_S = np.bincount(needed.row_P, minlength=needed.steps)
    row = needed.row_P[order]
    place = np.arange(len(order)) - np.repeat(np.cumsum(uses_S) - uses_S, uses_S)
    grid = np.full((needed.steps, batch), -1, np.int32)
    grid[row, place] = tile_P[order]
    open_places = np.flatnonzero(grid.reshape(-1) < 0)
    fillers = len(open_places) - len(rest)
    filled = rng.choice(len(open_places), fillers, replace=False) if fillers else np.empty(0, np.int64)
    is_rest = np.ones(len(open_places), bool)
    is_rest[filled] = False
    grid.reshape(-1)[open_places[is_rest]] = rest
    several_N[tile_P[needed.repeat_P]] = True
    if fillers:
        _fill(grid, several_N, open_places[filled], rng)
    return grid, several_N[grid]


def _fill(grid_SB: Tiles, several_N: NDArray[np.bool_], places: Tiles, rng: np.random.Generator) -> None:
    """Fill the remaining open places with tiles that are used once, and not in that row.

    If there are too few of these, tiles with the fewest uses fill the rest evenly, in any row.
    """
    batch = grid_SB.shape[1]
    waiting = rng.permutation(np.flatnonzero(~several_N).astype(np.int32))
    places = rng.permutation(places)
    for _ in range(_FILL_ROUNDS):
        tiles = waiting[: len(places)]
        fits = (grid_SB[places[: len(tiles)] // batch] != tiles[:, None]).all(axis=1)
        grid_SB.reshape(-1)[places[: len(tiles)][fits]] = tiles[fits]
        several_N[tiles[fits]] = True
        places = np.concatenate([places[len(tiles) :], places[: len(tiles)][~fits]])
        waiting = np.concatenate([waiting[len(tiles) :], tiles[~fits]])
    if not len(places):
        return
    uses_N = np.bincount(grid_SB[grid_SB >= 0], minlength=len(several_N))
    while len(places):
        tiles = rng.permutation(np.flatnonzero(uses_N == uses_N.min()))[: len(places)]
        grid_SB.reshape(-1)[places[: len(tiles)]] = tiles
        several_N[tiles], places = True, places[len(tiles) :]
        uses_N[tiles] += 1


def evenly_drawn(pool: Tiles, number: int, rng: np.random.Generator) -> Tiles:
    """Return `number` tiles of a pool; their numbers of uses differ by at most one."""
    rounds = [rng.permutation(pool)[: number - i] for i in range(0, number, max(1, len(pool)))]
    return np.concatenate(rounds) if rounds else np.empty(0, np.int64)


class _Grid(NamedTuple):
    """(steps, batch) tiles of rows, mask of places whose tile stays, and classes of the tiles as bits."""

    tiles_SB: Tiles
    fixed_SB: NDArray[np.bool_]
    codes_SB: NDArray[np.unsignedinteger]


def _mix(
    grid: _Grid, everything: int, need_SK: NDArray[np.int32] | None, sweep: int, rng: np.random.Generator
) -> None:
    """Swap about half of the tiles between random pairs of rows if both rows still hold what they need.

    This is a step of a Metropolis walk whose stationary distribution is uniform over all plans with
    coverage. Rows are in random order, so neighbours are random pairs.
    """
    grid_SB, fixed_SB, codes_SB = grid
    steps, batch = grid_SB.shape
    half = steps // 2
    if not half or not everything:
        return
    a, b = (
        (slice(0, half), slice(half, 2 * half))
        if sweep % 2 == 0
        else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    shift = int(rng.integers(batch))
    for array in grid:
        array[b] = np.roll(array[b], shift, axis=1)
    bits = rng.integers(0, 256, (half, -(-batch // 8)), np.uint8)
    swap = np.unpackbits(bits, axis=1, count=batch).view(bool) & ~(fixed_SB[a] | fixed_SB[b])
    first, second = np.where(swap, codes_SB[b], codes_SB[a]), np.where(swap, codes_SB[a], codes_SB[b])
    if need_SK is None:
        holds = [np.bitwise_or.reduce(side, axis=1) == everything for side in (first, second)]
    else:
        holds = [_enough(side, need_SK[rows]) for side, rows in ((first, a), (second, b))]
    swap &= (holds[0] & holds[1])[:, None]
    for array in (grid_SB, codes_SB):
        exchange = np.where(swap, array[a] ^ array[b], 0).astype(array.dtype)
        array[a] ^= exchange
        array[b] ^= exchange


def _enough(codes_SB: NDArray[np.unsignedinteger], need_SK: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return a (S,) mask: the row has as many tiles of each class as it needs."""
    enough_S = np.ones(len(codes_SB), bool)
    for c, need_S in enumerate(need_SK.T):
        enough_S &= np.count_nonzero(codes_SB & (1 << c), axis=1) >= need_S
    return enough_S


def _part_twins(
    grid_SB: Tiles,
    codes_SB: NDArray[np.unsignedinteger],
    need_SK: NDArray[np.int32],
    rng: np.random.Generator,
) -> None:
    """Swap the second use of a tile in a row with a tile of another row, if both keep what they need."""
    ordered = np.sort(grid_SB, axis=1)
    for row in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)).tolist():
        _, first = np.unique(grid_SB[row], return_index=True)
        for place in np.setdiff1d(np.arange(grid_SB.shape[1]), first).tolist():
            for other in rng.permutation(len(grid_SB))[:_TWIN_ROWS].tolist():
                if (grid_SB[other] == grid_SB[row, place]).any():
                    continue
                pair = [row, other]
                for there in np.flatnonzero(~np.isin(grid_SB[other], grid_SB[row])).tolist():
                    codes = codes_SB[pair]
                    codes[0, place], codes[1, there] = codes[1, there], codes[0, place]
                    if _enough(codes, need_SK[pair]).all():
                        break
                else:
                    continue
                for array in (grid_SB, codes_SB):
                    array[row, place], array[other, there] = array[other, there], array[row, place]
                break
