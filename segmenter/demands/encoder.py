"""Initial weights of an encoder: whether a recipe's file of them is there and fits the images."""

from __future__ import annotations

from pathlib import Path

from segmenter.config.models import EncoderDecoderConfig, ModelConfig
from segmenter.grid.scenes import Dataset
from segmenter.model.architectures import FAMILIES
from segmenter.model.pretrained.encoder_weights import torch_encoder_weights
from segmenter.model.pretrained.keras_files import check_keras_weights, file_bands
from segmenter.model.pretrained.value_range import channels_for
from segmenter.raster import open_raster


def check_encoder_weights(config: ModelConfig, dataset: Dataset, *, download: bool = True) -> None:
    """Refuse missing, damaged or unsuitable encoder weights before the data are indexed.

    Raises:
        WeightsError: the weights cannot be used.
    """
    if not isinstance(config, EncoderDecoderConfig) or config.weights is None:
        return
    bands = bands_seen(dataset)
    if config.encoder in FAMILIES:
        torch_encoder_weights(config, bands)
    elif config.weights == "imagenet":
        channels_for(bands, 3, config.weight_bands)
        if download:
            check_keras_weights(config.encoder, config.weights)
    else:
        channels_for(bands, file_bands(Path(config.weights), config.encoder), config.weight_bands)


def bands_seen(dataset: Dataset) -> int:
    """Return the model's number of bands, from the recipe or the first training image."""
    if dataset.bands is not None:
        return len(dataset.bands)
    for scene in dataset.of("train")[:1]:
        with open_raster(scene.image, dataset.bands) as raster:
            return len(raster.bands)
    return 3  # no scene to train on: refused where the data are indexed
