"""Building of a recipe's model, and what follows from its layers.

A builder takes the recipe's model section, the number of bands and classes, a dtype policy and whether
BatchNorm is synchronised, and returns a functional model from normalised bands to logits.
"""

from __future__ import annotations

from collections.abc import Callable

import keras

from segmenter.config.models import ModelConfig
from segmenter.model.receptive_field import NetworkGeometry, describe
from segmenter.model.unet import unet


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


BUILDERS: dict[str, Callable[..., keras.Model]] = {"unet": unet}
