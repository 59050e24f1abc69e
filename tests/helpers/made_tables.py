"""Made class counts as indexes of tiles, for the tests of the diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.diagnosis import diagnose
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from segmenter.tiles.index import TileIndex

Data = dict[str, Any]
COLOURS = ((255, 0, 0), (0, 128, 255), (7, 7, 7), (9, 9, 0), (1, 2, 3))


def recipe(**sections: Data) -> Recipe:
    """A recipe whose dataset section is not used here."""
    settings: Data = {"training": {"global_batch": 16}, "tiles": {"size": 32}, **sections}
    dataset = {"kind": "naic2020", "root": "."}
    return recipe_from({"name": "made", "dataset": dataset, "model": {"depth": 2}, **settings}, "made")


def classes(names: str) -> ClassMap:
    return ClassMap(
        tuple(
            LandCoverClass(name, COLOURS[i] if i < len(COLOURS) else (i, i, i), i + 1)
            for i, name in enumerate(names.split(",") if "," in names else names)
        )
    )


def made(
    counts: Any, image: Path, *, names: str = "", per_scene: int = 1, across: int = 0
) -> tuple[Dataset, TileIndex]:
    """A dataset of scenes with `per_scene` tiles of 32 px each, `across` of them in a row."""
    counts = np.asarray(counts, np.int64)
    tiles, across = len(counts), across or per_scene
    number = np.arange(tiles) // per_scene
    place = np.arange(tiles) % per_scene
    scenes = tuple(
        Scene(f"s{i}", image, image, f"s{i}", "train") for i in range(int(number.max(initial=-1)) + 1)
    )
    dataset = Dataset("made", image.parent, scenes, classes(names or "abcde"[: counts.shape[1]]))
    rows, cols = place // across * 32, place % across * 32
    index = TileIndex(
        *(scenes, number.astype(np.int32), rows.astype(np.int32), cols.astype(np.int32)),
        *(counts.sum(axis=1), counts, Size(32, 32), 0),
    )
    return dataset, index


def rare(tiles: int, held: int, *, common: int = 900) -> np.ndarray:
    """Class a everywhere, class b in the first `held` tiles."""
    counts = np.zeros((tiles, 2), np.int64)
    counts[:, 0], counts[:held, 1] = common, 100
    return counts


def diagnosed(counts: Any, image: Path, batches: tuple[int, ...] = (16,), **options: Any) -> Data:
    config = options.pop("config", None) or recipe()
    run = options.pop("run", None)
    return diagnose(config, *made(counts, image, **options), batches, run, progress=False).to_dict()
