"""Stride and radius against what moves when a pixel changes: random stacks of layers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from segmenter.model.receptive_field import geometry_of
from tests.helpers.perturbation import farthest_moved, make_all_contributions_count
from tests.helpers.random_networks import random_network


def _measured(model: Any, rng: np.random.Generator) -> tuple[int, int]:
    """(radius by the formula, and what moved)."""
    make_all_contributions_count(model, rng)
    geometry = geometry_of(model)
    assert geometry.radius is not None
    cells = -(-geometry.radius // geometry.stride) + 1
    side = (2 * cells + 1) * geometry.stride
    assert model(np.zeros((1, side, side, 2))).shape[1:3] == (side, side)
    middle = cells * geometry.stride
    _assert_all_shifts(model, geometry.stride, middle, side)
    return geometry.radius, max(farthest_moved(model, geometry.stride, middle, side, rng))


def _assert_all_shifts(model: Any, by: int, middle: int, side: int) -> None:
    """What moves with a pixel is the same, a step of the stride on, where the pixel is one on."""
    images = np.zeros((2, side + by, side + by, 2))
    images[0, middle, middle] = images[1, middle + by, middle + by] = 1, 2
    first, second = np.asarray(model(images))
    np.testing.assert_allclose(second[by:, by:], first[:-by, :-by], rtol=1e-12, atol=0)


@hypothesis.settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_outputs_move_within_the_radius_and_as_far(tensorflow: ModuleType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_network(rng, 3)
    radius, moved = _measured(model, rng)
    assert moved == radius, [layer.get_config() for layer in model.layers]
