"""Loaders of datasets: files, codes, palettes and splits; all return scenes and a class map."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segmenter.config.datasets import FolderConfig
    from segmenter.config.recipe import Recipe
    from segmenter.grid.scenes import Dataset

__all__ = ["kinds", "load_dataset"]

# Imports wait for the call: a script that is interrupted meanwhile ends with one line.


def kinds() -> dict[str, Callable[[Any], Dataset]]:
    """Return the loader of each kind of dataset, which takes the dataset section of that kind.

    It returns scenes and a class map without reading pixels.
    """
    from .folder import load_folder
    from .published import load_naic2020, load_potsdam

    return {"potsdam": load_potsdam, "naic2020": load_naic2020, "folder": load_folder}


def load_dataset(recipe: Recipe, *, blocks: bool = True) -> Dataset:
    """Return the scenes and class map of a recipe's dataset section.

    Args:
        blocks: False: scenes that the split divides into blocks are whole.
    """
    from dataclasses import replace

    from .files import path_of
    from .gsd import with_gsd

    load = kinds()[recipe.dataset.kind]
    dataset = with_gsd(load(recipe.dataset), recipe.dataset.metres_per_pixel)
    section = recipe.dataset
    limit = None if section.cache_limit is None else int(section.cache_limit * 2**30)
    classes = replace(dataset.classes, nodata=section.label_nodata)
    dataset = replace(dataset, classes=classes, cache_bytes=limit, cache_codec=section.cache_compression)
    if section.cache is not None:
        dataset = replace(dataset, cache=path_of(section.cache, "dataset.cache"))
    if section.kind == "folder" and _has_to_be_made(section):
        from .made import with_made_files  # brings rasterio

        dataset = with_made_files(dataset, section)
    if blocks and section.kind == "folder" and section.split.blocks is not None:
        from .blocks import with_blocks  # brings rasterio

        dataset = with_blocks(dataset, section.split, section.deals)
    return dataset


def _has_to_be_made(section: FolderConfig) -> bool:
    """Return whether images or labels must be made, because files cannot be used directly."""
    from segmenter.base.files import is_vector
    from segmenter.config.layouts import one_label

    images = len(section.images) > 1 or section.drivers
    placed = is_vector(section.labels) or section.labels_by != "pixels" or one_label(section)
    return bool(images or placed or section.encoding == "masks")
