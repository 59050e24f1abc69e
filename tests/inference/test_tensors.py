"""Fused loops over pixels: what the plain operations give, whatever the number of pixels."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from segmenter.inference import function as tensors  # noqa: E402
from segmenter.inference.function import _as_byte, _largest, _weigh_logits  # noqa: E402

pytestmark = pytest.mark.usefixtures("tensorflow")  # which sets the devices up that other tests need


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_CHUNK", 64)
    monkeypatch.setattr(tensors, "_MOST_CHUNKS", 3)


SHAPES = [(1, 1, 1), (1, 7, 9), (1, 8, 8), (2, 8, 8), (3, 8, 8), (1, 5, 13), (3, 17, 19), (0, 8, 8)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("classes", [2, 21])
def test_the_largest_is_found_and_of_several_the_first(rng: np.random.Generator, classes: int) -> None:
    function = tf.function(
        lambda x: tensors.per_pixel(_largest, x),
        input_signature=[tf.TensorSpec([None, None, None, classes])],
    )
    for shape in SHAPES:
        scores = rng.integers(-2, 2, (*shape, classes)).astype(np.float32)
        np.testing.assert_array_equal(function(scores), scores.argmax(-1))


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_a_pixel_does_not_depend_on_how_many_are_with_it(rng: np.random.Generator) -> None:
    function = tf.function(
        lambda x, w: tensors.per_pixel(_weigh_logits, x, w),
        input_signature=[tf.TensorSpec([None, None, None, 5]), tf.TensorSpec([None, None, None])],
    )
    scores, weights = rng.normal(0, 9, (3, 16, 20, 5)), rng.random((3, 16, 20))
    scores, weights = scores.astype(np.float32), weights.astype(np.float32)
    whole = function(scores, weights).numpy()
    exact = np.exp(scores - scores.max(-1, keepdims=True), dtype=np.float64)
    exact *= weights[..., None] / exact.sum(-1, keepdims=True)
    np.testing.assert_allclose(whole, exact, rtol=1e-5, atol=1e-7)
    for count, height, width in SHAPES[:-1]:
        count, height, width = min(count, 3), min(height, 16), min(width, 20)
        part = slice(None, count), slice(None, height), slice(None, width)
        np.testing.assert_array_equal(function(scores[part], weights[part]), whole[part])


def test_a_byte_of_a_probability_is_the_nearest() -> None:
    shares = np.arange(1000) / 999  # none lies half-way between two bytes
    found = _as_byte(tf.constant(shares)).numpy()
    np.testing.assert_array_equal(found, np.floor(shares * 255 + 0.5))
