"""Benefit of the plan: the same model, tiles, steps and seeds, with planned batches and shuffled ones.

Look-alikes of NAIC2020, round 1, cut into tiles of 64×64. Their water is in a tenth of the tiles: one in six
of these trains, drawn at random, which makes it the rare class, in 2 % of the tiles. Tiles that show the
class "other", which is in one of a thousand, are left out. Scores are taken after the last step, on all tiles
of other scenes; those without water count six times, so that water is as rare there as in training. Loss,
brightness and contrast are those of the recipe for NAIC2020, without its other augmentation; AdamW with a
learning rate of 2e-3 for all batch sizes, which draw the same number of tiles.

Gradients are compared at the same weights, those that the trainings had after a third of their steps and at
their end, over batches of epochs that no training saw, planned and shuffled. The figure is the trace of their
covariance over the squared length of their mean, for all weights and for those of the rare class's logit
alone; the median over the trainings. Baseline: off.

The plan does two things at once: it puts the rare class in every step, and, where an epoch has more steps
than tiles with it, draws them more often (`tiles_with_rare`). At 64 tiles a step it hardly does the second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.coverage_table import MODES, Noise, gradient_noise, noise_lines, result_table, rounded
from studies.rare_tiles import RARE, RareTiles, rare_recipe, rare_tiles
from studies.short_training import loader_of, rows_of, train
from segmenter.config.recipe import Recipe
from segmenter.devices.strategy import load_tensorflow
from segmenter.evaluation.scores import Scores
from segmenter.training.prepare import class_weights

_LOSS = {"cross_entropy": 1.0, "dice": 0.5, "class_weights": "inverse_sqrt"}
_PROBE_EPOCH = 1_000_000
"""No training comes so far: its batches are new to every model."""

Weights = list[NDArray[np.float32]]


@dataclass(frozen=True)
class _Training:
    """What a training left: tiles that held each class at each step; weights after a third, and the last."""

    held_SK: NDArray[np.int64]
    weights: dict[str, Weights]
    seconds: float


def main() -> None:
    """Train, score and compare; a JSON line each, and a table at the end."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        data = rare_tiles(Path(arguments.data or Path(folder) / "data"), arguments.scenes)
        print(json.dumps({"benchmark": "coverage_help", **data.facts()}), flush=True)
        load_tensorflow()
        judge = _Judge(data, arguments.batches, arguments.probes)
        results = []
        steps = dict(zip(arguments.batches, arguments.steps, strict=True))
        for seed, batch, mode in product(range(arguments.seeds), arguments.batches, MODES):
            results.append(_one(judge, _recipe(data, batch, mode, seed), steps[batch]))
            print(json.dumps(rounded(results[-1])), flush=True)
    for line in noise_lines(results):
        print(json.dumps(line))
    print(result_table(results, RARE))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64], help="tiles of a step")
    parser.add_argument("--steps", type=int, nargs="+", default=[2000, 500], help="for each of the batches")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each batch and mode")
    parser.add_argument("--scenes", type=int, default=400, help="of 256×256 pixels to make")
    parser.add_argument("--probes", type=int, default=3072, help="tiles of the gradients compared")
    parser.add_argument("--data", help="folder of scenes made before, or to make them in and keep them")
    parser.add_argument("--quick", action="store_true", help="two minutes to see that it runs; no figures")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.seeds, arguments.scenes, arguments.probes = [40, 10], 1, 60, 512
    if len(arguments.batches) != len(arguments.steps):
        parser.error(f"--steps: expected one number for each of {len(arguments.batches)} --batches")
    return arguments


def _recipe(data: RareTiles, batch: int, mode: str, seed: int) -> Recipe:
    return rare_recipe(data.material.dataset.root, batch, seed, {"coverage": mode}, _LOSS)


# --------------------------------------------------------------------------------------- training


