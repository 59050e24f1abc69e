"""Processor time of a tile of a batch, by what its recipe asks for, and the tiles read for it.

Baseline, in the same run: batches without any change, only read and put together. One JSON line: for each
augmentation its microseconds a tile, the ratio to the baseline and reads a tile. Rounds take turns and the
smallest time of each counts, so that other work on the machine matters less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets import load_dataset
from datasets.synthetic.make import make_potsdam
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.grid.geometry import Window
from segmenter.sampling import Plan, plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore, Tile

_COLOUR = {"brightness": 0.2, "contrast": 0.2, "hue": 10, "saturation": 0.2}
_WITH: dict[str, Any] = {
    "nothing": [],
    "default": {},
    "zoom_turn_colour": {"scale": 0.25, "rotation": 15, **_COLOUR},
    "default_and_mosaic_0.2": {"mosaic": 0.2},
    "default_and_copy_paste_0.3": {"copy_paste": {"p": 0.3}},
    "default_and_gamma": {"transforms": [{"name": "RandomGamma", "p": 0.5}]},
    "default_and_dropout": {"transforms": [{"name": "CoarseDropout", "p": 0.5}]},
    "default_and_grid_distortion": {"transforms": [{"name": "GridDistortion", "p": 0.5}]},
    "default_and_elastic": {"transforms": [{"name": "ElasticTransform", "p": 0.5}]},
}


class _Counted(SceneStore):
    """Counts what is read."""

    reads = 0

    def read(self, scene: int, window: Window) -> Tile:
        self.reads += 1
        return super().read(scene, window)


def main() -> None:
    """Make scenes, make batches of them with each augmentation, print times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=256, help="of a tile in pixels")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each; the smallest counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        make_potsdam(Path(folder), scenes=3, seed=0, size=1024)
        cases = {name: _Case(folder, options.side, section) for name, section in _WITH.items()}
        for _ in range(options.rounds):
            for case in cases.values():
                case.run()
    least = min(cases["nothing"].seconds)
    figures = {
        name: {
            "microseconds": round(min(case.seconds) * 1e6),
            "ratio": round(min(case.seconds) / least, 2),
            "reads": round(case.store.reads / case.loader.drawn.tiles, 2),
        }
        for name, case in cases.items()
    }
    print(json.dumps({"benchmark": "augmentation", "side": options.side, "tile": figures}))


class _Case:
    """Batches of one recipe, and the times of making them."""

    def __init__(self, folder: str, side: int, section: Any) -> None:
        self.recipe = _recipe(folder, side, section)
        dataset = load_dataset(self.recipe)
        index = build_index(dataset, "train", self.recipe.tiles, progress=False)
        self.store = _Counted(dataset, index.scenes, side, cache_folder(dataset), progress=False)
        self.loader = BatchLoader(self.recipe, index, self.store, band_statistics(dataset, progress=False))
        self.rows: Plan = plan(index.counts_NK, 8, self.recipe.sampling, 0, 0)
        self.seconds: list[float] = []

    def run(self) -> None:
        started, tiles = time.process_time(), 0
        for step in range(self.rows.steps):
            tiles += len(self.loader.load(self.rows, 0, step)[0])
        self.seconds.append((time.process_time() - started) / tiles)


def _recipe(folder: str, side: int, section: Any) -> Recipe:
    return recipe_from(
        {
            "name": "bench",
            "dataset": {"kind": "potsdam", "root": folder, "split": {"validation": [], "test": []}},
            "tiles": {"size": side},
            "augmentation": section,
            "training": {"global_batch": 8},
        },
        "benchmark",
    )


if __name__ == "__main__":
    main()
