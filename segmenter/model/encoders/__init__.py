"""Encoders by their names in recipes.

An encoder is a function (image (B, H, W, bands), `Layers`, the recipe's model section) → features at strides
2, 4, 8, 16 and 32, the finest first; None at stride 2 if it has none there. With an output stride of 16 or 8
the deepest features stay at that stride, by atrous convolutions. An encoder's layer names are free: only
those of decoders begin with `decoder_`, and the head is called `logits`.

EfficientNet-Lite is EfficientNet (Tan & Le 2019, arXiv:1905.11946) without squeeze-and-excitation, with ReLU6
in place of Swish, and stem and head of one width in all sizes (github.com/tensorflow/tpu,
models/official/efficientnet/lite). No layer uses a whole image, so windows stay exact. Convolutions have
TensorFlow's same-padding (with a stride, one pixel more below and on the right), as in the training of the
published weights.

ResNet (He et al. 2016, arXiv:1512.03385) follows PyTorch, to use its weights: padding is equal on all sides,
also with a stride; the 3×3 convolution of a bottleneck has its stride ("v1.5"); BatchNorm's epsilon is 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.architectures import LITE_STEM, RESNET_STEM, Block, blocks, has_projection
from segmenter.model.encoders.keras_applications import SOURCES
from segmenter.model.layers import Layers

_LITE_EPSILON = 1e-3
_RESNET_EPSILON = 1e-5


def efficientnet_lite(image: Any, layers: Layers, config: EncoderDecoderConfig) -> list[Any]:
    """Return features at strides 2, 4, 8, 16 and 32 (or the output stride), without the classifier's head."""
    x = layers.conv(image, LITE_STEM, 3, "stem_conv", strides=2)
    x = _activate(layers, x, "stem")
    chain = blocks(config.encoder, config.output_stride)
    features, residual, number = [], sum(map(_has_shortcut, chain)), 0
    for block in chain:
        number += _has_shortcut(block)
        x = _lite_block(x, layers, block, config.drop_path * number / max(1, residual))
        if block.feature:
            features.append(x)
    return features


def _has_shortcut(block: Block) -> bool:
    return block.inputs == block.outputs and block.stride == 1


def _lite_block(x: Any, layers: Layers, block: Block, drop_path: float) -> Any:
    """Apply expansion, depthwise convolution, projection (arXiv:1801.04381)."""
    before, name = x, block.name
    if block.bottleneck:
        x = layers.conv(x, block.width, 1, f"{name}_expand_conv")
        x = _activate(layers, x, f"{name}_expand")
    x = layers.depthwise(
        x, block.kernel, f"{name}_depthwise_conv", strides=block.stride, dilation_rate=block.dilation
    )
    x = _activate(layers, x, f"{name}_depthwise")
    x = layers.conv(x, block.outputs, 1, f"{name}_project_conv")
    x = layers.norm(x, f"{name}_project_norm", epsilon=_LITE_EPSILON)
    if _has_shortcut(block):
        x = layers.add([before, layers.drop_path(x, drop_path, f"{name}_drop_path")], f"{name}_add")
    return x


def _activate(layers: Layers, x: Any, name: str) -> Any:
    return layers.relu(layers.norm(x, f"{name}_norm", epsilon=_LITE_EPSILON), f"{name}_relu", most=6.0)


# ----------------------------------------------------------------------------------------------------- ResNet


def resnet(image: Any, layers: Layers, config: EncoderDecoderConfig) -> list[Any]:
    """Return features at strides 2 (the stem), 4, 8, 16 and 32 (or the output stride)."""
    x = _conv(image, layers, RESNET_STEM, 7, "stem_conv", stride=2)
    x = layers.relu(layers.norm(x, "stem_norm", epsilon=_RESNET_EPSILON), "stem_relu")
    features = [x]
    # Behind a rectifier a padding of 0 is one of minus infinity: no maximum changes.
    x = keras.layers.ZeroPadding2D(1, dtype=layers.policy, name="stem_pool_pad")(x)
    x = keras.layers.MaxPooling2D(3, 2, dtype=layers.policy, name="stem_pool")(x)
    chain = blocks(config.encoder, config.output_stride)
    for number, block in enumerate(chain, start=1):
        x = _resnet_block(x, layers, block, config.drop_path * number / len(chain))
        if block.feature:
            features.append(x)
            if number < len(chain):  # used by both branches of the next block, and by the decoder
                x = layers.share(x, 3, block.name)[-1]
    return features


def _resnet_block(x: Any, layers: Layers, block: Block, drop_path: float) -> Any:
    name, shortcut = block.name, x
    widths: tuple[int, ...]
    kernels: tuple[int, ...]
    if block.bottleneck:
        widths, kernels, strided = (block.width, block.width, block.outputs), (1, 3, 1), 1
    else:
        widths, kernels, strided = (block.width, block.outputs), (3, 3), 0
    for i, (width, kernel) in enumerate(zip(widths, kernels, strict=True)):
        stride = block.stride if i == strided else 1
        dilation = block.later if i > strided else block.dilation
        x = _conv(x, layers, width, kernel, f"{name}_conv{i + 1}", stride, dilation)
        x = layers.norm(x, f"{name}_norm{i + 1}", epsilon=_RESNET_EPSILON)
        if i < len(widths) - 1:
            x = layers.relu(x, f"{name}_relu{i + 1}")
    if has_projection(block):
        shortcut = layers.conv(shortcut, block.outputs, 1, f"{name}_shortcut_conv", strides=block.stride)
        shortcut = layers.norm(shortcut, f"{name}_shortcut_norm", epsilon=_RESNET_EPSILON)
    x = layers.drop_path(x, drop_path, f"{name}_drop_path")
    return layers.relu(layers.add([shortcut, x], f"{name}_add"), f"{name}_relu")


def _conv(
    x: Any, layers: Layers, width: int, kernel: int, name: str, stride: int = 1, dilation: int = 1
) -> Any:
    if stride == 1 or kernel == 1:  # the same on both sides in TensorFlow, too
        return layers.conv(
            x, width, kernel, name, strides=stride, dilation_rate=dilation if kernel > 1 else 1
        )
    x = keras.layers.ZeroPadding2D(kernel // 2, dtype=layers.policy, name=f"{name}_pad")(x)
    return layers.conv(x, width, kernel, name, strides=stride, padding="valid")


Encoder = Callable[[Any, Layers, EncoderDecoderConfig], list[Any]]

ENCODERS: dict[str, Encoder] = {
    **SOURCES,
    **dict.fromkeys(("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"), efficientnet_lite),
    **dict.fromkeys(("resnet18", "resnet34", "resnet50"), resnet),
}
