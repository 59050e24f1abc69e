"""Encoders by their names in recipes.

An encoder is a function (image (B, H, W, bands), `Layers`, the recipe's model section) → features at strides
2, 4, 8, 16 and 32, the finest first; None at stride 2 if it has none there. With an output stride of 16 or 8
the deepest features stay at that stride, by atrous convolutions. An encoder's layer names are free: only
those of decoders begin with `decoder_`, and the head is called `logits`.
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
