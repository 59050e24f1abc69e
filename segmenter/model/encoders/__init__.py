"""Encoders by the name that recipes use.

An encoder is a function (image (B, H, W, bands), `Layers`, the recipe's model section) → features at strides
2, 4, 8, 16 and 32, the finest first; None at stride 2 where it has none. With an output stride of 16 or 8
the deepest stay at that stride, by atrous convolutions. Names of its layers are its own: those of the decoder
begin with `decoder_`, the head is called `logits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.encoders.families import efficientnet_lite, resnet
from segmenter.model.encoders.keras_applications import SOURCES
from segmenter.model.layers import Layers

Encoder = Callable[[Any, Layers, EncoderDecoderConfig], list[Any]]

ENCODERS: dict[str, Encoder] = {
    **SOURCES,
    **dict.fromkeys(("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"), efficientnet_lite),
    **dict.fromkeys(("resnet18", "resnet34", "resnet50"), resnet),
}
