"""Start of a training from pretrained encoder weights."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from segmenter.base.errors import WeightsError
from segmenter.config.models import EncoderDecoderConfig, ModelConfig
from segmenter.grid.scenes import Dataset
from segmenter.model.architectures import FAMILIES
from segmenter.model.pretrained.encoder_weights import EncoderWeights, torch_encoder_weights
from segmenter.model.pretrained.keras_files import check_keras_weights, file_bands
from segmenter.model.pretrained.value_range import channels_for
from segmenter.model.stages import Pace, joined_stages
from segmenter.training.beginning.fine_tuning import bands_seen

_NOT_ENCODER = ("decoder_", "logits")
"""Beginnings of the names of all other layers, see `model.encoders`."""


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


def find_encoder_weights(config: ModelConfig, bands: int) -> EncoderWeights | None:
    """Return the initial weights of a recipe's encoder; None: random.

    Raises:
        WeightsError: the weights cannot be used.
    """
    if not isinstance(config, EncoderDecoderConfig) or config.weights is None:
        return None
    if config.encoder in FAMILIES:
        return torch_encoder_weights(config, bands)
    from segmenter.training.beginning.keras_weights import keras_encoder_weights  # loads TensorFlow

    return keras_encoder_weights(config, bands)


def load_encoder(model: Any, weights: EncoderWeights) -> str:
    """Set an encoder's weights in a model; return a line on them.

    Raises:
        WeightsError: a weight is missing or has another shape; the message names the first.
    """
    from segmenter.training.beginning.keras_weights import weight_key

    count = 0
    for variable in model.variables:
        if variable.path.startswith(_NOT_ENCODER) or variable.path.endswith("/masks"):
            continue
        array = weights.arrays.get(weight_key(variable.path))
        if array is None or array.shape != tuple(variable.shape):
            got = "none" if array is None else str(array.shape)
            raise WeightsError(
                weights.said("no"), expected=f"{variable.path} of shape {tuple(variable.shape)}", got=got
            )
        variable.assign(array)
        count += math.prod(array.shape)
    return weights.said(f"{count:,}")


def frozen_at_random(pace: Pace, known: Collection[str], epochs: int) -> str:
    """Return a warning if untrained random weights are frozen at the start; else empty text."""
    by_duration: dict[str, list[str]] = {}
    for stage, paths in pace.stages.items():
        if anew := [path for path in paths if path not in known and not pace.trains(path, 0)]:
            if any(pace.trains(path) for path in anew):
                long = f"in {pace.frozen_epochs} of {epochs} epochs (training.freeze_encoder)"
            else:
                norms = pace.norms.issuperset(anew)
                long = "in BatchNorm (training.freeze_norms)" if norms else "for good (training.rates)"
            by_duration.setdefault(long, []).append(stage)
    if not by_duration:
        return ""
    stages = "; ".join(f"{joined_stages(names)} {long}" for long, names in by_duration.items())
    return (
        f"warning: random weights are frozen: {stages}; start from trained ones (model.weights, --init-from)"
    )
