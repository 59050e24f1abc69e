"""Feature pyramid with a head for segmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segmenter.config.models import EncoderDecoderConfig

if TYPE_CHECKING:
    from segmenter.model.layers import Layers

FINEST = 4
"""Stride at which the pyramid's levels are put together."""


def fpn(features: list[Any], layers: Layers, config: EncoderDecoderConfig) -> tuple[Any, int]:
    """Build the pyramid of arXiv:1612.03144 (Lin 2017) with the head of arXiv:1901.02446 (Kirillov 2019).

    Features at strides 4 to 32 become `decoder_width` channels each, the coarse added to the fine. 3×3
    convolutions of half that width, followed by bilinear enlargement except at the finest level, bring each
    level to stride 4; BatchNorm replaces group normalisation. Levels are concatenated, where the paper adds
    them: the next convolution weighs each channel of each level separately.
    """
    levels, width = [], config.decoder_width
    for x, stride in pyramid(features, layers, width):
        name = f"decoder_p{stride}"
        x = layers.conv(x, width, 3, f"{name}_output", use_bias=True)
        for step in range(max(1, (stride // FINEST).bit_length() - 1)):
            x = layers.block(x, width // 2, f"{name}_{step}")
            if stride > FINEST:
                x = layers.enlarge(x, 2, f"{name}_{step}_enlarge", smooth=True)
        levels.append(x)
    return layers.concatenate(levels, "decoder_join"), FINEST


def pyramid(features: list[Any], layers: Layers, width: int, top: Any = None) -> list[tuple[Any, int]]:
    """Convert features from stride 4 on to levels of one width, each added to all coarser ones.

    Args:
        features: features at strides 2, 4, …
        top: UPerNet's finished coarsest level; the 1×1 convolutions then have BatchNorm and a rectifier.

    Returns:
        Level and stride, the finest first.
    """
    levels: list[tuple[Any, int]] = [] if top is None else [(top, 2 ** len(features))]
    for i in reversed(range(1, len(features) - len(levels))):
        name = f"decoder_p{2 ** (i + 1)}"
        if top is None:
            x = layers.conv(features[i], width, 1, f"{name}_lateral", use_bias=True)
        else:
            x = layers.block(features[i], width, f"{name}_lateral", kernel=1)
        if levels:
            x = layers.add([x, layers.enlarge(levels[0][0], 2, f"{name}_enlarge")], f"{name}_add")
        levels.insert(0, (x, 2 ** (i + 1)))
    return levels
