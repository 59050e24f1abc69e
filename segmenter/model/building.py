"""Building of a recipe's model, and what follows from its layers.

A builder takes the recipe's model section, the number of bands and classes, a dtype policy and whether
BatchNorm is synchronised, and returns a functional model from normalised bands to logits.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from segmenter.config.models import ModelConfig
from segmenter.model.encoder_decoder import encoder_decoder
from segmenter.model.receptive_field import NetworkGeometry, describe
from segmenter.model.unet import unet
from segmenter.model.weight_shapes import Shape, stage_of


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


def shapes_of(model: keras.Model) -> dict[str, Shape]:
    """Path of each weight → its shape, without those that hold dropout's random state."""
    return {v.path: tuple(v.shape) for v in model.variables if not v.path.endswith("/masks")}


def stages_of(model: keras.Model, config: ModelConfig) -> dict[str, str]:
    """Path of each weight → the stage that it belongs to, as people name it; see `stage_of`."""
    if config.kind == "unet":
        return {path: stage_of(path, config) for path in shapes_of(model)}
    return {path: model.stages[path.split("/")[0]] for path in shapes_of(model)}


BUILDERS: dict[str, Callable[..., keras.Model]] = {"unet": unet, "encoder_decoder": encoder_decoder}


def keras_seed(seed: int) -> None:
    """Seed the initialisers and dropout of the models built from here on."""
    keras.utils.set_random_seed(seed)
    tf.random.set_seed(seed)
