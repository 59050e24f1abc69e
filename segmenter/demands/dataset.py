"""Demands of a recipe on its dataset, checked before scenes are read completely.

A training stops at the first unmet demand; `segmenter check` reports all, including those on pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, DatasetError, SegmenterError
from segmenter.config.datasets import FolderConfig
from segmenter.config.losses import LossConfig
from segmenter.config.recipe import AugmentationConfig, Recipe
from segmenter.demands.encoder import bands_seen, check_encoder_weights
from segmenter.evaluation.scores import check_name
from segmenter.grid.scenes import Dataset
from segmenter.model.receptive_field import NetworkGeometry, network_geometry
from segmenter.model.stages import pace_of, stages_told
from segmenter.sampling.methods import foreground_places
from segmenter.sampling.quotas import check_quotas
from segmenter.tiles.gsd import check_shown, most_shrunk, scene_gsds
from segmenter.tiles.probing import check_augmentation


def check_demands(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse a recipe that the dataset cannot satisfy; reads headers and part of a training image.

    Raises:
        ConfigError: a setting cannot be satisfied; the message names it.
        DatasetError: there are no scenes to train on.
    """
    for check in (*_BY_NAMES, *_BY_IMAGES):
        check(recipe, dataset)


def unmet_demands(
    recipe: Recipe, dataset: Dataset, validation_K: NDArray[np.int64], *, images: bool
) -> Iterator[SegmenterError]:
    """Yield all errors that a training would raise, as far as they are known without tiles.

    Args:
        validation_K: labelled pixels of each class in the validation scenes.
        images: True if the images can be read.
    """

    def validation(recipe: Recipe, dataset: Dataset) -> None:
        check_validation(recipe.training.best_by, dataset, validation_K)

    def weights(recipe: Recipe, dataset: Dataset) -> None:
        check_encoder_weights(recipe.model, dataset, download=False)

    checks: list[Callable[[Recipe, Dataset], None]] = [*_BY_NAMES]
    checks += [validation, *_BY_IMAGES, weights, _buffer] if images else []
    for check in checks:
        try:
            check(recipe, dataset)
        except SegmenterError as error:
            yield error


def check_validation(best_by: str, dataset: Dataset, validation_K: NDArray[np.int64]) -> None:
    """Refuse validation scenes without labels, or without the class that selects the best model.

    No score would be defined.

    Args:
        best_by: score that selects the best model.
        validation_K: (K,) labelled pixels with data of each class in the validation scenes.

    Raises:
        DatasetError: no scene of the split has labels.
        ConfigError: the class is absent; the message names it.
    """
    if dataset.of("validation") and not validation_K.any():
        count = len(dataset.of("validation"))
        raise DatasetError(
            "validation",
            expected=f"labelled pixels with image data to score, its {count} "
            f"scene{'s have' if count > 1 else ' has'} none",
            remedy="name others in dataset.split, or look at the labels",
        )
    _, colon, name = best_by.partition(":")
    names = dataset.classes.names
    if colon and name in names and dataset.of("validation") and not validation_K[names.index(name)]:
        raise ConfigError(
            "training.best_by",
            expected="a class that validation scenes show",
            got=f"{name}, of which they have no pixel",
            remedy="name another score, or hold out other scenes",
        )


def check_class_weights(loss: LossConfig, classes: int) -> None:
    """Refuse a number of class weights other than the number of classes.

    Raises:
        ConfigError: the numbers differ; the message has both.
    """
    chosen = loss.class_weights
    if not isinstance(chosen, str) and len(chosen) != classes:
        raise ConfigError("loss.class_weights", expected=f"{classes} weights, one a class", got=len(chosen))


