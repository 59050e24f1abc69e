"""Stride and receptive-field radius, computed from the layers, against what the gradient says."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from segmenter.config.recipe import UNetConfig
from segmenter.model.receptive_field import GlobalLayerError, describe, geometry_of, training_bytes_per_image


def test_a_known_network(tensorflow: ModuleType) -> None:
    from segmenter.model.building import build_model

    # Three 3×3 pairs at strides 1, 2, 1: by hand 2 + (1) + 4 + (up) … and as the gradient test confirms.
    model = build_model(UNetConfig(depth=1, width=2), 1, 2)
    assert geometry_of(model).stride == 2
    assert geometry_of(build_model(UNetConfig(depth=4, width=4), 3, 2)).stride == 16


@pytest.mark.parametrize("upsampling", ["nearest", "bilinear", "transpose"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_radius_is_what_the_gradient_reaches(tensorflow: ModuleType, depth: int, upsampling: str) -> None:
    import keras

    from segmenter.model.building import build_model

    tf = tensorflow
    keras.utils.set_random_seed(depth)
    model = build_model(UNetConfig(depth=depth, width=3, upsampling=upsampling), 1, 2)
    # Positive weights and inputs: no rectifier closes, no contribution cancels, and of a pool's four
    # pixels each must win somewhere, which random inputs over several draws give.
    for weight in model.trainable_variables:
        weight.assign(tf.abs(weight) + 0.01)
    geometry = geometry_of(model)
    side = (2 * geometry.radius // geometry.stride + 4) * geometry.stride
    draws = [tf.random.stateless_uniform((side, side, 1), (draw, depth)) for draw in range(12)]
    images, reached = tf.stack(draws), 0
    for offset in range(geometry.stride):
        at = side // 2 // geometry.stride * geometry.stride + offset
        with tf.GradientTape() as tape:
            tape.watch(images)
            value = tf.reduce_sum(model(images, training=False)[:, at, at])
        _, rows, cols, _ = np.nonzero(tape.gradient(value, images).numpy())
        reached = max(reached, int(np.abs(np.stack([rows, cols]) - at).max()))
    assert reached == geometry.radius


def test_a_global_layer_has_no_radius(tensorflow: ModuleType) -> None:
    import keras

    image = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, padding="same")(image)
    x = keras.layers.Multiply()([x, keras.layers.GlobalAveragePooling2D(keepdims=True)(x)])
    model = keras.Model(image, keras.layers.MaxPooling2D(2)(x))
    with pytest.raises(GlobalLayerError, match=r"GlobalAveragePooling2D.*whole image"):
        geometry_of(model)
    found = describe(model)
    assert (found.stride, found.radius) == (2, None)
    assert "GlobalAveragePooling2D" in found.unlimited
    assert found.bytes_per_pixel > 0


def test_memory_of_prediction_is_that_of_the_tensors_alive(tensorflow: ModuleType) -> None:
    """By hand, in floats a pixel: where the skip is joined, 16 of it, 32 from below and 48 together."""
    from segmenter.model.building import build_model

    model = build_model(UNetConfig(depth=2, width=16, upsampling="nearest"), 3, 4)
    assert describe(model).bytes_per_pixel == pytest.approx(4 * (16 + 32 + 48) * 1.7)
    assert describe(model).radius == geometry_of(model).radius


def test_memory_grows_with_the_pixels_and_shrinks_with_precision(tensorflow: ModuleType) -> None:
    from segmenter.model.building import build_model

    single = build_model(UNetConfig(depth=2, width=8), 3, 4)
    mixed = build_model(UNetConfig(depth=2, width=8), 3, 4, dtype="mixed_float16")
    small, large = (training_bytes_per_image(single, side, side) for side in (64, 128))
    assert large == 4 * small
    # Not half: Keras' BatchNorm computes in float32 whatever the policy.
    assert small / 2 < training_bytes_per_image(mixed, 64, 64, mixed=True) < small * 1.05
