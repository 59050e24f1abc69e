"""Scenes of one landscape at different metres a pixel, of odd sizes, some rotated or in degrees."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

from segmenter.config.recipe import Recipe
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene, Split
from tests.helpers.made_runs import recipe_of

SIDE = 32
SIZES = ((203, 171), (131, 187), (97, 143), (151, 89), (83, 79))
LATITUDE = 52.5


def georeference(metres: float, form: str) -> dict[str, Any]:
    """CRS and transform of square pixels of that side on the ground: "plain", "rotated" or "degrees"."""
    if form == "degrees":
        degrees = metres / 111_320
        width = degrees / math.cos(math.radians(LATITUDE))
        return {"crs": "EPSG:4326", "transform": rasterio.Affine(width, 0, 13.0, 0, -degrees, LATITUDE)}
    place = rasterio.Affine.translation(368000, 5808000)
    turn = rasterio.Affine.rotation(33) if form == "rotated" else rasterio.Affine.identity()
    return {"crs": "EPSG:25833", "transform": place @ turn @ rasterio.Affine.scale(metres, -metres)}


def landscape(height: int, width: int, metres: float, rng: np.random.Generator) -> np.ndarray:
    """(H, W) labels: two classes in fields of 12 m, and a rare third in one patch of 56 pixels."""
    row, col = (np.arange(n) * metres // 12 for n in (height, width))
    label = ((row[:, None] + col) % 2).astype(np.uint8)
    r, c = rng.integers(0, height - 8), rng.integers(0, width - 8)
    label[r : r + 7, c : c + 8] = 2
    return label


def scaled_dataset(
    root: Path,
    make_geotiff: Callable[..., Path],
    classes: ClassMap,
    metres: Sequence[float],
    *,
    forms: Sequence[str] = ("plain", "rotated", "degrees"),
    split: Split = "train",
    seed: int = 5,
) -> Dataset:
    """A scene for each scale; its first band is 60 times its label, its size odd."""
    rng = np.random.default_rng(seed)
    scenes = []
    for number, m in enumerate(metres):
        label = landscape(*SIZES[number % len(SIZES)], m, rng)
        image = np.stack([label * 60 + 20, *rng.integers(1, 255, (2, *label.shape))], axis=-1).astype(
            np.uint8
        )
        place = georeference(m, forms[number % len(forms)])
        tiled = {"tiled": True, "blockxsize": 64, "blockysize": 64} if number % 2 else {}
        files = (
            make_geotiff(f"{k}{number}.tif", a, **place, **tiled) for k, a in (("i", image), ("l", label))
        )
        scenes.append(Scene(f"s{number}", *files, f"s{number}", split))
    return Dataset("made", root, tuple(scenes), classes)


def scaled_recipe(**sections: object) -> Recipe:
    data = {
        "seed": 3,
        "tiles": {"size": SIDE},
        "augmentation": {"scale_to": [0.2, 1.0], "brightness": 0, "contrast": 0},
        "training": {"global_batch": 12},
    }
    return recipe_of(**{**data, **sections})
