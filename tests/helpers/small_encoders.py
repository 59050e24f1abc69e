"""Encoders with hardly any blocks, by the code of their families: they compile in a tenth of the time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from segmenter.model.architectures import FAMILIES, Block

SMALL = "mobilenet_v2"
"""Name under which `small_encoder` stands while a test uses it."""


def small_network(*, include_top: bool, weights: None, input_shape: tuple[Any, ...]) -> Any:
    """A network as `keras.applications` has them, of five strided convolutions and two residual blocks."""
    import keras

    layers = keras.layers
    image = keras.Input(input_shape)
    x = image
    for level, width in enumerate((4, 4, 6, 6, 8), 1):
        x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
        x = layers.Conv2D(width, 3, strides=2, use_bias=False, name=f"b{level}a_conv")(x)
        x = layers.BatchNormalization(name=f"b{level}a_bn")(x)
        x = layers.ReLU(6.0, name=f"b{level}a_relu")(x)
        if level == 4:
            y = layers.DepthwiseConv2D(3, padding="same", name=f"b{level}b_depthwise")(x)
            y = layers.BatchNormalization(name=f"b{level}b_project")(y)
            y = layers.Dropout(0.5, noise_shape=(None, 1, 1, 1), name=f"b{level}b_drop")(y)
            shortcut = layers.Conv2D(width, 1, name=f"b{level}b_0_bn")(x)
            x = layers.Add(name=f"b{level}b_add")([shortcut, y])
            x = layers.ReLU(name=f"b{level}b_out")(x)
            # a third user of the feature, as in a ResNet
            x = layers.Add(name=f"b{level}c_add")([x, layers.Conv2D(width, 1, name=f"b{level}c_conv")(x)])
    return keras.Model(image, x)


def small_encoder() -> Any:
    """`small_network` as an encoder: for tests of decoders, as it compiles in a tenth of the time."""
    from segmenter.model.encoders.keras_applications import KerasNetwork

    return KerasNetwork(small_network, ("b1a_relu", "b2a_relu", "b3a_relu", "b4b_out", "b5a_relu"))


def smallest_of_keras(encoder: str) -> Any:
    """An encoder of `keras.applications` with hardly any blocks, by Keras' own code for the family."""
    from keras.src.applications import convnext, densenet, efficientnet_v2

    from segmenter.model.encoders.keras_applications import SOURCES, KerasNetwork

    if encoder == "densenet121":
        return replace(SOURCES[encoder], make=partial(densenet.DenseNet, [1, 1, 2, 1]))
    if encoder == "convnext_tiny":
        sizes = ([1, 1, 2, 1], [4, 4, 6, 8])
        return replace(SOURCES[encoder], make=partial(convnext.ConvNeXt, *sizes, name=encoder))
    stages = [
        stage | {"num_repeat": 2 if number == 3 else 1}
        for number, stage in enumerate(efficientnet_v2.DEFAULT_BLOCKS_ARGS["efficientnetv2-b0"])
    ]
    make = partial(efficientnet_v2.EfficientNetV2, 0.25, 1.0, 224, blocks_args=stages)
    ends = ("block2a_project_bn", "block3a_project_bn", "block4b_add", "block6a_project_bn")
    return KerasNetwork(make, ("block1a_project_activation", *ends), {"include_preprocessing": False})


def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make encoders of each family such with hardly any blocks, by its own code; MobileNetV2 is made."""
    for family in _STEMS:
        narrow(family, monkeypatch)
    encoders = import_module("segmenter.model.encoders").ENCODERS
    for encoder in ("densenet121", "convnext_tiny", "efficientnet_v2_b0"):
        monkeypatch.setitem(encoders, encoder, smallest_of_keras(encoder))
    monkeypatch.setitem(encoders, SMALL, small_encoder())


_STEMS = {"resnet": "RESNET_STEM", "efficientnet_lite": "LITE_STEM"}
"""Family of `model.encoders` → its module's name for the channels of the first convolution."""


def narrow(family: str, monkeypatch: pytest.MonkeyPatch, by: int = 16) -> None:
    """Encoders of a family with a sixteenth of the channels and a block a stage, in the second two.

    The family's own code builds them, so that they are of it as the large ones are.
    """
    families = import_module("segmenter.model.encoders")
    monkeypatch.setattr(families, _STEMS[family], getattr(families, _STEMS[family]) // by)
    monkeypatch.setattr(families, "blocks", _fewer(families.blocks, family, by))


def _fewer(
    blocks: Callable[[str, int], list[Block]], family: str, by: int
) -> Callable[[str, int], list[Block]]:
    def fewer(encoder: str, output_stride: int) -> list[Block]:
        every = blocks(encoder, output_stride)
        if FAMILIES[encoder] != family:
            return every
        ends = {block.name.partition("_")[0] for block in every if block.feature}
        kept = [b for b in every if b.name.endswith("_block1") or b.name == "stage2_block2"]
        last = {block.name.partition("_")[0]: block.name for block in kept}
        found, inputs = [], kept[0].inputs // by
        for block in kept:
            stage, outputs = block.name.partition("_")[0], max(2, block.outputs // by)
            width = max(2, inputs * block.width // block.inputs)
            feature = stage in ends and last[stage] == block.name
            found.append(replace(block, inputs=inputs, width=width, outputs=outputs, feature=feature))
            inputs = outputs
        return found

    return fewer
