"""Encoders of Keras: stride, radius and sizes, against gradients and Keras' own shapes."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.graph import graph_of
from segmenter.model.receptive_field import describe, geometry_of
from segmenter.model.tensor_sizes import planes_of, shape_for
from tests.helpers.perturbation import gradient_reach, make_all_contributions_count, pixel_reach


@pytest.fixture
def double(tensorflow: ModuleType) -> Iterator[None]:
    """Models are built in float64 meanwhile: gradients of 100 layers do not vanish."""
    import keras

    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")  # of inputs
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def _encoder(name: str) -> Any:
    import keras

    options: dict[str, Any] = {"include_top": False, "weights": None, "input_shape": (None, None, 3)}
    if name == "MobileNetV2":
        options["alpha"] = 0.35
    return getattr(keras.applications, name)(**options)


RADII = {"MobileNetV2": 245, "ResNet50": 241, "DenseNet121": 1021, "ConvNeXtTiny": 828}
"""Araujo, Norris & Sim (doi:10.23915/distill.00021) give the whole field, twice that and one: 491 pixels for
MobileNetV2, 483 for ResNet-50."""


@pytest.mark.parametrize(
    "name", ["MobileNetV2", *(pytest.param(n, marks=pytest.mark.slow) for n in list(RADII)[1:])]
)
def test_an_encoder_reaches_as_far_as_the_gradient(double: None, name: str) -> None:
    encoder = _encoder(name)
    geometry = geometry_of(encoder)
    assert (geometry.stride, geometry.radius) == (32, RADII[name])
    make_all_contributions_count(encoder, np.random.default_rng(1))
    width = (2 * (RADII[name] // 32) + 6) * 32
    assert gradient_reach(encoder, 32, 64, width) == RADII[name]


@pytest.mark.parametrize(
    ("encoder", "decoder", "options"),
    [
        ("resnet18", "deeplabv3plus", {"output_stride": 16}),
        pytest.param("efficientnet_lite0", "unet", {}, marks=pytest.mark.slow),
        pytest.param("resnet18", "fpn", {}, marks=pytest.mark.slow),
        pytest.param("resnet50", "deeplabv3plus", {"output_stride": 8}, marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", "unet", {}, marks=pytest.mark.slow),
        pytest.param("keras_resnet50", "fpn", {}, marks=pytest.mark.slow),
    ],
)
def test_a_whole_model_reaches_as_far_as_the_gradient_of_its_pixels(
    double: None, encoder: str, decoder: str, options: dict[str, Any]
) -> None:
    """Law 4 rests on it: never farther than the radius, and the radius is a pixel too large at the most."""
    from segmenter.model.building import build_model

    settings = {"kind": "encoder_decoder", "encoder": encoder, "decoder": decoder, "decoder_width": 16}
    model = build_model(EncoderDecoderConfig.model_validate({**settings, **options}), 3, 2)
    geometry = geometry_of(model)
    assert geometry.stride == options.get("output_stride", 32)
    assert geometry.radius is not None
    make_all_contributions_count(model, np.random.default_rng(1))
    assert geometry.radius - 1 <= pixel_reach(model, geometry.stride, geometry.radius) <= geometry.radius


def test_a_small_residual_encoder_reaches_as_far_as_the_gradient(double: None) -> None:
    """Blocks as ResNet-18 has them, in torch's geometry: padded by hand, then not at all."""
    import keras

    image = keras.Input((None, None, 3))
    x = _padded(image, 7, 2, 4)
    x = keras.layers.MaxPooling2D(3, 2)(keras.layers.ZeroPadding2D(1)(keras.layers.ReLU()(x)))
    for stride in (1, 2):
        y = keras.layers.BatchNormalization()(_padded(x, 3, stride, 4))
        y = _padded(keras.layers.ReLU()(y), 3, 1, 4)
        shortcut = keras.layers.Conv2D(4, 1, stride)(x) if stride > 1 else x
        x = keras.layers.ReLU()(keras.layers.Add()([y, shortcut]))
    model = keras.Model(image, x)
    make_all_contributions_count(model, np.random.default_rng(2))
    geometry = geometry_of(model)
    # 3 of the stem, 1 · 2 of the pool, 2 · 4 of the first block, (1 + 2) · 4 of the second, one side
    assert (geometry.stride, geometry.radius) == (8, 3 + 2 + 8 + 12)
    assert gradient_reach(model, 8, 24, 160) == geometry.radius


def _padded(x: Any, kernel: int, stride: int, filters: int) -> Any:
    import keras

    x = keras.layers.ZeroPadding2D(kernel // 2)(x)
    return keras.layers.Conv2D(filters, kernel, stride, use_bias=False)(x)


@pytest.mark.parametrize("name", ["EfficientNetV2B0", "MobileNetV3Small"])
def test_squeeze_and_excitation_leaves_the_stride_known(tensorflow: ModuleType, name: str) -> None:
    found = describe(_encoder(name))
    assert (found.stride, found.radius) == (32, None)
    assert "(GlobalAveragePooling2D) looks at the whole image" in found.unlimited
    assert found.bytes_per_pixel > 0


@pytest.mark.parametrize(
    "name",
    [
        "MobileNetV2",
        *(pytest.param(n, marks=pytest.mark.slow) for n in [*list(RADII)[1:], "EfficientNetV2B0"]),
    ],
)
def test_every_tensor_has_the_size_that_keras_infers(tensorflow: ModuleType, name: str) -> None:
    graph = graph_of(_encoder(name))
    planes, compared = planes_of(graph), 0
    for call in graph.calls:
        inputs, result = [planes[tensor] for tensor in call.inputs], planes[call.outputs[0]]
        for side in (320, 352):
            expected = shape_for(call, inputs, side)
            if result.extents is not None:
                assert expected[1:3] == tuple(side / e.scale + e.offset for e in result.extents), call
                compared += 1
            else:
                assert not {None, side} & set(expected[1:-1]), call
    assert compared > 100
