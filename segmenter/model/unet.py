"""U-Net from scratch: a function that builds a functional Keras model."""

from __future__ import annotations

from typing import Any

import keras

from segmenter.config.models import UNetConfig
from segmenter.model.batchnorm import SyncBatchNorm
from segmenter.model.dropout import GlobalDropout

_CONVOLUTIONS_PER_LEVEL = 2


def unet(
    config: UNetConfig, bands: int, classes: int, policy: keras.DTypePolicy, synchronised: bool
) -> keras.Model:
    """A functional model from (B, H, W, bands) normalised pixels to (B, H, W, classes) logits."""
    layers = _Layers(config, policy, synchronised)
    image = keras.Input((None, None, bands), dtype=policy.variable_dtype, name="image")
    x, skips = image, []
    for level in range(config.depth):
        x = layers.block(x, layers.width(level), f"down{level}")
        skips.append(x)
        x = keras.layers.MaxPooling2D(2, dtype=policy, name=f"pool{level}")(x)
    x = layers.block(x, layers.width(config.depth), "bottom")
    if config.dropout:
        x = GlobalDropout(config.dropout, dtype=policy, name="dropout")(x)
    for level in reversed(range(config.depth)):
        x = layers.enlarge(x, layers.width(level), f"enlarge{level}")
        x = keras.layers.Concatenate(dtype=policy, name=f"join{level}")([x, skips[level]])
        x = layers.block(x, layers.width(level), f"up{level}")
    # Logits of 16 bits overflow in the loss; the head computes in the precision of the weights.
    logits = keras.layers.Conv2D(classes, 1, dtype=policy.variable_dtype, name="logits")(x)
    return keras.Model(image, logits, name="unet")


class _Layers:
    """The repeated parts of a U-Net, in one precision and with one kind of normalisation."""

    def __init__(self, config: UNetConfig, policy: keras.DTypePolicy, synchronised: bool) -> None:
        self._config, self._policy, self._synchronised = config, policy, synchronised

    def width(self, level: int) -> int:
        return min(self._config.width * 2**level, self._config.max_width)

    def block(self, x: Any, width: int, name: str) -> Any:
        """Two 3×3 convolutions, each normalised and rectified."""
        normalised = self._config.normalisation == "batch"
        for i in range(_CONVOLUTIONS_PER_LEVEL):
            x = keras.layers.Conv2D(
                width,
                3,
                padding="same",
                use_bias=not normalised,  # BatchNorm's own shift makes a bias useless
                kernel_initializer="he_normal",
                dtype=self._policy,
                name=f"{name}_conv{i}",
            )(x)
            if normalised:
                norm = SyncBatchNorm if self._synchronised else keras.layers.BatchNormalization
                x = norm(
                    momentum=0.9,  # short trainings validate early: 0.99 would lag hundreds of steps behind
                    dtype=self._policy,
                    name=f"{name}_norm{i}",
                )(x)
            x = keras.layers.ReLU(dtype=self._policy, name=f"{name}_relu{i}")(x)
        return x

    def enlarge(self, x: Any, width: int, name: str) -> Any:
        """Twice the height and width."""
        if self._config.upsampling == "transpose":
            return keras.layers.Conv2DTranspose(
                width, 2, strides=2, padding="same", dtype=self._policy, name=name
            )(x)
        mode = self._config.upsampling
        return keras.layers.UpSampling2D(2, interpolation=mode, dtype=self._policy, name=name)(x)
