"""U-Net from scratch: a function that builds a functional Keras model."""

from __future__ import annotations

from typing import Any

import keras

from segmenter.config.models import UNetConfig
from segmenter.model.dropout import GlobalDropout
from segmenter.model.layers import Layers

_CONVOLUTIONS_PER_LEVEL = 2


def unet(
    config: UNetConfig, bands: int, classes: int, policy: keras.DTypePolicy, synchronised: bool
) -> keras.Model:
    """A functional model from (B, H, W, bands) normalised pixels to (B, H, W, classes) logits."""
    blocks = _Blocks(config, Layers(policy, synchronised))
    image = keras.Input((None, None, bands), dtype=policy.variable_dtype, name="image")
    x, skips = image, []
    for level in range(config.depth):
        x = blocks.block(x, blocks.width(level), f"down{level}")
        skips.append(x)
        x = keras.layers.MaxPooling2D(2, dtype=policy, name=f"pool{level}")(x)
    x = blocks.block(x, blocks.width(config.depth), "bottom")
    if config.dropout:
        x = GlobalDropout(config.dropout, dtype=policy, name="dropout")(x)
    for level in reversed(range(config.depth)):
        x = blocks.enlarge(x, blocks.width(level), f"enlarge{level}")
        x = keras.layers.Concatenate(dtype=policy, name=f"join{level}")([x, skips[level]])
        x = blocks.block(x, blocks.width(level), f"up{level}")
    # Logits of 16 bits overflow in the loss; the head computes in the precision of the weights.
    logits = keras.layers.Conv2D(classes, 1, dtype=policy.variable_dtype, name="logits")(x)
    return keras.Model(image, logits, name="unet")


class _Blocks:
    """The repeated parts of a U-Net."""

    def __init__(self, config: UNetConfig, layers: Layers) -> None:
        self._config, self._layers = config, layers

    def width(self, level: int) -> int:
        return min(self._config.width * 2**level, self._config.max_width)

    def block(self, x: Any, width: int, name: str) -> Any:
        """Two 3×3 convolutions, each normalised and rectified."""
        normalised = self._config.normalisation == "batch"
        for i in range(_CONVOLUTIONS_PER_LEVEL):
            # BatchNorm's own shift makes a bias useless.
            x = self._layers.conv(x, width, 3, f"{name}_conv{i}", use_bias=not normalised)
            if normalised:
                x = self._layers.norm(x, f"{name}_norm{i}")
            x = self._layers.relu(x, f"{name}_relu{i}")
        return x

    def enlarge(self, x: Any, width: int, name: str) -> Any:
        """Twice the height and width."""
        if self._config.upsampling == "transpose":
            return keras.layers.Conv2DTranspose(
                width, 2, strides=2, padding="same", dtype=self._layers.policy, name=name
            )(x)
        return self._layers.enlarge(x, 2, name, smooth=self._config.upsampling == "bilinear")
