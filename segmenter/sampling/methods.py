"""Epochs that promise no class: shuffled, by repeat factors, by rare classes, by foreground. Pure NumPy.

Like the plan, each depends only on (seed, epoch). It is as long as one pass over the tiles; repeat factors
add the same number of steps to each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.config.sampling import SamplingConfig
from segmenter.sampling.rows import evenly_drawn, shuffle_tiles

Tiles = NDArray[np.int64]

_ONE = 1 << 32
"""Units of one use: repeats are counted in whole units, so that no epoch's length depends on float sums."""


@dataclass(frozen=True)
class Drawn:
    """Rows of an epoch.

    Attributes:
        rows_SB: (steps, global batch) tile indices.
        wanted_SB: class for which each tile was drawn and which it must show, −1 for none; None: none at all.
    """

    rows_SB: Tiles
    wanted_SB: Tiles | None = None
    fillers: int = 0


def drawn_epoch(
    counts_NK: NDArray[np.integer], global_batch: int, config: SamplingConfig, seed: int, epoch: int
) -> Drawn:
    """Draw an epoch by `config.method`; `plan` without coverage is a shuffle.

    Raises:
        DatasetError: no tile holds any class, or the batch is too small for one tile of foreground.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, epoch]))
    if config.method == "repeat_factor":
        return _repeat_tiles(counts_NK, global_batch, config, rng)
    if config.method == "rare_class":
        return _rare_class(counts_NK, global_batch, config, rng)
    if config.method == "foreground":
        return _foreground(counts_NK, global_batch, config, rng, (seed, epoch))
    rows_SB = shuffle_tiles(len(counts_NK), global_batch, rng)
    return Drawn(rows_SB, fillers=rows_SB.size - len(counts_NK))


# -------------------------------------------------------------------------------- repeat factors


def repeat_factors(counts_NK: NDArray[np.integer], min_pixels: int, threshold: float) -> NDArray[np.float64]:
    """Return (N,) mean uses of each tile in an epoch: maximum over its classes of max(1, √(t / f_c)).

    f_c is the share of the tiles that hold class c (Gupta et al. 2019, arXiv:1908.03195).
    """
    holds_NK = counts_NK >= min_pixels
    share_K = np.maximum(holds_NK.mean(axis=0), 1 / max(1, len(holds_NK)))
    factor_K = np.maximum(1.0, np.sqrt(threshold / share_K))
    return np.asarray(np.where(holds_NK, factor_K, 1.0).max(axis=1, initial=1.0))


def _repeat_tiles(
    counts_NK: NDArray[np.integer], batch: int, config: SamplingConfig, rng: np.random.Generator
) -> Drawn:
    """Draw each tile ⌊r⌋ or ⌈r⌉ times, r on average; all in random order.

    Rounded by systematic sampling over the tiles in random order (Madow 1949): for each tile as in the paper,
    but the total is constant to one use, and the number of steps is constant.
    """
    factor_N = repeat_factors(counts_NK, config.min_pixels, config.repeat_threshold)
    whole_N = np.floor(factor_N).astype(np.int64)
    part_N = np.rint((factor_N - whole_N) * _ONE).astype(np.int64)
    steps = -(-(int(whole_N.sum()) * _ONE + int(part_N.sum())) // (batch * _ONE))
    order = rng.permutation(len(factor_N))
    passed = (np.cumsum(part_N[order]) + int(rng.integers(_ONE))) // _ONE
    whole_N[order] += np.diff(passed, prepend=0)
    tiles = np.repeat(np.arange(len(factor_N)), whole_N)
    fillers = steps * batch - len(tiles)
    tiles = np.concatenate([tiles, evenly_drawn(np.arange(len(factor_N)), fillers, rng)])
    return Drawn(rng.permutation(tiles).reshape(steps, batch), fillers=fillers)


# ------------------------------------------------------------------------- rare classes, foreground


def rare_class_odds(
    counts_NK: NDArray[np.integer], min_pixels: int, temperature: float
) -> NDArray[np.float64]:
    """Return (K,) probabilities of drawing each class: softmax of (1 − f_c) / T; 0 if no tile holds it.

    f_c is the class's share of the pixels (Hoyer et al. 2022, arXiv:2111.14887).
    """
    pixels_K = counts_NK.sum(axis=0)
    share_K = pixels_K / max(1, int(pixels_K.sum()))
    held_K = (counts_NK >= min_pixels).any(axis=0)
    with np.errstate(over="ignore"):  # a tiny temperature: all but the rarest are then never drawn
        below_K = (share_K[held_K].min(initial=1.0) - share_K) / temperature
    rising_K = np.exp(np.where(held_K, below_K, -np.inf))  # above 0 only where no tile holds the class
    return np.asarray(rising_K / max(rising_K.sum(), 1e-300))


def _rare_class(
    counts_NK: NDArray[np.integer], batch: int, config: SamplingConfig, rng: np.random.Generator
) -> Drawn:
    """Draw a class for each place, then a tile that holds it; use all of a class before any is repeated."""
    _check_held(counts_NK, config)
    odds_K = rare_class_odds(counts_NK, config.min_pixels, config.rare_temperature)
    shape = (-(-len(counts_NK) // batch), batch)
    wanted_SB = rng.choice(len(odds_K), shape, p=odds_K)
    rows_SB = np.empty(shape, np.int64)
    for c in np.unique(wanted_SB):
        holders = np.flatnonzero(counts_NK[:, c] >= config.min_pixels)
        places = wanted_SB == c
        rows_SB[places] = evenly_drawn(holders, int(places.sum()), rng)
    return Drawn(rows_SB, wanted_SB.astype(np.int64))


def _foreground(
    counts_NK: NDArray[np.integer],
    batch: int,
    config: SamplingConfig,
    rng: np.random.Generator,
    key: tuple[int, int],
) -> Drawn:
    """Draw batches in which a share of the tiles shows a randomly drawn class; the others are shuffled.

    nnU-Net (Isensee et al. 2021, doi:10.1038/s41592-020-01008-z): B − round(B · (1 − share)) tiles of a
    batch. nnU-Net draws a case, one of its classes, and a pixel of that; a tile is too small for that, so
    here a class is drawn first, uniformly, then one of its pixels in any tile. The other places use all tiles
    before any is repeated, also across epochs.
    """
    _check_held(counts_NK, config)
    forced = foreground_places(config, batch)
    steps = -(-len(counts_NK) // batch)
    holds_NK = counts_NK >= config.min_pixels
    wanted_SF = rng.choice(np.flatnonzero(holds_NK.any(axis=0)), (steps, forced))
    tiles_SF = np.empty((steps, forced), np.int64)
    for c in np.unique(wanted_SF):
        holders = np.flatnonzero(holds_NK[:, c])
        odds = counts_NK[holders, c] / counts_NK[holders, c].sum()
        places = wanted_SF == c
        tiles_SF[places] = rng.choice(holders, int(places.sum()), p=odds)
    others = steps * (batch - forced)
    rest = _endless(len(counts_NK), key[0], key[1] * others, others).reshape(steps, batch - forced)
    place_SB = rng.permuted(np.tile(np.arange(batch), (steps, 1)), axis=1)
    rows_SB = np.concatenate([tiles_SF, rest], axis=1)
    wanted_SB = np.concatenate([wanted_SF, np.full_like(rest, -1)], axis=1)
    both = [np.take_along_axis(part, place_SB, axis=1) for part in (rows_SB, wanted_SB)]
    return Drawn(both[0], both[1])


def foreground_places(config: SamplingConfig, batch: int) -> int:
    """Return the number of tiles in a batch that must show a randomly drawn class.

    Raises:
        DatasetError: the share gives no tile of the batch.
    """
    if forced := batch - round(batch * (1 - config.foreground_share)):
        return forced
    raise DatasetError(
        f"sampling.foreground_share: {config.foreground_share:g} of a training.global_batch of {batch} is "
        "less than half a tile",
        expected="a larger share or batch",
    )


def _endless(tiles: int, seed: int, first: int, number: int) -> Tiles:
    """Return `number` tiles from position `first` of an endless sequence of permutations of all tiles."""
    turns: Sequence[int] = range(first // tiles, (first + number) // tiles + 1)
    rows = [_turn(tiles, seed, turn) for turn in turns]
    start = first - turns[0] * tiles
    return np.concatenate(rows)[start : start + number]


def _turn(tiles: int, seed: int, turn: int) -> Tiles:
    return np.random.default_rng(np.random.SeedSequence([seed, turn], spawn_key=(1,))).permutation(tiles)


def _check_held(counts_NK: NDArray[np.integer], config: SamplingConfig) -> None:
    if not (counts_NK >= config.min_pixels).any():
        raise DatasetError(
            f"sampling.method: {config.method}",
            expected=f"tiles that hold a class, none shows {config.min_pixels} pixels of any",
            remedy="lower sampling.min_pixels, or use sampling.method: shuffle",
        )
