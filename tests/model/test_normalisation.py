"""Normalisation: (pixel − mean) / deviation, as exact as the model's numbers are, of any type of pixels."""

from types import ModuleType

import numpy as np
import pytest

from segmenter.model.normalisation import Normalisation


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "int32", "uint64"])
def test_far_from_zero_differences_stay(tensorflow: ModuleType, dtype: str, by_rows: bool) -> None:
    tf = tensorflow
    step = 2.0**-10 if dtype == "float64" else 1
    offsets = np.array([4_500_000, 2_000_000_000 if dtype != "float64" else -80_000])
    ramp = np.arange(1024).reshape(32, 32, 1) * step
    image = (offsets + ramp).astype(dtype)
    mean, std = image.reshape(-1, 2).mean(axis=0, dtype=np.float64), [ramp.std()] * 2
    found = Normalisation.of(mean, std).apply(tf.constant(image[None]), by_rows=by_rows).numpy()
    assert found.dtype == np.float32
    expected = (image.astype(np.float64) - mean) / std
    np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-6)
    assert len(np.unique(found[..., 1])) == 1024


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_types_that_float32_holds_keep_their_bits(tensorflow: ModuleType, dtype: str, by_rows: bool) -> None:
    tf = tensorflow
    rng = np.random.default_rng(3)
    image, valid = rng.integers(0, 120, (9, 7, 3)).astype(dtype), rng.random((9, 7)) > 0.2
    mean, std = np.float32([91.3, 7.7, -3.1]), np.float32([30.1, 2.2, 9.9])
    scale = Normalisation.of(mean, std)
    found = scale.apply(tf.constant(image), tf.constant(valid), by_rows=by_rows).numpy()
    expected = (image.astype(np.float32) - mean) / std
    np.testing.assert_array_equal(found, np.where(valid[..., None], expected, 0))
