"""Overhead of the training loop over the bare compiled step.

The loop is the trainer's own: batches through tf.data, stacked, put on the device ahead, several steps a
call, losses and classes read a call late, the bar and the log. Baseline, in the same run and in turns: the
compiled step of the same model, called on one batch that lies on the device. The loader gives that same
batch, so that neither reading nor augmenting is measured (`benchmarks.pipeline` does). One JSON line;
ratio − 1 is the overhead.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from segmenter.config.recipe import DistributionConfig, Recipe
from segmenter.devices.strategy import load_tensorflow, make_devices
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.tiles.batches import DrawCounts
from segmenter.tiles.feeding.feed import Feed

_CLASSES = 8


def main() -> None:
    """Time both in turns, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--side", type=int, default=128, help="of a tile in pixels")
    parser.add_argument("--steps", type=int, default=12, help="of a timing")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each; the median counts")
    parser.add_argument("--steps-per-call", type=int, default=4)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--logical-devices", type=int)
    options = parser.parse_args()
    load_tensorflow(options.logical_devices)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(options, Path(folder))
        bare = _bare(trainer, options)
        loop = _loop(trainer, options)
        pairs = [(bare(), loop()) for _ in range(options.rounds)]
    seconds = {
        "bare_step_seconds": median(a for a, _ in pairs),
        "loop_step_seconds": median(b for _, b in pairs),
    }
    figures = {name: round(value / options.steps, 5) for name, value in seconds.items()}
    ratio = median(b / a for a, b in pairs)
    model = {"parameters": trainer.learner.model.count_params(), "devices": trainer.devices.replicas}
    print(json.dumps({"benchmark": "overhead", **model, **figures, "ratio": round(ratio, 4)}))


class _Loader:
    """Gives one batch, again and again."""

    drawn = DrawCounts()

    def __init__(self, options: argparse.Namespace) -> None:
        rng = np.random.default_rng(0)
        shape = (options.batch, options.side, options.side)
        image = rng.integers(0, 256, (*shape, 3)).astype(np.uint8)
        label = rng.integers(0, _CLASSES, shape).astype(np.uint8)
        self.batch = image, np.ones(shape, np.bool_), label, np.arange(options.batch)
        self.tile_shape, self.dtype = (options.side, options.side, 3), "uint8"

    def load(self, *_: Any) -> Any:
        """That batch."""
        return self.batch


def _trainer(options: argparse.Namespace, folder: Path) -> Any:
    """The trainer, on made tables: it never sees a file of imagery."""
    from segmenter.grid.scenes import Dataset
    from segmenter.runs.run import Run
    from segmenter.training.trainer import Trainer

    recipe = Recipe.model_validate(
        {
            "name": "overhead",
            "dataset": {"kind": "potsdam", "root": str(folder)},
            "model": {"depth": 4, "width": 16},
            "tiles": {"size": options.side},
            "training": {
                "global_batch": options.batch,
                "epochs": 1000,
                "steps_per_call": options.steps_per_call,
                "precision": options.precision,
            },
        }
    )
    classes = ClassMap(
        tuple(LandCoverClass(f"class {k}", (k, k, k), k) for k in range(_CLASSES)), encoding="codes"
    )
    run = Run(
        folder,
        recipe,
        classes=classes,
        normalisation=Normalisation.of([120.0] * 3, [60.0] * 3),
        network=NetworkGeometry(16, 92),
        bands=None,
        band_count=3,
        dtype="uint8",
        metres_per_pixel=None,
        labels="full",
        tiles="",
    )
    counts_NK = np.full((options.batch * options.steps, _CLASSES), 1000, np.int64)
    shares = np.full(_CLASSES, 1 / _CLASSES)
    index = SimpleNamespace(counts_NK=counts_NK, strata=None, shares=lambda: shares)
    devices = make_devices(DistributionConfig(), options.logical_devices)
    feed = Feed(_Loader(options), options.batch)  # type: ignore[arg-type]
    dataset = Dataset("overhead", folder, (), classes)
    return Trainer(run, index, feed, devices, dataset)  # type: ignore[arg-type]


def _bare(trainer: Any, options: argparse.Namespace) -> Any:
    """Seconds of so many steps, each a call of the compiled step; the last loss is read."""
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.step import StepParts, make_step

    loss = segmentation_loss(trainer.run.recipe.loss, None, options.batch)
    optimiser, normalisation = trainer.learner.optimiser, trainer.run.normalisation
    parts = StepParts(
        trainer.devices.strategy,
        trainer.learner.model,
        optimiser,
        loss,
        normalisation,
        32,
        batch=options.batch,
    )
    step, batch = make_step(parts), trainer.devices.distribute(trainer.feed.loader.batch)
    float(step(batch)[0])

    def timed() -> float:
        started = time.perf_counter()
        for _ in range(options.steps):
            last = step(batch)
        float(last[0])
        return time.perf_counter() - started

    return timed


def _loop(trainer: Any, options: argparse.Namespace) -> Any:
    """Seconds of an epoch of so many steps in the trainer's loop."""
    from tqdm import tqdm

    def timed() -> float:
        started = time.perf_counter()
        with tqdm(total=options.steps, file=sys.stderr) as bar:
            trainer._epoch(bar, [])
        seconds = time.perf_counter() - started
        trainer.position = trainer.position.at_next_epoch()
        return seconds

    timed()  # compiles
    return timed


if __name__ == "__main__":
    main()
