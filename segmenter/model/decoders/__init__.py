"""Decoders by the name that recipes use.

A decoder is built by a function (features at strides 2 … 32, the first None where the encoder has none,
`Layers`, the recipe's model section) → features for the head, and their stride. Names of its layers begin
with `decoder_` and that of their stage. Nothing here brings Keras: `datasets check` asks for the stages.
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
        build: makes its layers.
        stages: names that follow `decoder_` in its layers with weights, counted: its stages for rates.
    """

    build: Callable[[list[Any], Layers, EncoderDecoderConfig], tuple[Any, int]]
    stages: int


DECODERS: dict[str, Decoder] = {
    "unet": Decoder(unet, 4),
    "fpn": Decoder(fpn, 4),
    "upernet": Decoder(upernet, 5),
    "deeplabv3plus": Decoder(deeplabv3plus, 3),
}
