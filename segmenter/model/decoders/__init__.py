"""Decoders by the name that recipes use.

A decoder is a function (features at strides 2 … 32, the first None where the encoder has none, `Layers`, the
recipe's model section) → features for the head, and their stride. Names of its layers begin with `decoder_`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.decoders.deeplabv3plus import deeplabv3plus
from segmenter.model.decoders.fpn import fpn
from segmenter.model.decoders.unet import unet
from segmenter.model.decoders.upernet import upernet
from segmenter.model.layers import Layers

Decoder = Callable[[list[Any], Layers, EncoderDecoderConfig], tuple[Any, int]]

DECODERS: dict[str, Decoder] = {
    "unet": unet,
    "fpn": fpn,
    "upernet": upernet,
    "deeplabv3plus": deeplabv3plus,
}
