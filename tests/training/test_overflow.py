"""A pixel that overflows in the forward pass of one replica: skipped, and nothing of it stays."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.helpers.mixed_training import CLASSES, REPLICAS, SIDE, Training


@pytest.mark.parametrize("bad", [0, 2])
def test_an_overflow_on_the_way_forward_leaves_no_trace(tensorflow: ModuleType, bad: int) -> None:
    """With BatchNorm every replica sees it, in the statistics; these must be finite again at once."""
    training = Training("batch")
    rng = np.random.default_rng(8)
    label = rng.integers(0, CLASSES, (REPLICAS, 1, SIDE, SIDE)).astype(np.uint8)
    image = rng.uniform(0, 255, (REPLICAS, 1, SIDE, SIDE, 3)).astype(np.float32)
    bright = image.copy()
    bright[bad, 0, 3, 3, 0] = 1e7  # after normalisation above the largest float16, 65504

    def step(pixels: np.ndarray) -> float:
        return float(training.step(training._dealt(pixels, np.ones(label.shape, bool), label))[0])

    assert np.isfinite(step(image))
    before = [v.numpy() for v in training.model.trainable_variables]
    scale = float(training.optimiser.dynamic_scale.numpy())
    assert not np.isfinite(step(bright))
    assert float(training.optimiser.dynamic_scale.numpy()) == scale / 2
    for was, now in zip(before, training.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(was, now.numpy())
    assert all(np.isfinite(copy).all() for copy in training.weights())
    assert np.isfinite(step(image))
    assert all(np.isfinite(copy).all() for copy in training.weights())
    assert any(
        (was != now.numpy()).any()
        for was, now in zip(before, training.model.trainable_variables, strict=True)
    )
