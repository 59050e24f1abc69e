"""Processor time of reading a tile of 256² and its label, in milliseconds: from files, and from packs.

Two datasets: files of 256² (DEFLATE, labels as 16-bit PNG), and a GeoTIFF of `--side` pixels at random
positions (tiled, DEFLATE). The ways take turns, `--rounds` times; the least of each counts. `opened` opens in
full, with all checks, whatever is not an image of many tiles, as the program did before it kept labels open;
`in_place` is what it does now; `packed` and `lz4` read packs. Baseline, in the same run: OpenCV's `imread` of
image and label, without checks, validity or class map (the large GeoTIFF has none: it reads no windows).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from datasets.pack import pack_dataset
from datasets.published import load_naic2020
from datasets.synthetic.make import make_naic2020
from segmenter.config.datasets import CacheCodec, Naic2020Config
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import open_raster, quiet_gdal, read_label, write_raster
from segmenter.tiles.index import cache_folder
from segmenter.tiles.store import SceneStore

_TILE = 256
Draws = list[tuple[int, Window]]
"""(scene, window) of each tile."""


def main() -> None:
    """Make the data, read them in all ways, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=256, help="that are read in a round")
    parser.add_argument("--side", type=int, default=6000, help="of the large GeoTIFF, in pixels")
    parser.add_argument("--rounds", type=int, default=3, help="of each way")
    arguments = parser.parse_args()
    quiet_gdal()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        small = tile_files(Path(folder) / "small", arguments.tiles)
        draws = [(i, Window(0, 0, _TILE, _TILE)) for i in range(len(small.scenes))]
        figures = {"files": _measured(small, draws, arguments.rounds, plain=True)}
        large = large_scene(Path(folder) / "large", arguments.side, rng)
        corners = rng.integers(0, arguments.side - _TILE + 1, (arguments.tiles, 2)).tolist()
        draws = [(0, Window(row, col, _TILE, _TILE)) for row, col in corners]
        figures["large"] = _measured(large, draws, arguments.rounds, plain=False)
    print(json.dumps({"benchmark": "reading_tiles", "unit": "ms of processor a tile", **figures}))


def _measured(dataset: Dataset, draws: Draws, rounds: int, *, plain: bool) -> dict[str, float]:
    """Milliseconds a tile of each way; all but the baseline give the same bits."""
    in_place = SceneStore(dataset, dataset.scenes, _TILE, cache_folder(dataset), progress=False)
    ways: dict[str, Callable[[int, Window], object]] = {
        "opened": _opening(dataset, keep_images=not plain),
        "in_place": in_place.read,
    }
    codecs: dict[str, CacheCodec] = {"packed": "none", "lz4": "lz4"}
    for name, codec in codecs.items():
        packed = replace(dataset, cache=dataset.root / name, cache_codec=codec)
        for _ in pack_dataset(packed, progress=False):
            pass
        ways[name] = SceneStore(packed, dataset.scenes, _TILE, cache_folder(packed), progress=False).read
    _check_same(in_place, ways["lz4"], draws)
    if plain:
        ways["imread"] = lambda scene, _: _imread(dataset.scenes[scene])
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):  # the first is not counted
        for name, read in ways.items():
            started = time.process_time()
            for scene, window in draws:
                read(scene, window)
            found[name].append((time.process_time() - started) / len(draws) * 1000)
    return {name: round(min(values[1:]), 3) for name, values in found.items()}


def _check_same(store: SceneStore, read: Callable[[int, Window], object], draws: Draws) -> None:
    for scene, window in draws[:20]:
        for a, b in zip(store.read(scene, window), _arrays(read(scene, window)), strict=True):
            assert np.array_equal(a, b), "packs hold other bits than files"


def _arrays(tile: object) -> tuple[NDArray[np.generic], ...]:
    assert isinstance(tile, tuple)
    return tile


def _opening(dataset: Dataset, *, keep_images: bool) -> Callable[[int, Window], object]:
    kept = [open_raster(scene.image) for scene in dataset.scenes] if keep_images else []

    def read(scene: int, window: Window) -> object:
        files = dataset.scenes[scene]
        assert files.label is not None
        label = dataset.classes.decode(read_label(files.label, window), str(files.label))
        if kept:
            return kept[scene].read(window), label
        with open_raster(files.image) as raster:
            return raster.read(window), label

    return read


def _imread(scene: Scene) -> object:
    return [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in (scene.image, scene.label)]


def tile_files(root: Path, tiles: int) -> Dataset:
    """Files of 256², as NAIC2020 has them."""
    make_naic2020(root, scenes=tiles, seed=0)
    dataset = load_naic2020(Naic2020Config(kind="naic2020", root=str(root)))
    scenes = tuple(replace(scene, split="train") for scene in dataset.scenes)
    return replace(dataset, scenes=scenes)


def large_scene(root: Path, side: int, rng: np.random.Generator) -> Dataset:
    """A GeoTIFF of smooth content with a little noise, which DEFLATE shrinks as it does aerial images."""
    coarse = rng.integers(0, 255, (side // 10 + 1, side // 10 + 1, 3), np.uint8)
    smooth = cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC).astype(np.int16)
    noise = rng.integers(-2, 3, smooth.shape, np.int8)
    label = rng.integers(0, 6, (side // 100 + 1, side // 100 + 1), np.uint8).repeat(100, 0).repeat(100, 1)
    write_raster(root / "image.tif", (smooth + noise).clip(0, 255).astype(np.uint8))
    write_raster(root / "label.tif", np.ascontiguousarray(label[:side, :side]))
    classes = ClassMap(tuple(LandCoverClass(f"class {i}", (i, i, i), i) for i in range(6)))
    scene = Scene("large", root / "image.tif", root / "label.tif", "large", "train")
    return Dataset("large", root, (scene,), classes)


if __name__ == "__main__":
    main()
