"""Decoder of DeepLabV3+ (Chen et al. 2018, arXiv:1802.02611)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segmenter.config.models import EncoderDecoderConfig

if TYPE_CHECKING:
    from segmenter.model.layers import Layers

_RATES = (6, 12, 18)
"""Dilation of the three branches at an output stride of 16."""
_LOW_LEVEL = 48
FINEST = 4
"""Stride of the low-level features."""


def deeplabv3plus(features: list[Any], layers: Layers, config: EncoderDecoderConfig) -> tuple[Any, int]:
    """Apply atrous spatial pyramid pooling to the deepest features, joined with those at stride 4.

    Rates are 6, 12 and 18 at an output stride of 16, and twice or half of that at 8 or 32, so that their
    reach on the ground is equal. Convolutions are depthwise separable, `decoder_width` channels wide (the
    paper: 256). The paper's branch of image-level features needs `image_pooling`: it is a mean over the whole
    window, so windows are no longer exact.
    """
    width = config.decoder_width
    rates = [rate * 16 // config.output_stride for rate in _RATES]
    deepest = layers.shared(features[-1], 4 + config.image_pooling, "decoder_aspp")
    branches = [layers.block(deepest[0], width, "decoder_aspp_1x1", kernel=1)]
    for rate, x in zip(rates, deepest[1:4], strict=True):
        branches.append(layers.separable_block(x, width, f"decoder_aspp_rate{rate}", dilation=rate))
    if config.image_pooling:
        from segmenter.model.decoders.pooling import pooled  # brings Keras, which no other part of it needs

        branches.append(pooled(deepest[4], 1, width, layers, "decoder_aspp_image"))
    x = layers.concatenate(branches, "decoder_aspp_join")
    x = layers.block(x, width, "decoder_aspp_project", kernel=1)
    x = layers.enlarge(x, config.output_stride // FINEST, "decoder_aspp_enlarge", smooth=True)
    low = layers.block(features[1], _LOW_LEVEL, "decoder_low", kernel=1)
    x = layers.concatenate([x, low], "decoder_fuse_join")
    for i in range(2):
        x = layers.separable_block(x, width, f"decoder_fuse_{i}")
    return x, FINEST
