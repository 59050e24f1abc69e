"""Stride and radius of encoders and models: as the literature has them, and what moves with a pixel."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.receptive_field import network_geometry
from tests.helpers.encoder_pairs import ENCODERS
from tests.helpers.perturbation import all_move, as_list, make_all_contributions_count, moved_along

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
    import keras

    from segmenter.model.encoders import ENCODERS
    from segmenter.model.layers import Layers

    image = keras.Input((None, None, 3), dtype="float64")
    config = EncoderDecoderConfig(kind="encoder_decoder", encoder=name)
    features = ENCODERS[name](image, Layers(keras.DTypePolicy("float64"), False), config)
    model = keras.Model(image, [each for each in features if each is not None])
    make_all_contributions_count(model, np.random.default_rng(1))
    return model


def whole(encoder: str, decoder: str, gain: float = 0.5, **options: Any) -> Any:
    from segmenter.model.building import build_model

    settings = {"kind": "encoder_decoder", "encoder": encoder, "decoder": decoder, "decoder_width": 16}
    model = build_model(EncoderDecoderConfig.model_validate({**settings, **options}), 3, 2, dtype="float64")
    make_all_contributions_count(model, np.random.default_rng(1), gain)
    return model


def ungrouped(model: Any) -> Any:
    """The same sums without groups of one channel, which take TensorFlow 100 times as long in float64."""
    import keras

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
    """Of each output: nothing moves beyond its radius, something as far; it shifts with its stride alone."""
    import keras

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
    import keras

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
    import keras

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
