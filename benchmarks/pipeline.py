"""Throughput of the input pipeline in tiles a second, from tile files, with D4 and brightness.

Baseline, in the same run: reading the same files one after the other with rasterio alone, in one thread,
without augmentation or batches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from datasets import load_dataset
from datasets.synthetic.make import make_naic2020
from segmenter.config.reading import recipe_from
from segmenter.devices.strategy import load_tensorflow
from segmenter.geometry import Window
from segmenter.raster import open_raster, read_label
from segmenter.sampling import plan
from segmenter.scenes import Dataset
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.cache import cache_folder
from segmenter.tiles.index import build_index
from segmenter.tiles.store import SceneStore
from segmenter.training.pipeline import epoch_dataset


def main() -> None:
    """Make tiles, read them plainly, feed them, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=256, help="256×256 files to make")
    parser.add_argument("--epochs", type=int, default=8, help="times that they are fed")
    parser.add_argument("--batch", type=int, default=64, help="tiles of a step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_naic2020(Path(folder), scenes=arguments.tiles, seed=0)
        recipe = recipe_from(
            {
                "name": "bench",
                "dataset": {"kind": "naic2020", "root": folder, "validation_share": 0.01},
                "tiles": {"size": 256, "jitter": False},
                "augmentation": {"d4": True, "brightness": 0.2, "contrast": 0},
                "training": {"global_batch": arguments.batch},
            },
            "benchmark",
        )
        dataset = load_dataset(recipe)
        index = build_index(dataset, "train", recipe.tiles, progress=False)
        store = SceneStore(dataset, index.scenes, 256, cache_folder(dataset), progress=False)
        loader = BatchLoader(recipe, index, store, 3, "uint8")
        rows = plan(index.counts_NK, arguments.batch, recipe.sampling, 0, 0)
        plain = _plain(dataset)
        load_tensorflow()
        started = time.perf_counter()
        batches = (batch for epoch in range(arguments.epochs) for batch in epoch_dataset(loader, rows, epoch))
        fed = sum(int(image.shape[0]) for image, _, _ in batches)
        rate = fed / (time.perf_counter() - started)
    figures = {"tiles_per_second": round(rate), "plain_reads_per_second": round(plain)}
    print(json.dumps({"benchmark": "pipeline", **figures, "ratio": round(rate / plain, 2)}))


def _plain(dataset: Dataset) -> float:
    scenes = dataset.of("train")
    started = time.perf_counter()
    for scene in scenes:
        assert scene.label is not None
        with open_raster(scene.image) as raster:
            raster.read(Window.of(raster.info.size))
        read_label(scene.label)
    return len(scenes) / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
