"""Model of an encoder, a decoder and a head: a function that builds a functional Keras model."""

from __future__ import annotations

from typing import Any

import keras

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.decoders import DECODERS
from segmenter.model.dropout import GlobalDropout
from segmenter.model.encoders import ENCODERS
from segmenter.model.layers import BilinearUpSampling, Layers


def encoder_decoder(
    config: EncoderDecoderConfig, bands: int, classes: int, policy: keras.DTypePolicy, synchronised: bool
) -> keras.Model:
    """A functional model from (B, H, W, bands) normalised pixels to (B, H, W, classes) logits.

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
    """Layer → its stage: of the encoder, n where it serves the features at stride 2ⁿ and no finer ones."""
    found: dict[str, str] = {}
    for number, feature in enumerate(features, 1):
        waiting = [] if feature is None else [feature]
        while waiting:
            layer = waiting.pop()._keras_history.operation
            if layer.name not in found and not isinstance(layer, keras.layers.InputLayer):
                found[layer.name] = f"encoder stage {number}"
                waiting += layer.input if isinstance(layer.input, list) else [layer.input]
    parts: dict[str, int] = {}
    for layer in model.layers:
        if layer.weights and layer.name.startswith("decoder_"):
            part = layer.name.split("_")[1]
            found[layer.name] = f"decoder stage {parts.setdefault(part, len(parts) + 1)}"
    return {**found, "logits": "head"}
