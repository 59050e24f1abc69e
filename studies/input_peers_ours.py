"""Arms of `studies.input_peers` of this project: what `train.py` feeds a step with.

In place: the files as they lie. Packed: after `segmenter pack`, which is timed apart. An epoch goes
before what is timed: in the first, each file is looked at more closely, or each pack's checksums are taken.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from studies import input_peers_common as common
from datasets import load_dataset
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.processes import worker_processes
from segmenter.sampling import plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import cache_folder
from segmenter.tiles.index import build_index
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore

ARMS = ("in_place", "packed", "in_place_workers", "packed_workers")


def recipe(folder: Path, case: str, batch: int, *, packed: bool) -> dict[str, Any]:
    """The recipe of a case, as YAML would give it."""
    from studies.input_peers_files import CLASSES

    augmentation: dict[str, Any] = {"brightness": 0, "contrast": 0}
    if case == "all":
        augmentation = {
            "scale": common.SCALE,
            "rotation": common.ROTATION,
            "brightness": common.BRIGHTNESS,
            "contrast": common.CONTRAST,
            "hue": common.HUE,
            "saturation": common.SATURATION,
            "probability": {
                "affine": common.P_AFFINE,
                "brightness_contrast": common.P_BRIGHTNESS,
                "hue_saturation": common.P_HUE,
            },
        }
    return {
        "name": "bench",
        "dataset": {
            "kind": "folder",
            "root": str(folder),
            "encoding": "codes",
            "ignore": [255],
            "images": "images/{name}.tif",
            "labels": "labels/{name}.tif",
            "classes": [{"name": f"class {code}", "code": code} for code in range(CLASSES)],
            "cache": str(folder / ("packed" if packed else "in_place")),
            "split": {"validation_share": 0.002},
        },
        "tiles": {"size": common.SIDE, "jitter": False},
        "augmentation": augmentation,
        "training": {"global_batch": batch},
    }


def main() -> None:
    """Measure one arm."""
    options = common.arguments(__doc__)
    packed, workers = options.arm.startswith("packed"), options.arm.endswith("workers")
    data = recipe(options.folder, options.case, options.batch, packed=packed)
    if workers:
        data["training"]["input_workers"] = options.workers
    with contextlib.redirect_stdout(sys.stderr):
        batches = _batches(recipe_from(data, "benchmark"), workers)
        next(batches)  # what reads and starts is done
    common.measure(batches, options, len(common.files(options.folder)) // options.batch)


def _batches(asked: Recipe, workers: bool) -> Iterator[Any]:
    dataset = load_dataset(asked)
    index = build_index(dataset, "train", asked.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, common.SIDE, cache_folder(dataset), progress=False)
    loader = BatchLoader(asked, index, store, band_statistics(dataset, progress=False))
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(_workers(asked, loader)) if workers else loader
        from segmenter.devices.strategy import load_tensorflow

        load_tensorflow()
        from segmenter.training.trainer import epoch_dataset

        epoch = 0
        while True:
            rows = plan(index.counts_NK, asked.training.global_batch, asked.sampling, 0, epoch)
            yield from epoch_dataset(source, rows, epoch)
            epoch += 1


@contextlib.contextmanager
def _workers(asked: Recipe, loader: BatchLoader) -> Iterator[Any]:
    """A feed of worker processes."""
    batch = asked.training.global_batch
    with worker_processes(asked, 3, "uint8", 0) as pool, Feed(loader, batch, pool) as one:
        yield one


if __name__ == "__main__":
    main()
