"""Throughput of the input pipeline, by threads and by worker processes, from tile files and from scenes.

Tile files of 256 × 256 and scenes of 1024 × 1024; flips, turns and brightness. For each way of making
batches: tiles a second by the clock, and milliseconds of processor a tile of all processes together, which
other work on the machine changes less. Besides, what the one thread that takes made batches can hand over:
the ceiling for any number of workers. Baseline, in the same run: reading the same files one after the other
with rasterio alone, in one thread, without augmentation or batches. The ways take turns, and the best round
of each counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from datasets import load_dataset
from datasets.synthetic.make import make_naic2020, make_potsdam
from segmenter.base.machine import usable_cores
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import SamplingConfig
from segmenter.devices.strategy import load_tensorflow
from segmenter.grid.geometry import Window
from segmenter.grid.scenes import Dataset
from segmenter.raster import open_raster, quiet_gdal, read_label
from segmenter.sampling import Plan, plan
from segmenter.tiles.batches import Batch, BatchLoader
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.orders import BatchShape
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.feeding.sizes import ahead_of
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore
from segmenter.training.trainer import epoch_dataset

SIDE = 256
_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Rates:
    """Rounds of one way of making batches."""

    tiles_per_second: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """The best round by each."""
        return {
            "tiles_per_second": round(max(self.tiles_per_second)),
            "processor_ms_a_tile": round(min(self.milliseconds), 2),
        }


class _Case:
    """A dataset, and the feeds of its batches."""

    def __init__(self, kind: str, root: str, batch: int, workers: list[int]) -> None:
        split = {"validation_share": 0.01} if kind == "naic2020" else {}
        data: dict[str, Any] = {
            "name": "bench",
            "dataset": {"kind": kind, "root": root, **split},
            "tiles": {"size": SIDE, "jitter": kind != "naic2020", "overlap": 0 if split else SIDE // 2},
            "augmentation": {"d4": True, "brightness": 0.2, "contrast": 0},
            "training": {"global_batch": batch},
        }
        recipe = recipe_from(data, "benchmark")
        self.dataset = load_dataset(recipe)
        index = build_index(self.dataset, "train", recipe.tiles, progress=False)
        store = SceneStore(self.dataset, index.scenes, SIDE, cache_folder(self.dataset), progress=False)
        self._loader = BatchLoader(recipe, index, store, band_statistics(self.dataset, progress=False))
        self._rows = plan(index.counts_NK, batch, recipe.sampling, 0, 0)
        self._feeds = {n: self._feed(n, batch) for n in workers}
        self.rates = {n: Rates() for n in workers}

    def _feed(self, workers: int, batch: int) -> tuple[Feed, list[int]]:
        if not workers:
            return Feed(self._loader, batch), []
        shape = BatchShape(batch, self._loader.tile_shape, self._loader.dtype)
        pool = WorkerPool(workers, shape, ahead_of(workers, shape.bytes))
        return Feed(self._loader, batch, pool), pool.pids

    def run(self, epochs: int) -> None:
        """A round of each way."""
        for workers, (feed, pids) in self._feeds.items():
            self._epoch(feed, 0)  # opens files, imports libraries
            processor, started = _processor(pids), time.perf_counter()
            tiles = sum(self._epoch(feed, epoch) for epoch in range(1, epochs + 1))
            seconds = time.perf_counter() - started
            self.rates[workers].tiles_per_second.append(tiles / seconds)
            self.rates[workers].milliseconds.append(1000 * (_processor(pids) - processor) / tiles)

    def _epoch(self, feed: Feed, epoch: int) -> int:
        return sum(int(image.shape[0]) for image, *_ in epoch_dataset(feed, self._rows, epoch))

    def close(self) -> None:
        """End the worker processes."""
        for feed, _ in self._feeds.values():
            feed.close()


class _Ready(Feed):
    """A feed whose batches are all made: taking them is all that it does."""

    def __init__(self, batch: int) -> None:
        self.shape = BatchShape(batch, (SIDE, SIDE, 3), "uint8")
        self._made_once = self.shape.empty()
        for part in self._made_once:
            part[:] = 1

    def take(self, plan: Plan, epoch: int, step: int, into: Batch) -> None:
        """Copy the batch, as a feed does."""
        for target, values in zip(into, self._made_once, strict=True):
            np.copyto(target, values)


def _taken(batch: int, steps: int = 200) -> int:
    """Tiles that a second of processor hands over in stacks of four, as `train.py` takes them."""
    rows = plan(np.full((steps * batch, 1), SIDE**2), batch, SamplingConfig(), 0, 0)
    stacks = iter(epoch_dataset(_Ready(batch), rows, 0, stacked=4))
    next(stacks)
    started = time.process_time()
    tiles = sum(4 * batch for _ in stacks)
    return round(tiles / (time.process_time() - started))


def _processor(pids: list[int]) -> float:
    """Seconds of this process and of others."""
    rows = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return time.process_time() + sum((int(row[11]) + int(row[12])) * _TICK for row in rows)


def main() -> None:
    """Make files, read them plainly, feed them, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=256, help="256×256 files to make")
    parser.add_argument("--epochs", type=int, default=2, help="times that they are fed in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="tiles of a step")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="0: threads")
    options = parser.parse_args()
    quiet_gdal()
    with contextlib.redirect_stdout(sys.stderr), _cases(options) as cases:
        plain = _plain(cases["tile_files"].dataset)
        load_tensorflow()
        taken = max(_taken(options.batch) for _ in range(options.rounds))
        for _ in range(options.rounds):
            for case in cases.values():
                case.run(options.epochs)
    fed = {
        name: {"threads" if not n else f"workers_{n}": rate.figures() for n, rate in case.rates.items()}
        for name, case in cases.items()
    }
    best = max(rate["tiles_per_second"] for rate in fed["tile_files"].values())
    print(
        json.dumps(
            {
                "benchmark": "pipeline",
                "cores": usable_cores(),
                **fed,
                "tiles_per_second": best,
                "plain_reads_per_second": round(plain),
                "ratio": round(best / plain, 2),
                "taken_tiles_per_processor_second": taken,
            }
        )
    )


@contextlib.contextmanager
def _cases(options: argparse.Namespace) -> Iterator[dict[str, _Case]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files, scenes = Path(folder) / "files", Path(folder) / "scenes"
        make_naic2020(files, scenes=options.tiles, seed=0)
        make_potsdam(scenes, scenes=4, seed=0, size=1024)
        cases = {
            "tile_files": _Case("naic2020", str(files), options.batch, options.workers),
            "scenes": _Case("potsdam", str(scenes), options.batch, options.workers),
        }
        for case in cases.values():
            stack.callback(case.close)
        yield cases


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
