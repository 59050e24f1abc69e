"""Data sets of `what_lifts`: look-alikes with a rare class, and public imagery that is named by its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import cv2
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
    "camvid": DataSet("CamVid, streets, scored on its 233 test pictures", 480),
    "roads": DataSet("Aerial roads of EPFL, a fifth of the 100 pictures held out", 240),
}
_SCENES = 400
BATCH = 16
"""Tiles a step, where the call names no other number."""


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
        folders: of the public data sets, which are only read.
        hold_out: the tile of Dubai that scores.
        batch: tiles a step.
    """

    work: Path
    folders: Mapping[str, Path]
    hold_out: str
    batch: int = BATCH

    def prepare(self, data: str) -> None:
        """Make data, tile index and statistics once, before runs need them side by side."""
        if data in ("camvid", "roads"):
            {"camvid": _link_camvid, "roads": _write_roads}[data](
                self.folders[data], self.work / "data" / data
            )
        self.trial(data, 0, {})

    def trial(self, data: str, seed: int, settings: Mapping[str, Any]) -> Trial:
        """A run's tiles, recipe and scoring.

        Raises:
            SegmenterError: the imagery is not there, or not as it should be.
        """
        return self._naic(seed, settings) if data == "naic" else self._folder(data, seed, settings)

    def _naic(self, seed: int, settings: Mapping[str, Any]) -> Trial:
        root = self.work / "data" / "naic"
        tiles = rare_tiles(root, _SCENES)
        recipe = rare_recipe(root, self.batch, seed, settings.get("sampling", {}), settings.get("loss", {}))
        return Trial(tiles.material, recipe, tiles.rare, lambda model, predict: tiles.scores(predict))

    def _folder(self, data: str, seed: int, settings: Mapping[str, Any]) -> Trial:
        if data == "dubai":
            described = _dubai(self.folders["dubai"], self.work, self.hold_out)
        else:
            described = {"camvid": _camvid, "roads": _roads}[data](self.work / "data" / data, seed)
        training = _COMMON["training"] | {"global_batch": self.batch}
        recipe = recipe_from({**_COMMON, "seed": seed, "training": training, **described, **settings}, data)
        dataset = load_dataset(recipe)
        if not dataset.of("validation") or not dataset.of("train"):
            raise ConfigError(f"{data}: expected scenes to train on and others to score, as in --hold-out")
        index = build_index(dataset, "train", recipe.tiles, progress=False)
        store = SceneStore(dataset, index.scenes, recipe.tiles.size, cache_folder(dataset), progress=False)
        material = Material.of(dataset, index, store)
        tiles_K = (index.counts_NK >= recipe.sampling.min_pixels).sum(axis=0)

        def scores(model: Any, predict: Any) -> Scores:
            return _whole_scenes(material, recipe, model, predict)

        return Trial(material, recipe, int(np.argmin(tiles_K)), scores)


_COMMON: dict[str, Any] = {
    "name": "what lifts",
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
        "global_batch": BATCH,
        "learning_rate": 2e-3,
        "schedule": "cosine",
        "warmup": 40,
        "clip_norm": 1.0,
    },
    "prediction": {"window": 512, "batch": 1},
}
"""`configs/dubai.yaml` as it was when this was written, but for sampling and loss."""


def _dubai(root: Path, work: Path, hold_out: str) -> dict[str, Any]:
    colours = {
        "building": "#3c1098",
        "land": "#8429f6",
        "road": "#6ec1e4",
        "vegetation": "#fedd3a",
        "water": "#e2a929",
    }
    dataset = {
        "kind": "folder",
        "root": str(root),
        "cache": str(work / "data"),
        "images": "tile_{tile}/images/{part}.jpg",
        "labels": "tile_{tile}/masks/{part}.png",
        "encoding": "colours",
        "classes": [{"name": name, "colour": colour} for name, colour in colours.items()],
        "ignore": ["#9b9b9b", "#000000"],
        "split": {"group": r"(tile_\d+)/", "validation": [hold_out]},
    }
    return {"dataset": dataset}


def _numbered(root: Path, classes: str, parts: str, scored: str) -> dict[str, Any]:
    """A folder of pictures and codes whose names begin with their part."""
    return {
        "kind": "folder",
        "root": str(root),
        "images": "images/{part}_{name}.png",
        "labels": "labels/{part}_{name}.png",
        "classes": [{"name": name, "code": code} for code, name in enumerate(classes.split())],
        "split": {"group": f"images/{parts}_", "validation": [scored]},
    }


_CAMVID = "sky building pole road pavement tree sign fence car pedestrian bicyclist"


def _camvid(root: Path, seed: int) -> dict[str, Any]:
    """Streets do not lie upside down: flips to the side, no turns."""
    dataset = _numbered(root, _CAMVID, "(train|test)", "test") | {"ignore": [11]}
    colours = {key: _COMMON["augmentation"][key] for key in ("scale", "brightness", "contrast")}
    flip = {"transforms": [{"name": "HorizontalFlip", "p": 0.5}]}
    return {"dataset": dataset, "augmentation": {**colours, "d4": False, **flip}}


def _link_camvid(source: Path, root: Path) -> None:
    """Give pictures of both parts names in one folder; validation pictures are left out.

    Raises:
        ConfigError: the folder has no such pictures.
    """
    for part, (kind, suffix) in product(("train", "test"), (("images", ""), ("labels", "annot"))):
        pictures = sorted((source / f"{part}{suffix}").glob("*.png"))
        if not pictures:
            raise ConfigError(f"--camvid: expected pictures in {source / (part + suffix)}, there are none")
        (root / kind).mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            link = root / kind / f"{part}_{picture.name}"
            if not link.is_symlink():
                link.symlink_to(picture.resolve())


_FOLDS = 5


def _roads(root: Path, seed: int) -> dict[str, Any]:
    """Each seed scores another fifth of the pictures."""
    return {"dataset": _numbered(root, "ground road", r"(\d)", str(seed % _FOLDS))}


def _write_roads(source: Path, root: Path) -> None:
    """Number the pictures' fifths in their names, and cut their grey masks at 127.

    Raises:
        ConfigError: the folder has no such pictures.
    """
    pictures = sorted((source / "images").glob("*.png"))
    if not pictures:
        raise ConfigError(f"--roads: expected pictures in {source / 'images'}, there are none")
    for folder in (root / "images", root / "labels"):
        folder.mkdir(parents=True, exist_ok=True)
    for i, picture in enumerate(pictures):
        name = f"{i % _FOLDS}_{picture.name}"
        link, label = root / "images" / name, root / "labels" / name
        if not link.is_symlink():
            link.symlink_to(picture.resolve())
        if not label.is_file():
            grey = cv2.imread(str(source / "groundtruth" / picture.name), cv2.IMREAD_GRAYSCALE)
            cv2.imwrite(str(label), (grey > 127).astype(np.uint8))


def _whole_scenes(material: Material, recipe: Recipe, model: Any, predict: Any) -> Scores:
    """Over every labelled pixel of the held-out tile's images, mapped whole in exact windows."""
    from segmenter.model.receptive_field import network_geometry
    from segmenter.runs.run import Run
    from segmenter.training.validation import Examples
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
        tiles="",
    )
    return validate(run, predict, dataset, Examples()).scores(validation_protocol(dataset))
