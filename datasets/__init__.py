"""Loaders of datasets: where files are, their codes, palette and splits; all give scenes and a class map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from segmenter.config.datasets import FolderConfig
from segmenter.config.recipe import Recipe
from segmenter.finding import is_vector
from segmenter.scenes import Dataset, Layout

from .files import path_of
from .folder import folder_layout, load_folder, one_label
from .naic2020 import load_naic2020, naic2020_layout
from .potsdam import load_potsdam, potsdam_layout
from .scale import with_scale

__all__ = ["LAYOUTS", "LOADERS", "layout_of", "load_dataset"]

LOADERS: dict[str, Callable[[Any], Dataset]] = {
    "potsdam": load_potsdam,
    "naic2020": load_naic2020,
    "folder": load_folder,
}
"""Each takes the dataset section of its kind, reads no pixel, and gives scenes and a class map."""

LAYOUTS: dict[str, Callable[[Any], Layout]] = {
    "potsdam": potsdam_layout,
    "naic2020": naic2020_layout,
    "folder": folder_layout,
}
"""Each takes the dataset section of its kind, and says how its files are named; none of them is looked at."""


def load_dataset(recipe: Recipe) -> Dataset:
    """The scenes and class map that a recipe's dataset section names.

    Raises:
        ConfigError, DatasetError, LabelError: as the loader of that kind says; files that cannot be.
    """
    dataset = with_scale(LOADERS[recipe.dataset.kind](recipe.dataset), recipe.dataset.metres_per_pixel)
    section = recipe.dataset
    limit = None if section.cache_limit is None else int(section.cache_limit * 2**30)
    classes = replace(dataset.classes, nodata=section.label_nodata)
    dataset = replace(dataset, classes=classes, cache_bytes=limit, cache_codec=section.cache_compression)
    if section.cache is not None:
        dataset = replace(dataset, cache=path_of(section.cache, "dataset.cache"))
    if section.kind == "folder" and _has_to_be_made(section):
        from .made import with_made_files  # brings rasterio

        return with_made_files(dataset, section)
    return dataset


def _has_to_be_made(section: FolderConfig) -> bool:
    """Whether images or labels are others than the files that the patterns name."""
    images = len(section.images) > 1 or section.drivers
    return bool(images or is_vector(section.labels) or section.labels_by != "pixels" or one_label(section))


def layout_of(recipe: Recipe) -> Layout:
    """File names of a recipe's dataset, as its layout; no file is looked at.

    Raises:
        ConfigError: a pattern that cannot be meant.
    """
    return LAYOUTS[recipe.dataset.kind](recipe.dataset)
