"""Statistics of bands that no scene was read for."""

import numpy as np

from segmenter.tiles.statistics import BandStatistics


def statistics_of(bands: int = 3, dtype: str = "uint8", mean: float = 100, std: float = 50) -> BandStatistics:
    """Of bands that are all alike; by default of 8-bit photographs."""
    return BandStatistics.of(dtype, np.full(bands, mean, float), np.full(bands, std, float))
