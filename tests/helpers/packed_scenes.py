"""Scenes that have to be decoded, their packs, and what a training reads of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from datasets.pack import pack_dataset
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.tiles.index import cache_folder
from segmenter.tiles.store import SceneStore

SIZES = ((231, 290), (301, 277), (40, 33))
"""Of three scenes: two of several chunks, one that is a single chunk."""


def made_dataset(root: Path, make_png: Callable[..., Path], classes: ClassMap, rng: Any) -> Dataset:
    """PNGs in the fixtures' folder `root`, with three classes."""
    scenes = []
    for number, (height, width) in enumerate(SIZES):
        image = rng.integers(0, 255, (height, width, 3), np.uint8)
        label = rng.integers(0, 3, (height // 9 + 1, width // 9 + 1), np.uint8).repeat(9, 0).repeat(9, 1)
        files = make_png(f"i{number}.png", image), make_png(f"l{number}.png", label[:height, :width])
        scenes.append(Scene(f"s{number}", *files, f"s{number}", "train"))
    return Dataset("made", root, tuple(scenes), classes)


def store_of(dataset: Dataset, tile: int = 16) -> SceneStore:
    """Its store; for tiles of 16 pixels nothing of it is cheap to read in place."""
    return SceneStore(dataset, dataset.scenes, tile, cache_folder(dataset), progress=False)


def pack_all(dataset: Dataset) -> str:
    """What packing all of it says."""
    return "\n".join(pack_dataset(dataset, progress=False))


def packs(dataset: Dataset, kind: str = "*") -> list[Path]:
    """Its packs, of all kinds or one."""
    return sorted((cache_folder(dataset) / "packed").glob(f"{kind}-*.pack"))


def contents(dataset: Dataset) -> list[Any]:
    """All that a training may read, whole."""
    store = store_of(dataset)
    whole = [Window.of(store.size(i)) for i in range(len(dataset.scenes))]
    return [part for i, window in enumerate(whole) for part in store.read(i, window)]


def equal(a: list[Any], b: list[Any]) -> bool:
    """Whether arrays are the same, type and all."""
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))
