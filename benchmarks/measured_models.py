"""Models that formulas are held against: U-Nets of a recipe, and encoders of Keras with a plain decoder."""

from __future__ import annotations

from typing import Any

BANDS, CLASSES = 3, 6
ENCODERS = {
    "MobileNetV2": (
        "block_1_expand_relu",
        "block_3_expand_relu",
        "block_6_expand_relu",
        "block_13_expand_relu",
    ),
    "ResNet50": ("conv1_relu", "conv2_block3_out", "conv3_block4_out", "conv4_block6_out"),
}
"""Encoder of `keras.applications` → its tensors at a half, a quarter, an eighth and a sixteenth."""


def measured_model(name: str, depth: int = 4, width: int = 16) -> Any:
    """`unet`, or an encoder's name: a model with bands and classes as above, BatchNorm as in training."""
    from segmenter.config.models import UNetConfig
    from segmenter.model.building import build_model

    if name == "unet":
        return build_model(UNetConfig(depth=depth, width=width), BANDS, CLASSES, synchronised=True)
    return with_plain_decoder(name)


def with_plain_decoder(name: str, **options: Any) -> Any:
    """An encoder without weights; at each of its scales, a 3×3 convolution of both sides."""
    import keras

    encoder = getattr(keras.applications, name)(
        input_shape=(None, None, BANDS), include_top=False, weights=None, **options
    )
    skips = [encoder.inputs[0], *(encoder.get_layer(layer).output for layer in ENCODERS[name])]
    x = encoder.outputs[0]
    for level, skip in reversed(list(enumerate(skips))):
        x = keras.layers.UpSampling2D(2)(x)
        x = keras.layers.Concatenate()([x, skip])
        x = keras.layers.Conv2D(16 * 2**level, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(encoder.inputs, keras.layers.Conv2D(CLASSES, 1, name="logits")(x), name=name.lower())
