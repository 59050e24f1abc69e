"""Stride and receptive-field radius, computed from the layers, against what moves when a pixel changes."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.config.recipe import UNetConfig
from segmenter.model.receptive_field import network_geometry
from segmenter.model.size import training_bytes_per_image
from tests.helpers.perturbation import farthest_moved, make_all_contributions_count, moved_along


@pytest.mark.parametrize(("depth", "upsampling"), [(1, "bilinear"), (2, "transpose"), (3, "nearest")])
def test_outputs_of_a_unet_move_as_far_as_its_radius(
    tensorflow: ModuleType, depth: int, upsampling: str, rng: np.random.Generator
) -> None:
    from segmenter.model.building import build_model

    config = UNetConfig(depth=depth, width=3, upsampling=upsampling)
    model = build_model(config, 1, 2, dtype="float64")
    make_all_contributions_count(model, rng)
    geometry = network_geometry(model)
    assert geometry.radius is not None
    for axis in (0, 1):
        (moved,) = moved_along(model, geometry.stride, geometry.radius, axis)
        assert (moved.farthest(), moved.shifts()) == (geometry.radius, [2**depth])


def test_memory_is_that_of_the_tensors_alive_and_shrinks_with_precision(tensorflow: ModuleType) -> None:
    """By hand, in floats a pixel: where the skip is joined, 16 of it, 32 from below and 48 together."""
    from segmenter.model.building import build_model

    model = build_model(UNetConfig(depth=2, width=16, upsampling="nearest"), 3, 4)
    assert network_geometry(model).bytes_per_pixel == pytest.approx(4 * (16 + 32 + 48) * 1.7)

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

    class Own(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs[:, ::-1]

    layers = keras.layers
    gap = layers.GlobalAveragePooling2D(keepdims=True)
    cases: dict[str, Any] = {
        "(Own) is of a kind": Own(),
        "(Flip) is of a kind": lambda x: keras.ops.flip(x, axis=1),
        "(PartMeans) looks at the whole image": lambda x: layers.Multiply()([x, PartMeans(1)(x)]),
        "otherwise than a decoder here": lambda x: layers.MaxPooling2D(2)(
            layers.Conv2DTranspose(4, 2, 2, padding="valid")(x)
        ),
        "enlarges bilinearly by 3": lambda x: layers.MaxPooling2D(3)(
            layers.UpSampling2D(3, interpolation="bilinear")(x)
        ),
        "(GlobalAveragePooling2D) looks at": lambda x: layers.Multiply()([x, layers.Dense(4)(gap(x))]),
    }
    for reason, layer in cases.items():
        model = _network(layer)
        found = network_geometry(model)
        assert found.radius is None, reason
        assert reason in found.unlimited
        assert found.stride == 2, f"{reason}: {found.stride}"
        assert found.bytes_per_pixel > 0


def test_rows_and_columns_may_differ_and_another_size_has_no_exact_windows(tensorflow: ModuleType) -> None:
    import keras

    image = keras.Input((None, None, 1))
    x = keras.layers.Conv2D(2, (1, 7), (2, 1), padding="same")(image)
    model = keras.Model(image, keras.layers.UpSampling2D((2, 1))(x))
    assert (network_geometry(model).stride, network_geometry(model).radius) == (2, 3)

    image = keras.Input((None, None, 1))
    found = network_geometry(keras.Model(image, keras.layers.Conv2D(2, 3)(image)))
    assert found.radius is None
    assert "larger or smaller than its image" in found.unlimited


_CHANNELS = 2


def random_network(rng: np.random.Generator, layers: int) -> Any:
    """A float64 model of one to `layers` random blocks, from 2 bands to as many channels."""
    import keras

    image = keras.Input((None, None, _CHANNELS), dtype="float64")
    x, signed = image, rng.random() < 0.3
    for _ in range(int(rng.integers(1, layers + 1))):
        x = _Blocks(rng, signed).block(x, 2)
    return keras.Model(image, x)


class _Blocks:
    def __init__(self, rng: np.random.Generator, signed: bool) -> None:
        import keras

        self._rng, self._signed, self._layers = rng, signed, keras.layers

    def block(self, x: Any, levels: int) -> Any:
        kinds: list[Callable[[], Any]] = [
            *(lambda: self.same(x), lambda: self.same(x), lambda: self.padded(x)),
            *(lambda: self.pixelwise(x), lambda: self.pool(x)),
        ]
        if levels:
            kinds += [lambda: self.branches(x, levels)] + [lambda: self.down_and_up(x, levels)] * 2
        return self._one_of(kinds)()

    def _one_of(self, kinds: Sequence[Any]) -> Any:
        return kinds[self._rng.integers(len(kinds))]

    def same(self, x: Any) -> Any:
        kernel, dilation = tuple(map(int, self._rng.integers(1, 5, 2))), int(self._rng.integers(1, 4))
        options = {"padding": "same", "dilation_rate": dilation, "use_bias": False, "dtype": "float64"}
        if self._rng.random() < 0.3:
            return self._layers.DepthwiseConv2D(kernel, **options)(x)
        layer = self._layers.Conv2D(_CHANNELS, kernel, **options)
        return layer(layer(x)) if self._rng.random() < 0.2 else layer(x)

    def padded(self, x: Any) -> Any:
        top, bottom, left, right = map(int, self._rng.integers(0, 3, 4))
        x = self._layers.ZeroPadding2D(((top, bottom), (left, right)), dtype="float64")(x)
        kernel = (top + bottom + 1, left + right + 1)
        return self._layers.Conv2D(_CHANNELS, kernel, use_bias=False, dtype="float64")(x)

    def pixelwise(self, x: Any) -> Any:
        kinds = [
            lambda: self._layers.BatchNormalization(dtype="float64"),
            lambda: self._layers.Activation("gelu", dtype="float64"),
            lambda: self._layers.Dense(_CHANNELS, dtype="float64"),
        ]
        return self._one_of(kinds)()(x)

    def pool(self, x: Any) -> Any:
        return self._pool(tuple(map(int, self._rng.integers(1, 4, 2))), 1, padding="same", dtype="float64")(x)

    @property
    def _pool(self) -> Any:
        if self._signed or self._rng.random() < 0.5:
            return self._layers.AveragePooling2D
        return self._layers.MaxPooling2D

    def branches(self, x: Any, levels: int) -> Any:
        left, right = self.block(x, levels - 1), self.block(x, levels - 1)
        if self._rng.random() < 0.3:
            joined = self._layers.Concatenate(dtype="float64")([left, right, x])
            return self._layers.Conv2D(_CHANNELS, 1, dtype="float64")(joined)
        return self._layers.Add(dtype="float64")([left, right])

    def down_and_up(self, x: Any, levels: int) -> Any:
        by = int(self._rng.choice([2, 2, 4]))
        kernel = int(self._rng.integers(1, by + 3))
        way = self._rng.integers(4)
        options = {"use_bias": False, "dtype": "float64"}
        if way == 0:
            x = self._layers.Conv2D(_CHANNELS, kernel, by, padding="same", **options)(x)
        elif way == 1:
            x = self._pool(kernel, by, padding="same", dtype="float64")(x)
        elif way == 2:  # as keras.applications has it
            before = int(self._rng.integers(0, 3))
            x = self._layers.ZeroPadding2D(((before, by), (by, before)), dtype="float64")(x)
            x = self._layers.DepthwiseConv2D(before + by + 1, by, padding="valid", **options)(x)
        else:
            x = self._layers.AveragePooling2D(by, dtype="float64")(x)
        x = self.block(x, levels - 1)
        if self._rng.random() < 0.4:
            mode = "nearest" if self._rng.random() < 0.5 else "bilinear"
            return self._layers.UpSampling2D(by, interpolation=mode, dtype="float64")(x)
        kernel = by + int(self._rng.integers(0, 4))
        return self._layers.Conv2DTranspose(_CHANNELS, kernel, by, padding="same", **options)(x)


def _measured(model: Any, rng: np.random.Generator) -> tuple[int, int]:
    make_all_contributions_count(model, rng)
    geometry = network_geometry(model)
    assert geometry.radius is not None
    cells = -(-geometry.radius // geometry.stride) + 1
    side = (2 * cells + 1) * geometry.stride
    assert model(np.zeros((1, side, side, 2))).shape[1:3] == (side, side)
    middle = cells * geometry.stride
    _assert_all_shifts(model, geometry.stride, middle, side)
    return geometry.radius, max(farthest_moved(model, geometry.stride, middle, side, rng))


def _assert_all_shifts(model: Any, by: int, middle: int, side: int) -> None:
    images = np.zeros((2, side + by, side + by, 2))
    images[0, middle, middle] = images[1, middle + by, middle + by] = 1, 2
    first, second = np.asarray(model(images))
    np.testing.assert_allclose(second[by:, by:], first[:-by, :-by], rtol=1e-12, atol=0)


@hypothesis.settings(max_examples=12)
@given(seed=st.integers(0, 10_000))
def test_outputs_move_within_the_radius_and_as_far(tensorflow: ModuleType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_network(rng, 3)
    radius, moved = _measured(model, rng)
    assert moved == radius, [layer.get_config() for layer in model.layers]
