"""A trainer on a made table of tiles, on any number of replicas: nothing of it is read from a file."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset
from segmenter.model.normalisation import Normalisation
from segmenter.tiles.batches import DrawCounts
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.index import TileIndex
from tests.helpers.laboratory import strategy_of
from tests.helpers.made_runs import recipe_of
from tests.helpers.trained_run import unsaved_run

BATCH, SIDE, STEPS = 6, 16, 2


class OneBatch:
    """A loader that gives one batch of noise, again and again."""

    fault, dtype, tile_shape, drawn = None, "uint8", (SIDE, SIDE, 3), DrawCounts()

    def __init__(self, classes: int) -> None:
        rng = np.random.default_rng(4)
        shape = (BATCH, SIDE, SIDE)
        image = rng.integers(0, 256, (*shape, 3), np.uint8)
        label = rng.integers(0, classes, shape, np.uint8)
        self.batch = image, np.ones(shape, bool), label, np.arange(BATCH)

    def load(self, *_: Any) -> tuple[NDArray[Any], ...]:
        return self.batch


def made_trainer(folder: Path, classes: ClassMap, replicas: int, steps: int = STEPS, **training: Any) -> Any:
    """Epochs of so many steps; the recipe says nothing of the loss."""
    from segmenter.devices.strategy import Devices
    from segmenter.training.trainer import Trainer

    model, batches = {"depth": 1, "width": 2}, {"global_batch": BATCH, **training}
    recipe = recipe_of(tiles={"size": SIDE}, model=model, training=batches)
    plain = Normalisation.of([120.0] * 3, [60.0] * 3)
    run = unsaved_run(folder, recipe=recipe, classes=classes, normalisation=plain)
    counts = np.full((steps * BATCH, len(classes)), 80)
    where = np.zeros(steps * BATCH, np.int32)
    index = TileIndex((), where, where, where, counts.sum(axis=1), counts, Size(SIDE, SIDE), 0)
    used: Any = tuple(
        SimpleNamespace(name=f"CPU:{i}", model="a processor", card=None) for i in range(replicas)
    )
    devices = Devices(strategy_of(replicas), used)
    feed = Feed(OneBatch(len(classes)), BATCH)  # type: ignore[arg-type]
    return Trainer(run, index, feed, devices, Dataset("made", folder, (), classes))
