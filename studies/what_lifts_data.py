"""Data sets of `what_lifts`: look-alikes with a rare class, and the imagery of Dubai with a tile held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.rare_tiles import rare_recipe, rare_tiles
from studies.short_training import Material
from datasets import load_dataset
from segmenter.base.errors import ConfigError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.evaluation.scores import Scores
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.store import SceneStore


@dataclass(frozen=True)
class DataSet:
    """What is fixed of a data set.

    Attributes:
        title: for the page.
        steps: of a run; so many take at least eight minutes of a processor core under the cheapest arm.
    """

    title: str
    steps: int


DATA = {
    "naic": DataSet("Look-alikes of NAIC2020, water rare", 4700),
    "dubai": DataSet("Imagery of Dubai, one tile held out", 480),
}
_SCENES = 400
_BATCH = 16


@dataclass(frozen=True)
class Trial:
    """What a run trains on, and how it is scored: (model, predict) → scores."""

    material: Material
    recipe: Recipe
    rare: int
    scores: Callable[[Any, Any], Scores]


@dataclass(frozen=True)
class Study:
    """Where data come from and results go.

    Attributes:
        work: folder of what is made of the data, and of locks.
        dubai: folder of the imagery, which is only read.
        hold_out: the tile of it that scores.
    """

    work: Path
    dubai: Path | None
    hold_out: str

    def prepare(self, data: str) -> None:
        """Make data, tile index and statistics once, before runs need them side by side."""
        self.trial(data, 0, {})

    def trial(self, data: str, seed: int, settings: Mapping[str, Any]) -> Trial:
        """A run's tiles, recipe and scoring.

        Raises:
            SegmenterError: the imagery is not there, or not as it should be.
        """
        return (self._naic if data == "naic" else self._dubai)(seed, settings)

    def _naic(self, seed: int, settings: Mapping[str, Any]) -> Trial:
        root = self.work / "data" / "naic"
        tiles = rare_tiles(root, _SCENES)
        recipe = rare_recipe(root, _BATCH, seed, settings.get("sampling", {}), settings.get("loss", {}))
        return Trial(tiles.material, recipe, tiles.rare, lambda model, predict: tiles.scores(predict))

    def _dubai(self, seed: int, settings: Mapping[str, Any]) -> Trial:
        if self.dubai is None:
            raise ConfigError("--dubai: expected the folder of tile_N/images and tile_N/masks, got none")
        recipe = recipe_from(_dubai_recipe(self.dubai, self.work, self.hold_out, seed, settings), "dubai")
        dataset = load_dataset(recipe)
        if not dataset.of("validation") or not dataset.of("train"):
            raise ConfigError(
                f"--hold-out: expected a tile in {self.dubai} beside others, got {self.hold_out}"
            )
        index = build_index(dataset, "train", recipe.tiles, progress=False)
        store = SceneStore(dataset, index.scenes, recipe.tiles.size, cache_folder(dataset), progress=False)
        material = Material.of(dataset, index, store)
        tiles_K = (index.counts_NK >= recipe.sampling.min_pixels).sum(axis=0)

        def scores(model: Any, predict: Any) -> Scores:
            return _whole_scenes(material, recipe, model, predict)

        return Trial(material, recipe, int(np.argmin(tiles_K)), scores)


def _dubai_recipe(
    root: Path, work: Path, hold_out: str, seed: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """`configs/dubai.yaml` as it was when this was written, but for sampling and loss."""
    colours = {
        "building": "#3c1098",
        "land": "#8429f6",
        "road": "#6ec1e4",
        "vegetation": "#fedd3a",
        "water": "#e2a929",
    }
    return {
        "name": "what lifts",
        "seed": seed,
        "dataset": {
            "kind": "folder",
            "root": str(root),
            "cache": str(work / "data"),
            "images": "tile_{tile}/images/{part}.jpg",
            "labels": "tile_{tile}/masks/{part}.png",
            "encoding": "colours",
            "classes": [{"name": name, "colour": colour} for name, colour in colours.items()],
            "ignore": ["#9b9b9b", "#000000"],
            "split": {"group": r"(tile_\d+)/", "validation": [hold_out]},
        },
        "tiles": {"size": 128},
        "augmentation": {
            "scale": 0.25,
            "rotation": 15,
            "brightness": 0.25,
            "contrast": 0.25,
            "hue": 20,
            "saturation": 0.3,
        },
        "model": {"depth": 3, "width": 16},
        "training": {
            "global_batch": _BATCH,
            "learning_rate": 2e-3,
            "schedule": "cosine",
            "warmup": 40,
            "clip_norm": 1.0,
        },
        "prediction": {"window": 512, "batch": 1},
        **settings,
    }


def _whole_scenes(material: Material, recipe: Recipe, model: Any, predict: Any) -> Scores:
    """Over every labelled pixel of the held-out tile's images, mapped whole in exact windows."""
    from segmenter.model.receptive_field import network_geometry
    from segmenter.runs.run import Run
    from segmenter.training.examples import Examples
    from segmenter.training.validation import validate, validation_protocol

    dataset = material.dataset
    run = Run(
        path=Path(),
        recipe=recipe,
        classes=dataset.classes,
        bands=dataset.bands,
        band_count=len(material.statistics.mean_C),
        dtype=material.statistics.dtype,
        normalisation=material.normalisation,
        metres_per_pixel=None,
        labels=dataset.labels,
        network=network_geometry(model),
    )
    return validate(run, predict, dataset, Examples()).scores(validation_protocol(dataset))
