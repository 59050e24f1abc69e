"""Input rate against need: tiles a second by threads and worker processes, and the cards' need.

Uses the augmentation of configs/potsdam.yaml, on scenes read in place (tiled GeoTIFFs) and scenes decoded
once (GeoTIFFs in strips). Processor time per tile reveals costs that wall-clock time may hide.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from segmenter.extras.input_cost import rate_of
from segmenter.sampling import Plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.orders import BatchShape
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.feeding.sizes import ahead_of

from .bench import Bench
from .figures import Figure
from .step import RATE, Case

KINDS = ("files in place", "decoded copies")
_SECONDS = 2.0
"""Most seconds for each number of threads or processes."""
ENOUGH = 1.5
"""Required ratio of input rate to the step's: real files are slower than synthetic ones in the page cache."""
_AUGMENTATION = {
    "scale": 0.25,
    "rotation": 15,
    "brightness": 0.2,
    "contrast": 0.2,
    "hue": 10,
    "saturation": 0.2,
}
Load = Callable[[int], Any]
"""The batch of a step."""


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield tiles a second for 1, 2, 4 … threads, in place and decoded, and the best one against the need."""
    from ...synthetic.make import make_potsdam

    need, source = needed(bench)
    size = 256 if bench.sizes.tiny else 1024
    best, told = 0.0, False
    for kind in KINDS:
        folder = bench.folder / kind.split()[0]
        make_potsdam(folder, scenes=2 if bench.sizes.tiny else 6, seed=1, size=size)
        if kind == "decoded copies":
            in_strips(folder)
        made, rows = loader(bench, folder)
        batch = rows.rows_SB.shape[1]
        load: Load = partial(_load, made, rows)
        for threads in counts(bench):
            rate, processor = tiles_per_second(load, batch, threads, bench.sizes.feed)
            best = max(best, rate)
            name, note = (
                f"{kind}, {threads} thread{'s' * (threads > 1)}",
                f"{1e3 * processor:.2f} ms of processor",
            )
            yield Figure(name, rate, "tiles/s", note=f"{note} a tile")
        for workers in counts(bench):
            rate = by_workers(made, rows, workers, bench.sizes.feed)
            best = max(best, rate)
            yield Figure(f"{kind}, {workers} worker process{'es' * (workers > 1)}", rate, "tiles/s")
        verdict = best_over_need(best, need, source)
        if not told and (verdict.holds or kind == KINDS[-1]):  # as soon as nothing can change it
            told = True
            yield verdict


def best_over_need(best: float, need: float | None, source: str) -> Figure:
    """Return the ratio of the best measured rate to the need, with a verdict."""
    name = "best input over need"
    if need is None:
        return Figure(name, None, "×", note="what the step takes is not known")
    ratio = best / need
    return Figure(name, ratio, "×", f"≥ {ENOUGH}", ratio >= ENOUGH, note=f"{need:.0f} tiles/s: {source}")


def needed(bench: Bench) -> tuple[float | None, str]:
    """Return the tiles a second that all devices take in mixed precision, as measured by section `step`."""
    most = 2 if bench.sizes.tiny else bench.most if bench.place == "cards" else 1
    for precision in ("mixed_float16", "float32"):
        for case in (Case(precision, most, True), Case(precision, most)):
            value = bench.known.get(RATE.format(case.name))
            if isinstance(value, float):
                return value, case.name
    return None, ""


def counts(bench: Bench) -> list[int]:
    """Return the numbers of threads to time, up to the cores of this process, largest first."""
    cores = len(os.sched_getaffinity(0))
    return [1] if bench.sizes.tiny else [n for n in (64, 32, 16, 8, 4, 2, 1) if n <= cores]


def tiles_per_second(load: Load, batch: int, threads: int, batches: int) -> tuple[float, float]:
    """Return tiles a second of wall-clock time, and processor seconds a tile."""

    def make(first: int) -> int:
        done = 0
        while done < batches and time.perf_counter() < started + _SECONDS:
            load(first + done * threads)
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(load, range(threads)))  # opens files
        started, used = time.perf_counter(), time.process_time()
        made = sum(pool.map(make, range(threads))) * batch
        return made / (time.perf_counter() - started), (time.process_time() - used) / made


def by_workers(made: BatchLoader, rows: Plan, workers: int, batches: int) -> float:
    """Return tiles a second of wall-clock time with worker processes, for at most `batches` batches each."""
    shape = BatchShape(rows.rows_SB.shape[1], made.tile_shape, made.dtype)
    pool = WorkerPool(workers, shape, ahead_of(workers, shape.bytes))
    with Feed(made, shape.batch, pool) as feed:
        # Warm until what all begin together is taken: it would come as if for nothing.
        return rate_of(feed, rows, workers * batches, _SECONDS, warm=2 * workers)[0]


def _load(made: BatchLoader, rows: Plan, step: int) -> Any:
    return made.load(rows, 0, step % rows.steps)


def loader(bench: Bench, folder: Path) -> tuple[BatchLoader, Plan]:
    """Return the program's loader of training batches, and the plan of an epoch."""
    from segmenter.config.reading import recipe_from
    from segmenter.sampling import plan
    from segmenter.tiles.index import build_index, cache_folder
    from segmenter.tiles.statistics import band_statistics
    from segmenter.tiles.store import SceneStore

    from ... import load_dataset

    side, batch = (64, 2) if bench.sizes.tiny else (256, 16)
    recipe = recipe_from(
        {
            "name": "input",
            "dataset": {"kind": "potsdam", "root": str(folder), "labels": "eroded"},
            "tiles": {"size": side, "overlap": side // 2},
            "augmentation": _AUGMENTATION,
            "training": {"global_batch": batch},
        },
        "segmenter gpu",
    )
    dataset = load_dataset(recipe)
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, side, cache_folder(dataset), progress=False)
    rows = plan(index.counts_NK, batch, recipe.sampling, 0, 0)
    return BatchLoader(recipe, index, store, band_statistics(dataset, progress=False)), rows


def in_strips(folder: Path) -> None:
    """Rewrite the images without tiles: such files are decoded before a training."""
    import rasterio
    from rasterio.shutil import copy

    for path in sorted(folder.rglob("*.tif")):
        other = path.with_suffix(".strips")
        with rasterio.open(path) as file:
            copy(file, other, driver="GTiff", TILED="NO", COMPRESS="DEFLATE")
        other.replace(path)
