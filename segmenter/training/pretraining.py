"""Start of a training from pretrained weights of its encoder."""

from __future__ import annotations

from typing import Any

from segmenter.config.models import EncoderDecoderConfig
from segmenter.config.recipe import Recipe
from segmenter.errors import WeightsError
from segmenter.model.architectures import FAMILIES
from segmenter.model.normalisation import Normalisation
from segmenter.pretrained.encoder_weights import EncoderWeights, asks_for_weights, torch_encoder_weights
from segmenter.pretrained.input_scale import input_normalisation
from segmenter.runs.weights import transfer_weights
from segmenter.scenes import Dataset
from segmenter.tiles.statistics import BandStatistics
from segmenter.training.fine_tuning import bands_seen


def check_encoder_weights(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse weights that are missing, damaged or of another encoder, before the data are indexed.

    Raises:
        WeightsError: in one line.
    """
    if asks_for_weights(recipe.model):
        find_encoder_weights(recipe, bands_seen(recipe, dataset))


def find_encoder_weights(recipe: Recipe, bands: int) -> EncoderWeights | None:
    """The weights that the recipe's encoder starts from; None: from scratch.

    Raises:
        WeightsError: in one line.
    """
    config = recipe.model
    if not isinstance(config, EncoderDecoderConfig) or config.weights is None:
        return None
    if config.encoder in FAMILIES:
        return torch_encoder_weights(config, bands)
    raise WeightsError(f"model.weights: no weights are known for {config.encoder}")


def normalisation_of(
    recipe: Recipe, statistics: BandStatistics
) -> tuple[Normalisation, Normalisation | None]:
    """The model's normalisation, and that of the training scenes where it is another; says which it is."""
    scenes = Normalisation.of(statistics.mean_C, statistics.std_C)
    config = recipe.model
    if not isinstance(config, EncoderDecoderConfig) or config.weights is None:
        return scenes, None
    chosen, line = input_normalisation(config, scenes, statistics.dtype)
    print(line)
    return chosen, None if chosen == scenes else scenes


def load_encoder(model: Any, weights: EncoderWeights) -> None:
    """Set an encoder's weights in a model.

    Raises:
        WeightsError: naming the first that the model does not have, or has in another shape.
    """
    kept, _ = transfer_weights(model, {f"model/{path}": array for path, array in weights.arrays.items()})
    if left := sorted(set(weights.arrays) - set(kept)):
        raise WeightsError(f"{weights.described}: the model has no weight {left[0]} of such a shape")
