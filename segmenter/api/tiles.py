"""Scenes cut into tiles, with class pixel counts: the input of plans and forecasts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from segmenter.api.values import whole_number
from segmenter.base.errors import DatasetError
from segmenter.base.terminal import align_table, listening
from segmenter.config.reading import default_recipe, load_recipe, recipe_from
from segmenter.config.recipe import Recipe
from segmenter.grid.colours import default_colours
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import SPLITS, Dataset, Scene, Split
from segmenter.sampling.forecast import holds
from segmenter.tiles.gsd import with_gsds
from segmenter.tiles.index import TileIndex, build_index

Paths = str | os.PathLike[str]
Scenes = Dataset | Iterable[Scene | tuple[Paths, Paths]]
"""A dataset as its loader gives it, scenes, or pairs of an image file and its label file."""
Classes = ClassMap | Mapping[str, int]
"""A class map, or name → code in the label files."""


@dataclass(frozen=True, eq=False, repr=False)
class Tiles:
    """Tiles of the scenes of one split.

    >>> tile = tiles.counts[:, tiles.classes.index("road")].argmax()  # the one with most road
    >>> tiles.scenes[tiles.scene[tile]].name, int(tiles.row[tile]), int(tiles.col[tile])
    ('a', 64, 64)

    Attributes:
        counts: (tiles, classes) pixels of each class in each tile.
        classes: class names in the order of the columns.
        scenes: scenes of the tiles.
        scene: (tiles,) index of each tile's scene; `row`, `col`: its upper left pixel in the scene.
        left_out: number of tiles with too few labelled pixels.
        warnings: warnings about the files.
    """

    counts: NDArray[np.int64]
    classes: tuple[str, ...]
    scenes: tuple[Scene, ...]
    scene: NDArray[np.int32]
    row: NDArray[np.int32]
    col: NDArray[np.int32]
    left_out: int
    warnings: tuple[str, ...]
    _source: tuple[Recipe, Dataset, TileIndex] = field(repr=False)

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        recipe, _, index = self._source
        out = f", {self.left_out} left out" if self.left_out else ""
        scenes = f"{len(self.scenes)} scene{'s' * (len(self.scenes) != 1)}"
        least = recipe.sampling.min_pixels
        title = f"{len(self)} tiles of {index.tile} pixels from {scenes}{out}"
        held = holds(self.counts, least).sum(axis=0)
        pixels = self.counts.sum(axis=0)
        rows = [(name, str(n), str(m)) for name, n, m in zip(self.classes, held, pixels, strict=True)]
        table = align_table(("class", f"tiles with ≥ {least} px", "pixels"), rows)
        return "\n".join([title, *(f"  {line}" for line in table), *self.warnings])


class TileSettings(TypedDict, total=False):
    """Settings of `index_tiles` as keyword arguments; None: as in the recipe."""

    size: int | None
    overlap: int | None
    min_labelled: float | None
    bands: Sequence[int] | None


def index_tiles(
    scenes: Scenes,
    classes: Classes | None = None,
    *,
    recipe: Paths | Recipe | None = None,
    split: Split = "train",
    cache: Paths | None = None,
    progress: bool = False,
    **tiling: Unpack[TileSettings],
) -> Tiles:
    """Cut scenes into tiles and count the class pixels in each, as a training does.

    >>> tiles = index_tiles([("a.tif", "a_label.png")], {"water": 0, "road": 1, "field": 2}, size=64)
    >>> tiles
    15 tiles of 64×64 pixels from 1 scene
      class  tiles with ≥ 32 px  pixels
      water                   2    6240
      road                    6    3960
      field                  15   51240
    >>> tiles.counts.shape
    (15, 3)

    Counts are cached in `.tile-index`, in the common folder of all scenes, for the next call.

    Args:
        scenes: pairs of an image file and its label file; `Scene`s; or a `Dataset` from a loader.
        classes: code in label files by class name, or a `ClassMap` (required for labels in colours); a
            dataset has its own.
        recipe: a recipe, or its file, that provides the defaults of the other settings.
        split: split whose scenes are used.
        cache: another folder for the cached counts.
        progress: show a bar on stderr.
        size, overlap: size and overlap of tiles in pixels.
        min_labelled: share of a tile that must be labelled.
        bands: 1-based bands of the image files that are data; None: all but alpha.

    Raises:
        SegmenterError: a label does not match its image, or has a value that is no class's.
    """
    if split not in SPLITS:
        raise DatasetError("split", expected=", ".join(SPLITS), got=split)
    changes: dict[str, Any] = dict(tiling)
    dataset = _dataset(scenes, classes, split, changes.pop("bands", None), cache)
    if wrong := sorted(changes.keys() - TileSettings.__annotations__):
        raise TypeError(f"index_tiles() got an unexpected keyword argument {wrong[0]!r}")
    settings = recipe_with(recipe, **changes)
    with listening(bars=progress) as messages:
        index = build_index(dataset, split, settings.tiles, progress=progress)
        index = with_gsds(index, dataset, settings, progress=progress)
    where = (index.scenes, index.scene_N, index.row_N, index.col_N)
    source = (settings, dataset, index)
    names, warnings = tuple(dataset.classes.names), tuple(messages.warnings)
    return Tiles(index.counts_NK, names, *where, index.left_out, warnings, source)


def recipe_with(recipe: Paths | Recipe | None, **changes: Any) -> Recipe:
    """Return a recipe, or the defaults, with changed settings; None changes nothing.

    Raises:
        ConfigError: a value is invalid.
    """
    base = recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe)) if recipe else default_recipe()
    data = base.model_dump(mode="json")
    for name, value in changes.items():
        if value is not None:
            *section, key = _SETTINGS[name].split(".")
            (data[section[0]] if section else data)[key] = value.item() if hasattr(value, "item") else value
    return recipe_from(data, str(recipe) if isinstance(recipe, (str, os.PathLike)) else "arguments")


_SETTINGS = {
    "size": "tiles.size",
    "overlap": "tiles.overlap",
    "min_labelled": "tiles.min_labelled",
    "global_batch": "training.global_batch",
    "min_pixels": "sampling.min_pixels",
    "max_repeats": "sampling.max_repeats_per_tile",
    "seed": "seed",
}
"""Arguments → settings of a recipe."""


def class_map(classes: Classes) -> ClassMap:
    """Return a class map of names and codes, with default colours.

    Raises:
        LabelError: two classes have one code, or a code is invalid.
        DatasetError: the argument is no class map.
    """
    if isinstance(classes, ClassMap):
        return classes
    if not isinstance(classes, Mapping) or not all(
        isinstance(name, str) and isinstance(code, Integral) for name, code in classes.items()
    ):
        raise DatasetError(
            "classes",
            expected='names with their codes in the label files, as {"water": 0, "road": 1}, or a ClassMap',
            got=f"{classes!r}",
        )
    colours = default_colours(list(classes))
    return ClassMap(tuple(map(LandCoverClass, classes, colours, map(int, classes.values()))))


def _dataset(
    scenes: Scenes, classes: Classes | None, split: Split, bands: Sequence[int] | None, cache: Paths | None
) -> Dataset:
    dataset = _list_scenes(scenes, classes, split)
    if not dataset.of(split):
        raise DatasetError("scenes", expected=f"some of the split {split}, there are none")
    if bands is not None:
        dataset = replace(dataset, bands=tuple(whole_number("bands", band) for band in bands))
    return dataset if cache is None else replace(dataset, cache=Path(cache))


def _list_scenes(scenes: Scenes, classes: Classes | None, split: Split) -> Dataset:
    if isinstance(scenes, Dataset):
        if classes is not None:
            raise DatasetError("classes", "a dataset has its own", remedy="leave them out")
        return scenes
    if classes is None:
        raise DatasetError(
            "classes", expected='names with their codes in the label files, as {"water": 0}', got="none"
        )
    listed = _unique_scenes([_scene(each, split) for each in scenes])
    if not listed:
        raise DatasetError("scenes", expected="pairs of an image and its label", got="none")
    folders = [
        os.path.dirname(os.path.abspath(path)) for each in listed for path in (each.image, each.label) if path
    ]
    root = Path(os.path.commonpath(folders))
    own_classes = class_map(classes)
    return Dataset(root.name or "scenes", root, listed, own_classes)


def _unique_scenes(scenes: Sequence[Scene]) -> tuple[Scene, ...]:
    """Return scenes with unique names: repeated names are replaced by file paths."""
    names = Counter(scene.name for scene in scenes)
    return tuple(each if names[each.name] == 1 else replace(each, name=str(each.image)) for each in scenes)


def _scene(given: Any, split: Split) -> Scene:
    if isinstance(given, Scene):
        return given
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise DatasetError("scenes", expected="pairs of an image file and its label file", got=f"{given!r}")
    image, label = (Path(path) for path in given)
    return Scene(image.stem, image, label, str(image), split)
