"""Trainings of so many steps on one device, as `train.py` computes them, for benchmarks that compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import Recipe
from segmenter.grid.scenes import Dataset
from segmenter.model.normalisation import Normalisation
from segmenter.sampling import Plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import TileIndex
from segmenter.tiles.statistics import BandStatistics, band_statistics
from segmenter.tiles.store import SceneStore
from segmenter.training.trainer import epoch_dataset
from segmenter.training.prepare import class_weights, epoch_plan


@dataclass(frozen=True)
class Material:
    """The tiles that train, for all trainings of a comparison the same."""

    dataset: Dataset
    train: TileIndex
    store: SceneStore
    normalisation: Normalisation
    statistics: BandStatistics

    @classmethod
    def of(cls, dataset: Dataset, train: TileIndex, store: SceneStore) -> Material:
        """With the bands' statistics over the training scenes."""
        statistics = band_statistics(dataset, progress=False)
        normalisation = Normalisation.of(statistics.mean_C, statistics.std_C)
        return cls(dataset, train, store, normalisation, statistics)


def rows_of(material: Material, recipe: Recipe, epoch: int) -> Plan:
    """The plan of an epoch."""
    return epoch_plan(recipe, material.train, material.dataset.classes.names, epoch)


def loader_of(material: Material, recipe: Recipe) -> BatchLoader:
    """What makes the batches."""
    return BatchLoader(recipe, material.train, material.store, material.statistics)


def emphasis(material: Material, recipe: Recipe) -> tuple[NDArray[np.float64], tuple[float, ...] | None]:
    """((K,) shares of the classes in what the sampling shows, class weights in the loss or None)."""
    shown_K = rows_of(material, recipe, 0).shares(material.train.counts_NK)
    return shown_K, class_weights(recipe.loss, material.train.shares(), shown_K)


def device() -> str:
    """TensorFlow's name of the device that trains: the first GPU, where there is one."""
    import tensorflow as tf

    return "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"


def device_model() -> str:
    """Return the model of the card that trains, or CPU."""
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
    return "CPU"


def train(
    material: Material,
    recipe: Recipe,
    steps: int,
    after: Callable[[int, Any], None] = lambda done, model: None,
) -> tuple[Any, NDArray[np.int64]]:
    """(the model, (steps, K) tiles that held each class), after so many steps of as many epochs as it takes.

    Args:
        after: called with the number of steps done and the model, after each.
    """
    import keras
    import tensorflow as tf

    from segmenter.model.building import build_model
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts, make_step

    keras.utils.set_random_seed(recipe.seed)
    strategy = tf.distribute.OneDeviceStrategy(device())
    with strategy.scope():
        model = build_model(recipe.model, len(material.normalisation.mean), len(material.dataset.classes))
        optimiser = build_optimiser(recipe.training, model, steps)
    shown_K, weights = emphasis(material, recipe)
    loss = segmentation_loss(recipe.loss, weights, recipe.training.global_batch, shown_K.tolist())
    step = make_step(
        StepParts(
            *(strategy, model, optimiser, loss, material.normalisation, recipe.sampling.min_pixels),
            batch=recipe.training.global_batch,
        )
    )
    held = []
    for done, batch in enumerate(_batches(material, recipe, steps), start=1):
        held.append(step(batch)[1].numpy()[0])
        after(done, model)
    assert np.shape(held) == (steps, len(material.dataset.classes))
    return model, np.stack(held)


def _batches(material: Material, recipe: Recipe, steps: int) -> Iterator[Any]:
    loader, epoch = loader_of(material, recipe), 0
    while steps > 0:
        rows = rows_of(material, recipe, epoch)
        yield from islice(epoch_dataset(loader, rows, epoch), steps)
        steps, epoch = steps - rows.steps, epoch + 1
