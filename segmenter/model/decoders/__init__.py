"""Decoders by their names in recipes.

A function builds a decoder from (features at strides 2 … 32, the first None if the encoder has none,
`Layers`, the recipe's model section); it returns features for the head, and their stride. Names of its layers
begin with `decoder_` and their stage. Keras is not imported here, since `datasets check` needs the stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.decoders.deeplabv3plus import deeplabv3plus
from segmenter.model.decoders.fpn import fpn
from segmenter.model.decoders.unet import unet
from segmenter.model.decoders.upernet import upernet

if TYPE_CHECKING:
    from segmenter.model.layers import Layers


@dataclass(frozen=True)
class Decoder:
    """A decoder.

    Attributes:
        build: function that adds its layers.
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
