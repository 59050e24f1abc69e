"""Made folders of images and labels in any layout, of odd sizes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from datasets import load_dataset
from datasets.start.choice import Choice, nest_choices
from datasets.start.look import look
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.grid.scenes import Dataset
from tests.helpers.made_rasters import written

SIZE = (61, 83)
LEFT, TOP, METRES = 368000.0, 5808000.0, 0.5


def image(
    rng: np.random.Generator, bands: int = 3, size: tuple[int, int] = SIZE, dtype: str = "uint8"
) -> NDArray[Any]:
    """Return an image of (H, W, bands): noise on a slope, as measurements are."""
    rows = np.linspace(20, 180, size[0])[:, None, None]
    return (rows + rng.integers(0, 60, (*size, bands))).astype(dtype)


def label(values: Sequence[int], size: tuple[int, int] = SIZE, shift: int = 0) -> NDArray[np.uint16]:
    """Return a label of (H, W): rectangles of each value, so that all occur."""
    rows, cols = np.indices(size)
    blocks = rows * 3 // size[0] + 3 * (cols * 4 // size[1]) + shift
    array: NDArray[np.uint16] = np.array(values, np.uint16)[blocks % len(values)]
    return array


def painted(label_HW: NDArray[Any], colours: Mapping[int, tuple[int, int, int]]) -> NDArray[np.uint8]:
    """Return the (H, W, 3) colours of a label."""
    picture = np.zeros((*label_HW.shape, 3), np.uint8)
    for value, colour in colours.items():
        picture[label_HW == value] = colour
    return picture


def place(col: int = 0, metres: float = METRES) -> dict[str, Any]:
    """Return a georeference; `col`: pixels to the east."""
    return {
        "crs": "EPSG:25833",
        "transform": rasterio.Affine(metres, 0, LEFT + metres * col, 0, -metres, TOP),
    }


def save(path: Path, array: NDArray[Any], palette: Any = None, **options: Any) -> Path:
    """Write an array as the raster that the path's ending says."""
    if array.dtype == np.uint16 and array.max() < 256 and path.suffix != ".jp2" and array.ndim == 2:
        array = array.astype(np.uint8)
    lossless = {"QUALITY": "100", "REVERSIBLE": "YES"} if path.suffix == ".jp2" else {}
    return written(path, array, colours=palette, **lossless, **options)


def planned(folder: Path, labels: Path | None = None) -> tuple[tuple[Choice, ...], Recipe, Dataset]:
    """Return what is seen in a folder, the recipe of it alone, and its dataset."""
    choices = look(folder, labels)
    recipe = recipe_from({"name": "made", **nest_choices(choices)}, "made")
    return choices, recipe, load_dataset(recipe)


def pairs_of(dataset: Dataset) -> set[tuple[str, str]]:
    """Return image and label of each scene, relative to the root."""
    paths = [(scene.image, scene.label) for scene in dataset.scenes]
    return {
        (a.relative_to(dataset.root).as_posix(), b.relative_to(dataset.root).as_posix())
        for a, b in paths
        if b is not None
    }


def two_folders(
    root: Path, rng: np.random.Generator, count: int = 5, values: Any = (0, 1, 2), **options: Any
) -> Path:
    """Write images `im/s0.tif` … with labels `gt/s0.png` …, and return their folder."""
    for i in range(count):
        save(root / f"im/s{i}.tif", image(rng), **place(i * SIZE[1]))
        save(root / f"gt/s{i}.png", label(values, shift=i), **options)
    return root


def by_key(choices: tuple[Choice, ...]) -> dict[str, Choice]:
    """Return the choices by their keys."""
    return {choice.key: choice for choice in choices}
