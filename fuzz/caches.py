"""Targets among the caches of a dataset: tile index, band statistics, packs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import rasterio

from fuzz.target import Facts, digest
from segmenter.base.threads import in_threads
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore

_MADE = 1_500_000_000_000_000_000
_TILES = TilesConfig(size=16)
CACHE = ".tile-index"


def _dataset(root: Path) -> Dataset:
    classes = ClassMap(tuple(LandCoverClass(name, (i, i, i), i) for i, name in enumerate("abc")), "codes")
    scenes = tuple(Scene(n, root / f"{n}.jpg", root / f"{n}_label.png", n, "train") for n in ("s", "t"))
    return Dataset("fuzzed", root, scenes, classes)


def make_dataset(folder: Path) -> None:
    """Two scenes that have to be decoded, and all that a training keeps of them."""
    rng = np.random.default_rng(1)
    for scene in _dataset(folder).scenes:
        assert scene.label is not None
        ids = rng.integers(0, 3, (1, 5, 6), np.uint8).repeat(12, 1).repeat(12, 2)
        for path, driver, pixels in ((scene.image, "JPEG", ids.repeat(3, 0) * 60), (scene.label, "PNG", ids)):
            shape = {"count": len(pixels), "height": pixels.shape[1], "width": pixels.shape[2]}
            with (
                rasterio.Env(GDAL_PAM_ENABLED=False),
                rasterio.open(path, "w", driver, dtype="uint8", **shape) as f,
            ):
                f.write(pixels)
            os.utime(path, ns=(_MADE, _MADE))  # which the caches know their files by
    read_index(folder / CACHE / "x")
    read_bands(folder / CACHE / "x")
    _store(_dataset(folder))


def read_index(file: Path) -> Facts:
    """The tiles as a training would draw them."""
    found = build_index(
        _dataset(file.parents[1]), "train", _TILES, progress=False, spread=partial(in_threads, workers=1)
    )
    return [
        digest(found.scene_N, found.row_N, found.col_N, found.labelled_N, found.counts_NK, found.left_out)
    ]


def read_bands(file: Path) -> Facts:
    """What the network's input is normalised by."""
    found = band_statistics(_dataset(file.parents[1]), progress=False)
    return [digest(found.mean_C, found.std_C, found.min_C, found.max_C, found.pixels, found.dtype)]


def read_packs(file: Path) -> Facts:
    """Tiles and labels as a training reads them from the packs."""
    store, window = _store(_dataset(file.parents[2])), Window(20, 30, 40, 60)
    return [digest(*store.read(i, window), store.read_label(i, window)) for i in (0, 1)]


def _store(dataset: Dataset) -> SceneStore:
    return SceneStore(dataset, dataset.scenes, 16, cache_folder(dataset), progress=False)
