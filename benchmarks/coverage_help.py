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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage_table import MODES, Noise, gradient_noise, noise_lines, result_table, rounded
from datasets import load_dataset
from datasets.synthetic.make import make_naic2020
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.devices.strategy import load_tensorflow
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.model.normalisation import Normalisation
from segmenter.sampling import Plan, plan
from segmenter.scenes import Dataset
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import TileIndex, band_statistics, build_index, cache_folder
from segmenter.tiles.store import SceneStore
from segmenter.training.pipeline import epoch_dataset
from segmenter.training.prepare import class_weights
from segmenter.training.validation import validation_protocol

RARE, LEFT_OUT = "water", "other"
ONE_IN = 6
"""Of so many tiles with the rare class one trains; in validation, a tile without it counts so many times."""
_SIDE = 64
_PROBE_EPOCH = 1_000_000
"""No training comes so far: its batches are new to every model."""
_SCORED_AT_ONCE = 64

Weights = list[NDArray[np.float32]]


@dataclass(frozen=True)
class _Data:
    """The tiles that train and those that score, for all trainings the same."""

    dataset: Dataset
    train: TileIndex
    validation: TileIndex
    store: SceneStore
    validation_store: SceneStore
    normalisation: Normalisation
    bands: int
    dtype: str

    @property
    def rare(self) -> int:
        return self.dataset.classes.names.index(RARE)


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
        data = _data(Path(arguments.data or folder), arguments.scenes)
        _print_tiles(data)
        load_tensorflow()
        judge = _Judge(data, arguments.batches, arguments.probes)
        results = []
        steps = dict(zip(arguments.batches, arguments.steps, strict=True))
        for seed, batch, mode in product(range(arguments.seeds), arguments.batches, MODES):
            results.append(_one(judge, _recipe(data.dataset.root, batch, mode, seed), steps[batch]))
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


# ------------------------------------------------------------------------------------------- data


def _recipe(root: Path, batch: int, mode: str, seed: int) -> Recipe:
    return recipe_from(
        {
            "name": "coverage help",
            "seed": seed,
            "dataset": {"kind": "naic2020", "root": str(root), "validation_share": 0.35},
            "tiles": {"size": _SIDE, "jitter": False},  # moved, a tile could show what was left out
            "sampling": {"coverage": mode},
            "augmentation": {"brightness": 0.2, "contrast": 0.2},
            "model": {"depth": 3, "width": 8},
            "loss": {"cross_entropy": 1.0, "dice": 0.5, "class_weights": "inverse_sqrt"},
            "training": {
                "global_batch": batch,
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup": 40,
                "clip_norm": 1.0,
            },
        },
        "benchmark",
    )


def _data(root: Path, scenes: int) -> _Data:
    if not (root / "train").exists():
        make_naic2020(root, scenes=scenes, seed=0)
    recipe = _recipe(root, 16, "off", 0)
    dataset = load_dataset(recipe)
    train, validation = (
        build_index(dataset, split, recipe.tiles, progress=False) for split in ("train", "validation")
    )
    rare, left_out = (dataset.classes.names.index(name) for name in (RARE, LEFT_OUT))
    cache = cache_folder(dataset)
    statistics = band_statistics(dataset, progress=False)
    return _Data(
        dataset=dataset,
        train=_of_tiles(train, thinned(train.counts_NK, rare, left_out, ONE_IN)),
        validation=_of_tiles(validation, thinned(validation.counts_NK, rare, left_out, 1)),
        store=SceneStore(dataset, train.scenes, _SIDE, cache, progress=False),
        validation_store=SceneStore(dataset, validation.scenes, _SIDE, cache, progress=False),
        normalisation=Normalisation.of(statistics.mean_C, statistics.std_C),
        bands=len(statistics.mean_C),
        dtype=statistics.dtype,
    )


def thinned(counts_NK: NDArray[np.int64], rare: int, left_out: int, one_in: int) -> NDArray[np.bool_]:
    """(N,) whether a tile stays: without the class `left_out`, and a random one in `one_in` with the rare."""
    keep_N = counts_NK[:, left_out] == 0
    shown = np.flatnonzero(keep_N & (counts_NK[:, rare] > 0))
    kept = np.random.default_rng(0).permutation(shown)[: round(len(shown) / one_in)]
    keep_N[shown] = False
    keep_N[kept] = True
    return np.asarray(keep_N)


def _of_tiles(index: TileIndex, keep_N: NDArray[np.bool_]) -> TileIndex:
    arrays = ("scene_N", "row_N", "col_N", "labelled_N", "counts_NK")
    return replace(index, **{name: getattr(index, name)[keep_N] for name in arrays})


def _print_tiles(data: _Data) -> None:
    """How many tiles hold each class, and in which share of shuffled steps a class of that rarity is."""
    holds = (data.train.counts_NK >= 32).sum(axis=0)
    scored = (data.validation.counts_NK >= 32).sum(axis=0)
    names = data.dataset.classes.names
    line = {
        "benchmark": "coverage_help",
        "tiles": len(data.train),
        "scored_tiles": len(data.validation),
        "held_by": {name: int(n) for name, n in zip(names, holds, strict=True) if n},
        "scored_held_by": {name: int(n) for name, n in zip(names, scored, strict=True) if n},
        "rare_share": round(int(holds[data.rare]) / len(data.train), 4),
    }
    print(json.dumps(line), flush=True)


# --------------------------------------------------------------------------------------- training


