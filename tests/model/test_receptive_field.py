"""Stride and radius of layers, encoders and models: the literature's, and what moves with a pixel."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.config.models import EncoderDecoderConfig
from segmenter.config.recipe import UNetConfig
from segmenter.model.building import build_model
from segmenter.model.decoders.pooling import PartMeans
from segmenter.model.layers import Layers
from segmenter.model.receptive_field import network_geometry
from segmenter.model.size import training_bytes_per_image
from tests.helpers.encoder_pairs import ENCODERS
from tests.helpers.perturbation import (
    all_move,
    as_list,
    farthest_moved,
    make_all_contributions_count,
    moved_along,
)


@pytest.mark.parametrize(("depth", "upsampling"), [(1, "bilinear"), (2, "transpose"), (3, "nearest")])
def test_outputs_of_a_unet_move_as_far_as_its_radius(
    tensorflow: ModuleType, depth: int, upsampling: str, rng: np.random.Generator
) -> None:
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
    image = keras.Input((64, 64, 4))
    x = keras.layers.Conv2D(4, 3, 2, padding="same")(image)
    return keras.Model(image, keras.layers.UpSampling2D(2)(layer(x)))


def test_a_layer_nobody_knows_means_smooth_never_a_guess(tensorflow: ModuleType) -> None:
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
    image = keras.Input((None, None, _CHANNELS), dtype="float64")
    x, signed = image, rng.random() < 0.3
    for _ in range(int(rng.integers(1, layers + 1))):
        x = _Blocks(rng, signed).block(x, 2)
    return keras.Model(image, x)


class _Blocks:
    def __init__(self, rng: np.random.Generator, signed: bool) -> None:
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


pytestmark = pytest.mark.usefixtures("tensorflow")
QUICK = ("resnet18", "efficientnet_lite0", "efficientnet_v2_b0")
"""One of each family, for every run of the tests; of MobileNetV2 see its radius below."""
SLOW = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ENCODERS]
SQUEEZING = [each for each in SLOW if "efficientnet_v2" in each.values[0]]
EXACT = [each for each in SLOW if each not in SQUEEZING]
AXES = [pytest.param(0, marks=pytest.mark.slow), 1]
FAR = 2048
"""Pixels: longer than what any encoder sees without means."""


def encoder_of(name: str) -> Any:
    from segmenter.model.encoders import ENCODERS

    image = keras.Input((None, None, 3), dtype="float64")
    config = EncoderDecoderConfig(kind="encoder_decoder", encoder=name)
    features = ENCODERS[name](image, Layers(keras.DTypePolicy("float64"), False), config)
    model = keras.Model(image, [each for each in features if each is not None])
    make_all_contributions_count(model, np.random.default_rng(1))
    return model


def whole(encoder: str, decoder: str, gain: float = 0.5, **options: Any) -> Any:
    settings = {"kind": "encoder_decoder", "encoder": encoder, "decoder": decoder, "decoder_width": 16}
    model = build_model(EncoderDecoderConfig.model_validate({**settings, **options}), 3, 2, dtype="float64")
    make_all_contributions_count(model, np.random.default_rng(1), gain)
    return model


def ungrouped(model: Any) -> Any:
    """The same sums without groups of one channel, which take TensorFlow 100 times as long in float64."""

    def depthwise(layer: Any) -> Any:
        options = layer.get_config()
        if options.get("groups", 1) == 1:
            return type(layer).from_config(options)
        same = {key: options[key] for key in ("name", "dtype", "kernel_size", "padding", "use_bias")}
        assert options["groups"] == options["filters"] == layer.input.shape[-1]
        return keras.layers.DepthwiseConv2D(**same)

    if all(getattr(layer, "groups", 1) == 1 for layer in model.layers):
        return model
    twin = keras.models.clone_model(model, clone_function=depthwise)
    for new, old in zip(twin.weights, model.weights, strict=True):
        new.assign(np.reshape(old, new.shape))  # (7, 7, 1, C) as (7, 7, C, 1)
    image = np.random.default_rng(2).random((1, 64, 64, 3))
    for new, old in zip(as_list(twin(image)), as_list(model(image)), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=1e-13 * np.abs(old).max())
    return twin


def assert_geometry_is_what_moves(model: Any, axis: int) -> None:
    """For each output: nothing moves beyond its radius, something as far; it shifts with its stride alone."""
    image, geometry = model.inputs[0], network_geometry(model)
    own = [network_geometry(keras.Model(image, output)) for output in model.outputs]
    assert geometry.stride == max(each.stride for each in own)
    assert geometry.radius is not None
    found = moved_along(ungrouped(model), geometry.stride, geometry.radius, axis)
    for each, moved in zip(own, found, strict=True):
        assert moved.farthest() == each.radius
        assert moved.shifts() == list(range(each.stride, geometry.stride + 1, each.stride))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", EXACT)
def test_features_move_as_far_as_their_radius_and_with_their_stride(name: str, axis: int) -> None:
    encoder = encoder_of(name)
    assert network_geometry(encoder).stride == 32
    assert_geometry_is_what_moves(encoder, axis)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("encoder", "decoder", "options"),
    [
        ("resnet18", "deeplabv3plus", {"output_stride": 16}),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("mobilenet_v2", "unet", {}),
                ("resnet18", "fpn", {}),
                ("resnet50", "deeplabv3plus", {"output_stride": 8}),
                ("keras_resnet50", "deeplabv3plus", {"output_stride": 8}),
                ("efficientnet_lite0", "unet", {}),
                ("mobilenet_v2", "deeplabv3plus", {"output_stride": 8}),
                ("densenet121", "unet", {}),
                ("convnext_tiny", "unet", {}),
            )
        ),
    ],
)
def test_a_whole_model_moves_as_far_as_its_radius_and_with_its_stride(
    encoder: str, decoder: str, options: dict[str, Any], axis: int
) -> None:
    model = whole(encoder, decoder, **options)
    assert network_geometry(model).stride == options.get("output_stride", 32)
    assert_geometry_is_what_moves(model, axis)


@pytest.mark.slow
@pytest.mark.parametrize("name", SQUEEZING)
def test_squeeze_and_excitation_lets_a_pixel_move_every_output(name: str) -> None:
    """In the dark it has nothing to scale, so that there only what is near moves: the means do it."""
    encoder = encoder_of(name)
    nets = [keras.Model(encoder.inputs[0], each) for each in encoder.outputs]
    unlimited = [network_geometry(net).radius is None for net in nets]
    assert unlimited == [False, False, False, True, True]
    assert all_move(encoder, FAR, around=1) == unlimited
    assert not any(all_move(encoder, FAR, around=0))
    assert_geometry_is_what_moves(keras.Model(encoder.inputs[0], encoder.outputs[:3]), axis=1)


@pytest.mark.parametrize(
    ("encoder", "decoder", "options"),
    [
        ("resnet18", "upernet", {}),
        # With a gain of ½ the change drowns in the finer features: 1 to 10¹⁶.
        pytest.param("efficientnet_v2_b0", "unet", {"gain": 1}, marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", "deeplabv3plus", {"image_pooling": True}, marks=pytest.mark.slow),
    ],
)
def test_without_a_radius_a_pixel_moves_every_output(
    encoder: str, decoder: str, options: dict[str, Any]
) -> None:
    model = whole(encoder, decoder, **options)
    assert (network_geometry(model).radius, network_geometry(model).stride) == (None, 32)
    assert all_move(model, FAR, around=1) == [True]


def _encoder(name: str) -> Any:
    options: dict[str, Any] = {"include_top": False, "weights": None, "input_shape": (None, None, 3)}
    if name == "MobileNetV2":
        options["alpha"] = 0.35
    return getattr(keras.applications, name)(**options)


RADII = {"MobileNetV2": 245, "ResNet50": 241, "DenseNet121": 1021}
"""Araujo, Norris & Sim (doi:10.23915/distill.00021) give the whole field, twice that and one: 491 pixels for
MobileNetV2, 483 for ResNet-50."""
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name != "MobileNetV2" else []) for name in RADII]


@pytest.mark.parametrize("name", NAMES)
def test_the_field_is_that_of_the_literature(tensorflow: ModuleType, name: str) -> None:
    geometry = network_geometry(_encoder(name))
    assert (geometry.stride, geometry.radius) == (32, RADII[name])
