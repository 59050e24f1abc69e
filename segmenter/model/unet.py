"""U-Net family: functions that build functional Keras models, and what follows from their layers.

Later kinds (pretrained encoders) go into `BUILDERS`: a builder takes the recipe's model section, the number
of bands and classes and a dtype policy, and returns a model from normalised bands to float32 logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from segmenter.config.recipe import ModelConfig
from segmenter.model.batchnorm import SyncBatchNorm
from segmenter.model.dropout import GlobalDropout
from segmenter.model.receptive_field import NetworkGeometry, describe

_CONVOLUTIONS_PER_LEVEL = 2


def build_model(
    config: ModelConfig, bands: int, classes: int, *, dtype: str = "float32", synchronised: bool = False
) -> keras.Model:
    """A model from (B, H, W, bands) normalised pixels to (B, H, W, classes) logits.

    Args:
        config: the recipe's model section.
        dtype: a Keras dtype policy, `mixed_float16` for tensor cores. Logits are float32 at least.
        synchronised: for training: BatchNorm by `SyncBatchNorm`, over all replicas and with the same bits in
            each run, on one device too. The weights are the same.

    Height and width of the input are multiples of the model's total stride.
    """
    return BUILDERS[config.kind](config, bands, classes, keras.DTypePolicy(dtype), synchronised)


def network_geometry(model: keras.Model) -> NetworkGeometry:
    """Total stride, receptive-field radius and memory, computed from the model's own layers."""
    return describe(model)


def _unet(
    config: ModelConfig, bands: int, classes: int, policy: keras.DTypePolicy, synchronised: bool
) -> keras.Model:
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

    def __init__(self, config: ModelConfig, policy: keras.DTypePolicy, synchronised: bool) -> None:
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


BUILDERS: dict[str, Callable[..., keras.Model]] = {"unet": _unet}
