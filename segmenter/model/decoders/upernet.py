"""Decoder of UPerNet (Xiao et al. 2018, arXiv:1807.10221)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.decoders.fpn import FINEST, pyramid

if TYPE_CHECKING:
    from segmenter.model.layers import Layers

_BINS = (1, 2, 3, 6)


def upernet(features: list[Any], layers: Layers, config: EncoderDecoderConfig) -> tuple[Any, int]:
    """Apply pyramid pooling (Zhao et al. 2017, arXiv:1612.01105) to the deepest features, then a pyramid.

    All levels have `decoder_width` channels (the paper: 512). Means over 1, 2², 3² and 6² parts of the window
    are joined to the deepest features: a pixel depends on the whole window, so prediction is smooth, not
    exact. Levels are enlarged to stride 4, concatenated, and fused by one 3×3 convolution.
    """
    from segmenter.model.decoders.pooling import pooled  # brings Keras, which no other part of it needs

    width = config.decoder_width
    parts = layers.shared(features[-1], len(_BINS) + 1, "decoder_pool")
    context = [
        pooled(x, bins, width, layers, f"decoder_pool_{bins}")
        for bins, x in zip(_BINS, parts[1:], strict=True)
    ]
    deepest = layers.concatenate([parts[0], *context], "decoder_pool_join")
    deepest = layers.block(deepest, width, "decoder_pool_project")
    levels = []
    for x, stride in pyramid(features, layers, width, top=deepest):
        if stride < 2 ** len(features):  # the deepest is what the pooling left
            x = layers.block(x, width, f"decoder_p{stride}_output")
        levels.append(layers.enlarge(x, stride // FINEST, f"decoder_p{stride}_level", smooth=True))
    x = layers.concatenate(levels, "decoder_fuse_join")
    return layers.block(x, width, "decoder_fuse"), FINEST
