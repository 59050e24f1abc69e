"""Decoders by their names in recipes.

A function builds a decoder from (features at strides 2 … 32, the first None if the encoder has none,
`Layers`, the recipe's model section); it returns features for the head, and their stride. Names of its layers
begin with `decoder_` and their stage. Keras is not imported here, since `segmenter check` needs the stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from segmenter.config.models import EncoderDecoderConfig

if TYPE_CHECKING:
    from segmenter.model.layers import Layers

_LEAST_WIDTH = 16


def unet(features: list[Any], layers: Layers, config: EncoderDecoderConfig) -> tuple[Any, int]:
    """Enlarge at each stride, join with the encoder's features, apply two 3×3 convolutions.

    U-Net (Ronneberger et al. 2015, arXiv:1505.04597), which ends at stride 2 to save time. Widths halve from
    `decoder_width` at stride 16, down to 16 channels. A level at full resolution, where the encoder has no
    features, would cost as much as a whole small encoder.
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


_BINS = (1, 2, 3, 6)


def upernet(features: list[Any], layers: Layers, config: EncoderDecoderConfig) -> tuple[Any, int]:
    """Apply pyramid pooling (Zhao et al. 2017, arXiv:1612.01105) to the deepest features, then a pyramid.

    UPerNet (Xiao et al. 2018, arXiv:1807.10221). All levels have `decoder_width` channels (the paper: 512).
    Means over 1, 2², 3² and 6² parts of the window are joined to the deepest features: a pixel depends on the
    whole window, so prediction is smooth, not exact. Levels are enlarged to stride 4, concatenated, and fused
    by one 3×3 convolution.
    """
    from segmenter.model.decoders.pooling import pool  # brings Keras, which no other part of it needs

    width = config.decoder_width
    parts = layers.share(features[-1], len(_BINS) + 1, "decoder_pool")
    context = [
        pool(x, bins, width, layers, f"decoder_pool_{bins}") for bins, x in zip(_BINS, parts[1:], strict=True)
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


_RATES = (6, 12, 18)
"""Dilation of the three branches at an output stride of 16."""
_LOW_LEVEL = 48


def deeplabv3plus(features: list[Any], layers: Layers, config: EncoderDecoderConfig) -> tuple[Any, int]:
    """Apply atrous spatial pyramid pooling to the deepest features, joined with those at stride 4.

    DeepLabV3+ (Chen et al. 2018, arXiv:1802.02611). Rates are 6, 12 and 18 at an output stride of 16, and
    twice or half of that at 8 or 32, so that their reach on the ground is equal. Convolutions are depthwise
    separable, `decoder_width` channels wide (the paper: 256). The paper's branch of image-level features
    needs `image_pooling`: it is a mean over the whole window, so windows are no longer exact.
    """
    width = config.decoder_width
    rates = [rate * 16 // config.output_stride for rate in _RATES]
    deepest = layers.share(features[-1], 4 + config.image_pooling, "decoder_aspp")
    branches = [layers.block(deepest[0], width, "decoder_aspp_1x1", kernel=1)]
    for rate, x in zip(rates, deepest[1:4], strict=True):
        branches.append(layers.separable_block(x, width, f"decoder_aspp_rate{rate}", dilation=rate))
    if config.image_pooling:
        from segmenter.model.decoders.pooling import pool  # brings Keras, which no other part of it needs

        branches.append(pool(deepest[4], 1, width, layers, "decoder_aspp_image"))
    x = layers.concatenate(branches, "decoder_aspp_join")
    x = layers.block(x, width, "decoder_aspp_project", kernel=1)
    x = layers.enlarge(x, config.output_stride // FINEST, "decoder_aspp_enlarge", smooth=True)
    low = layers.block(features[1], _LOW_LEVEL, "decoder_low", kernel=1)
    x = layers.concatenate([x, low], "decoder_fuse_join")
    for i in range(2):
        x = layers.separable_block(x, width, f"decoder_fuse_{i}")
    return x, FINEST


@dataclass(frozen=True)
class Decoder:
    """A decoder.

    Attributes:
        stages: names after `decoder_` in its layers with weights: its stages, for learning rates.
    """

    build: Callable[[list[Any], Layers, EncoderDecoderConfig], tuple[Any, int]]
    stages: int


DECODERS: dict[str, Decoder] = {
    "unet": Decoder(unet, 4),
    "fpn": Decoder(fpn, 4),
    "upernet": Decoder(upernet, 5),
    "deeplabv3plus": Decoder(deeplabv3plus, 3),
}