def _one(judge: _Judge, recipe: Recipe, steps: int) -> dict[str, Any]:
    """One training with all that is reported of it."""
    data, batch = judge.data, recipe.training.global_batch
    training = _train(data, recipe, steps)
    scores = judge.scores(training.weights["end"])
    rare = scores.protocol.classes.index(RARE)
    occurring = data.train.counts_NK.sum(axis=0) > 0
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


def _rows(data: _Data, recipe: Recipe, epoch: int) -> Plan:
    batch = recipe.training.global_batch
    return plan(data.train.counts_NK, batch, recipe.sampling, recipe.seed, epoch)


def _batches(data: _Data, recipe: Recipe, steps: int) -> Iterator[Any]:
    """So many steps of as many epochs as it takes."""
    loader, epoch = BatchLoader(recipe, data.train, data.store, data.bands, data.dtype), 0
    while steps > 0:
        rows = _rows(data, recipe, epoch)
        yield from islice(epoch_dataset(loader, rows, epoch), steps)
        steps, epoch = steps - rows.steps, epoch + 1


def _train(data: _Data, recipe: Recipe, steps: int) -> _Training:
    import tensorflow as tf

    from segmenter.model.building import build_model
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimisers import build_optimiser
    from segmenter.training.step import StepParts, make_step
    from segmenter.training.trainer import keras_seed

    keras_seed(recipe.seed)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = build_model(recipe.model, data.bands, len(data.dataset.classes))
        optimiser = build_optimiser(recipe.training, model, steps)
    loss = segmentation_loss(recipe.loss, class_weights(recipe, data.train), recipe.training.global_batch)
    step = make_step(
        StepParts(strategy, model, optimiser, loss, data.normalisation, recipe.sampling.min_pixels)
    )
    held, weights, started = [], {}, time.perf_counter()
    for done, batch in enumerate(_batches(data, recipe, steps), start=1):
        held.append(step(batch)[1].numpy()[0])
        if done == steps // 3:
            weights["third"] = model.get_weights()
    weights["end"] = model.get_weights()
    seconds = time.perf_counter() - started
    assert np.shape(held) == (steps, len(data.dataset.classes))
    print(f"trained {steps} steps of {recipe.training.global_batch} in {seconds:.0f} s", file=sys.stderr)
    return _Training(np.stack(held), weights, seconds)


# ---------------------------------------------------------------------------------------- judging


class _Judge:
    """Scores and gradients at given weights, in a model of its own: looking leaves no trace in a training."""

    def __init__(self, data: _Data, batches: Sequence[int], probe_tiles: int) -> None:
        """Gradients are compared over so many batches of each of the sizes as make `probe_tiles` tiles."""
        from segmenter.inference.function import predict_function
        from segmenter.model.building import build_model

        self.data, self._probe_tiles = data, probe_tiles
        recipe = _recipe(data.dataset.root, 1, "off", 0)
        self._model = build_model(recipe.model, data.bands, len(data.dataset.classes))
        self._predict = predict_function(self._model, data.normalisation)
        self._gradients = {batch: self._gradient_function(recipe, batch) for batch in batches}

    def scores(self, weights: Weights) -> Scores:
        """Over the validation tiles, the rare class as rare as in training."""
        self._model.set_weights(weights)
        data, classes = self.data, self.data.dataset.classes
        with_rare_N = data.validation.counts_NK[:, data.rare] > 0
        total = ConfusionMatrix(classes)
        for chosen_N, times in ((with_rare_N, 1), (~with_rare_N, ONE_IN)):
            part = ConfusionMatrix(classes)
            for first in range(0, int(chosen_N.sum()), _SCORED_AT_ONCE):
                tiles = np.flatnonzero(chosen_N)[first : first + _SCORED_AT_ONCE]
                windows = [(int(data.validation.scene_N[i]), data.validation.window(int(i))) for i in tiles]
                read = [data.validation_store.read(scene, window) for scene, window in windows]
                image, valid, label = (np.stack(parts) for parts in zip(*read, strict=True))
                part.add(label, self._predict(image, valid).ids)
            for _ in range(times):
                total.merge(part)
        protocol = validation_protocol(data.dataset)
        counted = tuple(name for name in protocol.classes if name != LEFT_OUT)
        return total.scores(replace(protocol, classes=counted))

    def noise(self, weights: Weights, batch: int, mode: str, seed: int) -> dict[str, Noise]:
        """Over batches of as many epochs: of all gradients, and of those of the rare class's logit."""
        self._model.set_weights(weights)
        data, recipe = self.data, _recipe(self.data.dataset.root, batch, mode, seed)
        loader = BatchLoader(recipe, data.train, data.store, data.bands, data.dtype)
        found = []
        for i in range(self._probe_tiles // batch):
            # One of each epoch: the batches of one epoch share no tile, and their mean would be too good.
            rows = _rows(data, recipe, epoch := _PROBE_EPOCH + i)
            parts = self._gradients[batch](*loader.load(rows, epoch, i % rows.steps))
            found.append([part.numpy() for part in parts])
        everything, row = (gradient_noise(np.stack(parts)) for parts in zip(*found, strict=True))
        return {"all": everything, "rare": row}

    def _gradient_function(self, recipe: Recipe, batch: int) -> Any:
        """A compiled function of a batch → (all gradients, those of the rare class's logit), as vectors."""
        import tensorflow as tf

        from segmenter.training.losses import segmentation_loss

        model, normalisation, rare = self._model, self.data.normalisation, self.data.rare
        loss = segmentation_loss(recipe.loss, class_weights(recipe, self.data.train), batch)
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
