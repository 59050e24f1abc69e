"""Loaders and plans for tests of feeding: made scenes, and loaders that fail where they are told to."""

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from datasets import load_dataset
from segmenter.base.errors import RasterError
from segmenter.config.reading import load_recipe
from segmenter.sampling import Plan, part_table, plan
from segmenter.tiles.batches import Batch, BatchLoader
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.orders import BatchShape
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.store import SceneStore
from segmenter.tiles.transforms import libraries
from tests.helpers.made_statistics import statistics_of

BATCH, SIDE, BANDS = 8, 32, 3
SHAPE = BatchShape(BATCH, (SIDE, SIDE, BANDS), "uint8")


class FailingLoader(BatchLoader):
    """Fails at the steps that it is told; knows no files, so that its batches say the step only."""

    def __init__(self, errors: dict[int, str]) -> None:
        self.errors, self.tile_shape, self.dtype = errors, (SIDE, SIDE, BANDS), "uint8"
        self.loaded: list[int] = []

    @property
    def drawn(self) -> Any:
        from segmenter.tiles.batches import DrawCounts

        return DrawCounts(tiles=BATCH * len(self.loaded))

    def preload_labels(self) -> None:
        """There are none."""

    def load(self, plan: Plan, epoch: int, step: int, into: Batch | None = None) -> Batch:
        self.loaded.append(step)
        if error := self.errors.get(step):
            if error == "sleep":
                time.sleep(600)
            if error == "memory in OpenCV":
                cv2 = libraries()[1]
                cv2.resize(np.ones((4, 4), np.uint8), (2**30, 2**30))
            raise {"user": RasterError, "memory": MemoryError, "defect": ValueError}[error](f"bad {step}")
        shape = (BATCH, SIDE, SIDE)
        image, valid = np.full((*shape, BANDS), step, np.uint8), np.ones(shape, np.bool_)
        made = image, valid, np.zeros(shape, np.uint8), np.arange(BATCH)
        for target, values in zip(into or made, made, strict=True):
            np.copyto(target, values)
        return into or made


def loader_and_plan(recipe_file: Path, *settings: str, replicas: int = 1) -> tuple[BatchLoader, Plan]:
    """A loader of a recipe with settings, as of `--set`, and the plan of its second epoch."""
    recipe = load_recipe(recipe_file, settings)
    dataset = load_dataset(recipe)
    index: TileIndex = build_index(dataset, "train", recipe.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, recipe.tiles.size, cache_folder(dataset), progress=False)
    table = part_table(index.counts_NK, names=dataset.classes.names)
    rows = plan(table, BATCH, recipe.sampling, recipe.seed, 1, replicas=replicas)
    return BatchLoader(recipe, index, store, statistics_of(BANDS), (BATCH // replicas,) * replicas), rows


def empty_plan(steps: int) -> Plan:
    """So many steps of tile 0, promising nothing."""
    return Plan(np.zeros((steps, BATCH), np.int64), 0, 0, True, 0, (), ())


def digest(batch: Batch) -> str:
    """Of all bytes of a batch."""
    return hashlib.sha256(b"".join(part.tobytes() for part in batch)).hexdigest()


def taken(feed: Feed, rows: Plan, epoch: int, first: int = 0) -> list[str]:
    """Digests of the batches of an epoch from a step on, as a feed gives them."""
    found = []
    for step in range(first, rows.steps):
        into = feed.shape.empty()
        feed.take(rows, epoch, step, into)
        found.append(digest(into))
    return found
