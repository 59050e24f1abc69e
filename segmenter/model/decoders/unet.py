"""Decoder of a U-Net (Ronneberger et al. 2015, arXiv:1505.04597) that ends at stride 2 to save time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segmenter.config.models import EncoderDecoderConfig

if TYPE_CHECKING:
    from segmenter.model.layers import Layers

_LEAST_WIDTH = 16


def unet(features: list[Any], layers: Layers, config: EncoderDecoderConfig) -> tuple[Any, int]:
    """Enlarge at each stride, join with the encoder's features, apply two 3×3 convolutions.

    Widths halve from `decoder_width` at stride 16, down to 16 channels. A level at full resolution, where the
    encoder has no features, would cost as much as a whole small encoder.
    """
    x = features[-1]
    for level in reversed(range(len(features) - 1)):
        name = f"decoder_up{level + 1}"
        x = layers.enlarge(x, 2, f"{name}_enlarge")
        if (skip := features[level]) is not None:
            x = layers.concatenate([x, skip], f"{name}_join")
        width = max(config.decoder_width >> (len(features) - 2 - level), _LEAST_WIDTH)
        for i in range(2):
            x = layers.block(x, width, f"{name}_{i}")
    return x, 2
