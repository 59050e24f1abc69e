"""Building of a recipe's model, and facts that follow from its layers.

A builder takes the recipe's model section, the number of bands and classes, a dtype policy and a flag for
synchronised BatchNorm, and returns a functional model from normalised bands to logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from segmenter.config.models import EncoderDecoderConfig, ModelConfig, UNetConfig
from segmenter.model.decoders import DECODERS
from segmenter.model.dropout import GlobalDropout
from segmenter.model.encoders import ENCODERS
from segmenter.model.layers import BilinearUpSampling, Layers
from segmenter.model.size import Shape, stage_of

_CONVOLUTIONS_PER_LEVEL = 2


def build_model(
    config: ModelConfig, bands: int, classes: int, *, dtype: str = "float32", synchronised: bool = False
) -> keras.Model:
    """Build a model from (B, H, W, bands) normalised pixels to (B, H, W, classes) logits.

    Args:
        dtype: a Keras dtype policy, `mixed_float16` for tensor cores. Logits are float32 at least.
        synchronised: for training: use `SyncBatchNorm`, over all replicas and with the same bits in each run,
            also on one device. The weights are the same.

    Height and width of the input must be multiples of the model's total stride.
    """
    return BUILDERS[config.kind](config, bands, classes, keras.DTypePolicy(dtype), synchronised)


def shapes_of(model: keras.Model) -> dict[str, Shape]:
    """Return the shape of each weight by path, without dropout's random state."""
    return {v.path: tuple(v.shape) for v in model.variables if not v.path.endswith("/masks")}


def stages_of(model: keras.Model, config: ModelConfig) -> dict[str, str]:
    """Return the stage of each weight by path, with the names that users see; see `stage_of`."""
    if config.kind == "unet":
        return {path: stage_of(path, config) for path in shapes_of(model)}
    return {path: model.stages[path.split("/")[0]] for path in shapes_of(model)}


# ------------------------------------------------------------------------------------------------------ U-Net


def unet(
    config: UNetConfig, bands: int, classes: int, policy: keras.DTypePolicy, synchronised: bool
) -> keras.Model:
    """Build a functional model from (B, H, W, bands) normalised pixels to (B, H, W, classes) logits."""
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
    """Repeated parts of a U-Net."""

    def __init__(self, config: UNetConfig, layers: Layers) -> None:
        self._config, self._layers = config, layers

    def width(self, level: int) -> int:
        return min(self._config.width * 2**level, self._config.max_width)

    def block(self, x: Any, width: int, name: str) -> Any:
        """Add two 3×3 convolutions, each normalised and rectified."""
        normalised = self._config.normalisation == "batch"
        for i in range(_CONVOLUTIONS_PER_LEVEL):
            # BatchNorm's own shift makes a bias useless.
            x = self._layers.conv(x, width, 3, f"{name}_conv{i}", use_bias=not normalised)
            if normalised:
                x = self._layers.norm(x, f"{name}_norm{i}")
            x = self._layers.relu(x, f"{name}_relu{i}")
        return x

    def enlarge(self, x: Any, width: int, name: str) -> Any:
        """Double height and width."""
        if self._config.upsampling == "transpose":
            return keras.layers.Conv2DTranspose(
                width, 2, strides=2, padding="same", dtype=self._layers.policy, name=name
            )(x)
        return self._layers.enlarge(x, 2, name, smooth=self._config.upsampling == "bilinear")


# ---------------------------------------------------------------------------------------- encoder and decoder


def encoder_decoder(
    config: EncoderDecoderConfig, bands: int, classes: int, policy: keras.DTypePolicy, synchronised: bool
) -> keras.Model:
    """Build a functional model from (B, H, W, bands) normalised pixels to (B, H, W, classes) logits.

    Logits are computed at the decoder's stride, 2 or 4, and enlarged bilinearly.
    """
    layers = Layers(policy, synchronised)
    image = keras.Input((None, None, bands), dtype=policy.variable_dtype, name="image")
    features = ENCODERS[config.encoder](image, layers, config)
    x, stride = DECODERS[config.decoder].build(features, layers, config)
    if config.dropout:
        x = GlobalDropout(config.dropout, dtype=policy, name="dropout")(x)
    # Logits of 16 bits overflow in the loss; the head computes in the precision of the weights.
    precision = policy.variable_dtype
    x = keras.layers.Conv2D(classes, 1, dtype=precision, name="logits")(x)
    x = BilinearUpSampling(stride, dtype=precision, name="logits_enlarge")(x)
    model = keras.Model(image, x, name=f"{config.encoder}_{config.decoder}")
    model.stages = _stages(model, features)
    return model


def _stages(model: keras.Model, features: list[Any]) -> dict[str, str]:
    """Return the stage of each layer; an encoder's stage n is the smallest with features at stride 2ⁿ."""
    stages: dict[str, str] = {}
    for number, feature in enumerate(features, 1):
        waiting = [] if feature is None else [feature]
        while waiting:
            layer = waiting.pop()._keras_history.operation
            if layer.name not in stages and not isinstance(layer, keras.layers.InputLayer):
                stages[layer.name] = f"encoder stage {number}"
                waiting += layer.input if isinstance(layer.input, list) else [layer.input]
    parts: dict[str, int] = {}
    for layer in model.layers:
        if layer.weights and layer.name.startswith("decoder_"):
            part = layer.name.split("_")[1]
            stages[layer.name] = f"decoder stage {parts.setdefault(part, len(parts) + 1)}"
    return {**stages, "logits": "head"}


BUILDERS: dict[str, Callable[..., keras.Model]] = {"unet": unet, "encoder_decoder": encoder_decoder}
