"""Stride and receptive-field radius, computed from the layers, against what moves when a pixel changes."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import UNetConfig
from segmenter.model.receptive_field import GlobalLayerError, describe, geometry_of
from segmenter.model.size import training_bytes_per_image
from tests.helpers.perturbation import make_all_contributions_count, moved_along


def test_a_known_network(tensorflow: ModuleType) -> None:
    from segmenter.model.building import build_model

    model = build_model(UNetConfig(depth=1, width=2), 1, 2)
    assert geometry_of(model).stride == 2
    assert geometry_of(build_model(UNetConfig(depth=4, width=4), 3, 2)).stride == 16


@pytest.mark.parametrize("upsampling", ["nearest", "bilinear", "transpose"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_outputs_of_a_unet_move_as_far_as_its_radius(
    tensorflow: ModuleType, depth: int, upsampling: str, rng: np.random.Generator
) -> None:
    from segmenter.model.building import build_model

    config = UNetConfig(depth=depth, width=3, upsampling=upsampling)
    model = build_model(config, 1, 2, dtype="float64")
    make_all_contributions_count(model, rng)
    geometry = geometry_of(model)
    assert geometry.radius is not None
    for axis in (0, 1):
        (moved,) = moved_along(model, geometry.stride, geometry.radius, axis)
        assert (moved.farthest(), moved.shifts()) == (geometry.radius, [2**depth])


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
    double = build_model(UNetConfig(depth=2, width=8), 3, 4, dtype="float64")
    assert training_bytes_per_image(double, 64, 64) == 2 * small
    # Not half: Keras' BatchNorm computes in float32 whatever the policy.
    assert small / 2 < training_bytes_per_image(mixed, 64, 64, mixed=True) < small * 1.05


def _network(layer: Any) -> Any:
    """3×3 at half the size, a layer, and back: stride 2 whatever the layer."""
    import keras

    image = keras.Input((64, 64, 4))
    x = keras.layers.Conv2D(4, 3, 2, padding="same")(image)
    return keras.Model(image, keras.layers.UpSampling2D(2)(layer(x)))


def test_a_layer_nobody_knows_means_smooth_never_a_guess(tensorflow: ModuleType) -> None:
    import keras

    from segmenter.model.decoders.pooling import PartMeans

    class Conv2D(keras.layers.Conv2D):
        """A known name is not enough: its `call` may do anything."""

        def call(self, inputs: Any) -> Any:
            return super().call(inputs) - keras.ops.mean(inputs, axis=(1, 2), keepdims=True)

    class Own(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs[:, ::-1]

    layers = keras.layers
    gap = layers.GlobalAveragePooling2D(keepdims=True)
    cases: dict[str, Any] = {
        "(Conv2D) is of a kind": Conv2D(4, 3, padding="same"),
        "(Own) is of a kind": Own(),
        "(Lambda) is of a kind": layers.Lambda(lambda x: x[:, ::-1], output_shape=(None, None, 4)),
        "(Flip) is of a kind": lambda x: keras.ops.flip(x, axis=1),
        "(Relu) is of a kind": keras.ops.relu,
        "(Softmax) is of a kind": lambda x: keras.ops.softmax(x, axis=1),
        "(Concatenate) is of a kind": lambda x: keras.ops.concatenate([x, x], axis=-1),
        "has an operand": lambda x: x + np.ones((1, 1, 1, 4), np.float32),
        "(Conv2D) has an activation of its own": layers.Conv2D(4, 1, activation=lambda x: x - x[:, :1, :1]),
        "(LayerNormalization) works along the axes": layers.LayerNormalization(axis=(1, -1)),
        "(BatchNormalization) computes as in training": lambda x: layers.BatchNormalization()(
            x, training=True
        ),
        "(GroupNormalization) looks at the whole": layers.GroupNormalization(2),
        "(PartMeans) looks at the whole image": lambda x: layers.Multiply()([x, PartMeans(1)(x)]),
        "enlarges by 'bicubic'": lambda x: layers.MaxPooling2D(2)(
            layers.UpSampling2D(2, interpolation="bicubic")(x)
        ),
        "enlarges bilinearly by 3": lambda x: layers.MaxPooling2D(3)(
            layers.UpSampling2D(3, interpolation="bilinear")(x)
        ),
        "(GlobalAveragePooling2D) looks at": lambda x: layers.Multiply()([x, layers.Dense(4)(gap(x))]),
    }
    for reason, layer in cases.items():
        model = _network(layer)
        found = describe(model)
        assert found.radius is None, reason
        assert reason in found.unlimited
        assert found.stride in (2, 4), f"{reason}: {found.stride}"
        assert found.bytes_per_pixel > 0
        with pytest.raises(GlobalLayerError, match=re.escape(reason)):
            geometry_of(model)


def test_an_unknown_layer_leaves_the_stride_of_the_others(tensorflow: ModuleType) -> None:
    """Keras says how large its output is: what follows is counted from there."""
    import keras

    image = keras.Input((None, None, 3))
    x = keras.layers.Lambda(lambda x: x[:, ::2, ::2], output_shape=None)(image)
    x = keras.layers.Conv2D(4, 3, 2, padding="same")(keras.ops.relu(x))
    x = keras.layers.UpSampling2D(4)(x)
    assert describe(keras.Model(image, x)).stride == 4


def test_a_subclassed_model_is_not_known(tensorflow: ModuleType) -> None:
    import keras

    class Own(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inputs

    found = describe(Own())
    assert (found.stride, found.radius) == (1, None)
    assert "no functional Keras model" in found.unlimited
    inner = keras.Input((None, None, 4))

    class Changed(keras.Model):
        def call(self, inputs: Any) -> Any:
            return super().call(inputs)[:, ::-1]

    changed = Changed(inner, keras.layers.Conv2D(4, 3, padding="same")(inner))
    assert "(Changed) is of a kind" in describe(_network(changed)).unlimited
    assert (
        describe(_network(keras.Sequential([inner, keras.layers.Conv2D(4, 3, padding="same")]))).radius == 4
    )


def test_rows_and_columns_may_differ(tensorflow: ModuleType) -> None:
    import keras

    image = keras.Input((None, None, 1))
    x = keras.layers.Conv2D(2, (1, 7), (2, 1), padding="same")(image)
    model = keras.Model(image, keras.layers.UpSampling2D((2, 1))(x))
    assert (geometry_of(model).stride, geometry_of(model).radius) == (2, 3)


def test_an_output_of_another_size_has_no_exact_windows(tensorflow: ModuleType) -> None:
    import keras

    image = keras.Input((None, None, 1))
    found = describe(keras.Model(image, keras.layers.Conv2D(2, 3)(image)))
    assert found.radius is None
    assert "larger or smaller than its image" in found.unlimited
