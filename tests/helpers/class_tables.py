"""Made tables of class counts for planning."""

import numpy as np


def table(tiles: int, shares: list[float], seed: int) -> np.ndarray:
    """(tiles, classes) pixel counts; a class is in a share of the tiles, somewhere at least."""
    rng = np.random.default_rng(seed)
    shape = tiles, len(shares)
    counts = np.where(rng.random(shape) < shares, rng.integers(32, 5000, shape), 0)
    for c in range(len(shares)):
        counts[rng.integers(tiles), c] = 40
    return counts.astype(np.int64)
