"""EfficientNet-Lite0 to 2: EfficientNet (Tan & Le 2019, arXiv:1905.11946) without squeeze-and-excitation.

With ReLU6 in place of Swish, and stem and head of one width in all sizes
(github.com/tensorflow/tpu, models/official/efficientnet/lite). No layer looks at a whole image, so windows
stay exact. Convolutions are same-padded as TensorFlow does it (with a stride, one pixel more below and on
the right): what the published weights were trained with.
"""

from __future__ import annotations

from typing import Any

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.architectures import LITE_STEM, Block, blocks
from segmenter.model.layers import Layers

_EPSILON = 1e-3


def efficientnet_lite(image: Any, layers: Layers, config: EncoderDecoderConfig) -> list[Any]:
    """Return features at strides 2, 4, 8, 16 and 32 (or the output stride), without the classifier's head."""
    x = layers.conv(image, LITE_STEM, 3, "stem_conv", strides=2)
    x = _activated(layers, x, "stem")
    chain = blocks(config.encoder, config.output_stride)
    features, residual, number = [], sum(map(_has_shortcut, chain)), 0
    for block in chain:
        number += _has_shortcut(block)
        x = _block(x, layers, block, config.drop_path * number / max(1, residual))
        if block.feature:
            features.append(x)
    return features


def _has_shortcut(block: Block) -> bool:
    return block.inputs == block.outputs and block.stride == 1


def _block(x: Any, layers: Layers, block: Block, drop_path: float) -> Any:
    """Apply expansion, depthwise convolution, projection (arXiv:1801.04381)."""
    before, name = x, block.name
    if block.bottleneck:
        x = layers.conv(x, block.width, 1, f"{name}_expand_conv")
        x = _activated(layers, x, f"{name}_expand")
    x = layers.depthwise(
        x, block.kernel, f"{name}_depthwise_conv", strides=block.stride, dilation_rate=block.dilation
    )
    x = _activated(layers, x, f"{name}_depthwise")
    x = layers.conv(x, block.outputs, 1, f"{name}_project_conv")
    x = layers.norm(x, f"{name}_project_norm", epsilon=_EPSILON)
    if _has_shortcut(block):
        x = layers.add([before, layers.drop_path(x, drop_path, f"{name}_drop_path")], f"{name}_add")
    return x


def _activated(layers: Layers, x: Any, name: str) -> Any:
    return layers.relu(layers.norm(x, f"{name}_norm", epsilon=_EPSILON), f"{name}_relu", most=6.0)
