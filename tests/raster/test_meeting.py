"""Rectangles that meet: connected components, as a search over all pairs finds them."""

from __future__ import annotations

import numpy as np
import pytest

from segmenter.raster.ground import meeting


@pytest.mark.parametrize("margin", [-0.5, 0.0, 0.4])
def test_components_are_those_of_all_pairs(margin: float) -> None:
    rng = np.random.default_rng(7)
    for count in (1, 2, 9, 23, 41):
        low = rng.integers(0, 30, (count, 2)).astype(float)
        high = low + rng.integers(1, 6, (count, 2))
        near = ((low[:, None] < high + margin) & (low < high[:, None] + margin)).all(axis=2)
        near |= np.eye(count, dtype=bool)
        first = np.arange(count)
        for _ in range(count):
            first = np.array([first[row].min() for row in near])
        assert meeting(low, high, margin).tolist() == np.unique(first, return_inverse=True)[1].tolist()