def check_buffer(recipe: Recipe, dataset: Dataset, network: NetworkGeometry) -> None:
    """Refuse blocks of a split within reach of each other's pixels, as augmentation shows them.

    A pixel of validation whose receptive field holds pixels that trained would be scored on what was learned.

    Raises:
        ConfigError: the buffer is smaller than the reach, or the model has no receptive-field radius.
    """
    section = recipe.dataset
    blocks = section.split.blocks if isinstance(section, FolderConfig) else None
    if blocks is None:
        return
    if network.radius is None:
        raise ConfigError(
            "dataset.split.blocks",
            expected="a model with a receptive-field radius",
            got=network.unlimited,
            remedy="take another model.encoder or model.decoder",
        )
    shrunk = 1.0
    if recipe.augmentation.scale_to is not None:
        shrunk = most_shrunk(recipe.augmentation.scale_to, scene_gsds(dataset, dataset.of("train")))
    reach = reach_of(network.radius, recipe.augmentation, shrunk)
    if reach <= blocks.buffer:
        return
    shown = "" if reach == network.radius else f", which with augmentation's zoom and turns is {reach}"
    raise ConfigError(
        "dataset.split.blocks.buffer",
        expected=f"at least the model's receptive-field radius, {network.radius} pixels{shown}",
        got=blocks.buffer,
        remedy="raise it, take a model that sees less far (model.kind: unet, a smaller model.depth)"
        + (", or lower augmentation.scale and rotation" if shown else ""),
    )


def reach_of(radius: int, augmentation: AugmentationConfig, shrunk: float = 1.0) -> int:
    """Return how many pixels of a scene a pixel of an augmented tile sees to each side at the most.

    A tile that is shown 1 − z times as large sees 1 / (1 − z) times as far; a square that is turned by an
    angle a reaches cos a + sin a times as far along the axes, at most at 45°; both mix in a neighbouring
    pixel.

    Args:
        shrunk: pixels of a scene in a pixel shown, at the most.
    """
    angle = math.radians(min(45.0, augmentation.rotation))
    far = radius * shrunk / (1 - augmentation.scale) * (math.cos(angle) + math.sin(angle))
    mixed = bool(augmentation.scale or augmentation.rotation)
    return math.ceil(round(far, 6)) + mixed + (math.ceil(shrunk) if shrunk > 1 else 0)


def _buffer(recipe: Recipe, dataset: Dataset) -> None:
    if isinstance(recipe.dataset, FolderConfig) and recipe.dataset.split.blocks is not None:
        from segmenter.model.building import build_model  # brings TensorFlow

        model = build_model(recipe.model, bands_seen(dataset), len(dataset.classes))
        check_buffer(recipe, dataset, network_geometry(model))


def _weights(recipe: Recipe, dataset: Dataset) -> None:
    check_class_weights(recipe.loss, len(dataset.classes))


def _best_by(recipe: Recipe, dataset: Dataset) -> None:
    check_name(recipe.training.best_by, dataset.classes.names, "training.best_by")


def _validation(recipe: Recipe, dataset: Dataset) -> None:
    training = recipe.training
    for key in ("best_by", "stop_after"):
        value = getattr(training, key)
        if value != type(training).model_fields[key].default and not dataset.of("validation"):
            raise ConfigError(
                f"training.{key}: expected validation scenes with it, the split leaves none; got {value}"
            )


def _rates(recipe: Recipe, dataset: Dataset) -> None:
    pace_of(stages_told(recipe.model), recipe.training)


def _foreground(recipe: Recipe, dataset: Dataset) -> None:
    if recipe.sampling.method == "foreground":
        foreground_places(recipe.sampling, recipe.training.global_batch)


def _quotas(recipe: Recipe, dataset: Dataset) -> None:
    check_quotas(recipe.sampling, dataset.classes.names, recipe.training.global_batch)


def _scenes(recipe: Recipe, dataset: Dataset) -> None:
    if not dataset.of("train"):
        raise DatasetError(dataset.root, expected="scenes to train on, the split leaves none")


def _augmentation(recipe: Recipe, dataset: Dataset) -> None:
    check_augmentation(recipe.augmentation, dataset, recipe.tiles.size)


_BY_NAMES = (_best_by, _validation, _weights, _rates, _foreground, _quotas, _scenes)
_BY_IMAGES = (_augmentation, check_shown)