def _one(judge: _Judge, recipe: Recipe, steps: int) -> dict[str, Any]:
    """One training with all that is reported of it."""
    data, batch = judge.data, recipe.training.global_batch
    training = _train(data, recipe, steps)
    scores = judge.scores(training.weights["end"])
    rare = scores.protocol.classes.index(RARE)
    occurring = data.material.train.counts_NK.sum(axis=0) > 0
    held = training.held_SK > 0
    return {
        "benchmark": "coverage_help",
        "batch": batch,
        "mode": recipe.sampling.coverage,
        "seed": recipe.seed,
        "steps": steps,
        "rare_IoU": float(scores.iou[rare]),
        "rare_precision": float(np.nan_to_num(scores.precision[rare])),  # never predicted: 0, not NaN
        "rare_recall": float(scores.recall[rare]),
        "mIoU": scores.miou,
        "complete_steps": float(held[:, occurring].all(axis=1).mean()),
        "steps_with_rare": float(held[:, data.rare].mean()),
        "tiles_with_rare": float(training.held_SK[:, data.rare].sum() / (steps * batch)),
        "seconds": round(training.seconds, 1),
        "gradients": {
            f"{stage}/{mode}": judge.noise(weights, batch, mode, recipe.seed)
            for stage, weights in training.weights.items()
            for mode in MODES
        },
    }


def _train(data: RareTiles, recipe: Recipe, steps: int) -> _Training:
    weights: dict[str, Weights] = {}

    def after(done: int, model: Any) -> None:
        if done in (steps // 3, steps):
            weights["end" if done == steps else "third"] = model.get_weights()

    started = time.perf_counter()
    _, held_SK = train(data.material, recipe, steps, after)
    seconds = time.perf_counter() - started
    print(f"trained {steps} steps of {recipe.training.global_batch} in {seconds:.0f} s", file=sys.stderr)
    return _Training(held_SK, weights, seconds)


# ---------------------------------------------------------------------------------------- judging


class _Judge:
    """Scores and gradients at given weights, in a model of its own: looking leaves no trace in a training."""

    def __init__(self, data: RareTiles, batches: Sequence[int], probe_tiles: int) -> None:
        """Gradients are compared over so many batches of each of the sizes as make `probe_tiles` tiles."""
        from segmenter.inference.function import predict_function
        from segmenter.model.building import build_model

        self.data, self._probe_tiles = data, probe_tiles
        recipe, material = _recipe(data, 1, "off", 0), data.material
        self._model = build_model(
            recipe.model, len(material.statistics.mean_C), len(material.dataset.classes)
        )
        self._predict = predict_function(self._model, material.normalisation)
        self._gradients = {batch: self._gradient_function(recipe, batch) for batch in batches}

    def scores(self, weights: Weights) -> Scores:
        """At these weights, see `RareTiles.scores`."""
        self._model.set_weights(weights)
        return self.data.scores(self._predict)

    def noise(self, weights: Weights, batch: int, mode: str, seed: int) -> dict[str, Noise]:
        """Over batches of as many epochs: of all gradients, and of those of the rare class's logit."""
        self._model.set_weights(weights)
        material, recipe = self.data.material, _recipe(self.data, batch, mode, seed)
        loader = loader_of(material, recipe)
        found = []
        for i in range(self._probe_tiles // batch):
            # One of each epoch: the batches of one epoch share no tile, and their mean would be too good.
            rows = rows_of(material, recipe, epoch := _PROBE_EPOCH + i)
            parts = self._gradients[batch](*loader.load(rows, epoch, i % rows.steps)[:3])
            found.append([part.numpy() for part in parts])
        everything, row = (gradient_noise(np.stack(parts)) for parts in zip(*found, strict=True))
        return {"all": everything, "rare": row}

    def _gradient_function(self, recipe: Recipe, batch: int) -> Any:
        """A compiled function of a batch → (all gradients, those of the rare class's logit), as vectors."""
        import tensorflow as tf

        from segmenter.training.losses import segmentation_loss

        material = self.data.material
        model, normalisation, rare = self._model, material.normalisation, self.data.rare
        shares = material.train.shares()  # one loss for all samplings
        loss = segmentation_loss(recipe.loss, class_weights(recipe.loss, shares, shares), batch)
        variables = [v.value for v in model.trainable_variables]
        head = [v.path for v in model.trainable_variables if v.path.startswith("logits/")]

        @tf.function(reduce_retracing=True)
        def gradients(image: Any, valid: Any, label: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(label, model(normalisation.apply(image, valid), training=True))
            found = tape.gradient(value, variables)
            by_path = dict(zip((v.path for v in model.trainable_variables), found, strict=True))
            row = [tf.reshape(by_path[path][..., rare], [-1]) for path in head]
            return tf.concat([tf.reshape(g, [-1]) for g in found], 0), tf.concat(row, 0)

        return gradients


if __name__ == "__main__":
    main()
