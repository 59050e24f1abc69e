"""Encoders of Keras as they are there: stride, radius and sizes, against Keras' own shapes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from segmenter.model.graph import graph_of
from segmenter.model.receptive_field import describe, geometry_of
from segmenter.model.size import planes_of, shape_for


def _encoder(name: str) -> Any:
    import keras

    options: dict[str, Any] = {"include_top": False, "weights": None, "input_shape": (None, None, 3)}
    if name == "MobileNetV2":
        options["alpha"] = 0.35
    return getattr(keras.applications, name)(**options)


RADII = {"MobileNetV2": 245, "ResNet50": 241, "DenseNet121": 1021, "ConvNeXtTiny": 828}
"""Araujo, Norris & Sim (doi:10.23915/distill.00021) give the whole field, twice that and one: 491 pixels for
MobileNetV2, 483 for ResNet-50. What moves when a pixel changes: `test_encoder_reach.py`."""
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name != "MobileNetV2" else []) for name in RADII]


@pytest.mark.parametrize("name", NAMES)
def test_the_field_is_that_of_the_literature(tensorflow: ModuleType, name: str) -> None:
    geometry = geometry_of(_encoder(name))
    assert (geometry.stride, geometry.radius) == (32, RADII[name])


@pytest.mark.parametrize("name", ["EfficientNetV2B0", "MobileNetV3Small"])
def test_squeeze_and_excitation_leaves_the_stride_known(tensorflow: ModuleType, name: str) -> None:
    found = describe(_encoder(name))
    assert (found.stride, found.radius) == (32, None)
    assert "(GlobalAveragePooling2D) looks at the whole image" in found.unlimited
    assert found.bytes_per_pixel > 0


@pytest.mark.parametrize("name", [*NAMES, pytest.param("EfficientNetV2B0", marks=pytest.mark.slow)])
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
