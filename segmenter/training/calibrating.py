"""Calibration of a trained run on pixels of its validation scenes; written to its `calibration.json`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError, DatasetError, plain
from segmenter.base.terminal import say
from segmenter.config.recipe import LossConfig
from segmenter.evaluation.calibration import Fitted, fit_held_out, prior_correction
from segmenter.evaluation.prediction_sets import MOST_CLASSES, BlockLosses
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference.loading import load_predictor
from segmenter.inference.predictor import (
    ExtraOutputs,
    Failed,
    Finished,
    MappedWindow,
    Predictor,
    classify_all,
)
from segmenter.runs.records import CALIBRATION, FittedScene, save_calibration
from segmenter.runs.run import Run
from segmenter.runs.set_file import check_validated, describe_sets_file, save_sets
from segmenter.tiles.gsd import with_gsds
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.scene_files import scene_digests
from segmenter.training.prepare import class_weights, epoch_plan
from segmenter.training.validation import SceneJob, tiling_of

_MOST_PIXELS, _MOST_VALUES = 200_000, 1 << 22
"""Pixels that the fit sees, and their probabilities of all classes."""
_LEAST = 2
"""Validation scenes, or strips of a single one: half of them measures what the other half fits."""
_STRIP = 64
"""Height of a strip in pixels."""
_SMALLEST = float(np.finfo(np.float32).tiny)


def calibrate(run: Run, dataset: Dataset, prior_K: NDArray[np.float64]) -> Fitted:
    """Fit the calibration of a run's model for prediction; write it if it pays, else remove an older one.

    In the same pass, thresholds of prediction sets are fitted on the model's own probabilities, which no fit
    saw, written, and told in a line.

    Args:
        prior_K: bias of classes that the validation scenes hardly show.

    Raises:
        CheckpointError: no scene validated the run.
        DatasetError: fewer than two validation scenes, or strips of a single one, have labels.
        SegmenterError: a scene or the weights cannot be read, or the file cannot be written.
    """
    check_validated(run.path)
    own = replace(run, calibrated=False)
    wanted = ExtraOutputs(probabilities="float32")
    predict = load_predictor(own, wanted, precision=[run.recipe.training.precision])
    losses = BlockLosses(run.recipe.tiles.size, len(run.classes))
    log_NK, label_N, place_N = sampled_pixels(own, predict, dataset, losses)
    if (places := len(np.unique(place_N))) < _LEAST:
        raise DatasetError(
            run.path,
            expected=f"{_LEAST} validation scenes with labels, or strips of {_STRIP} rows of one",
            got=places,
        )
    fitted = fit_held_out(log_NK, label_N, place_N, prior_K)
    if len(run.classes) <= MOST_CLASSES:
        say(plain(describe_sets_file(save_sets(run, losses), run.classes.names)))
    if fitted.pays:
        scenes = dataset.of("validation")
        numbers = {"pixels": len(label_N), "scenes": min(places, len(scenes))}
        save_calibration(run, fitted, **numbers, fitted_on=_fitted_scenes(scenes, cache_folder(dataset)))
    else:
        (run.path / CALIBRATION).unlink(missing_ok=True)
    return fitted


def _fitted_scenes(scenes: Sequence[Scene], cache: Path) -> list[FittedScene]:
    digests = scene_digests(scenes, cache, progress=False)
    return [
        FittedScene(name=scene.name, image=image, label=label, blocks=scene.blocks)
        for scene in scenes
        for image, label in [digests[scene.name]]
    ]


def is_current(run: Run) -> bool:
    """Return whether a run's calibration is that of its present weights."""
    with suppress(CheckpointError):  # a damaged file is made anew
        return run.calibration() is not None
    return False


def describe(fitted: Fitted) -> str:
    """Return a line on a calibration and the errors before and after."""
    kind = " and bias" * fitted.calibration.shifts
    before, after = fitted.before, fitted.after
    if not fitted.pays:
        return (
            f"no calibration: temperature {fitted.calibration.temperature:.3g}{kind} takes the negative "
            f"log-likelihood on ground left out of the fit from {before.nll:.4g} to {after.nll:.4g}; "
            "probabilities stay the model's own"
        )
    return (
        f"calibration: temperature {fitted.calibration.temperature:.3g}{kind}; on ground left out of the fit "
        f"negative log-likelihood, which decides, {before.nll:.4g} → {after.nll:.4g}, expected calibration "
        f"error {before.ece:.2%} → {after.ece:.2%}, mIoU {before.miou:.2%} → {after.miou:.2%}; "
        f"{CALIBRATION}, which predict.py uses"
    )


def prior_bias(
    loss: LossConfig, share_K: NDArray[np.float64], shown_K: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the bias (K,) from the class shares that a training learns to the true ones.

    Sampling shows a class with its share in the batches; class weights multiply it; logit adjustment by τ
    divides it by its power τ.

    Args:
        share_K, shown_K: as in `prepare.class_weights`.
    """
    weights = class_weights(loss, share_K, shown_K)
    learnt_K = np.where(shown_K > 0, np.maximum(shown_K, 1e-12) ** (1 - loss.logit_adjustment), 0.0)
    return prior_correction(share_K, learnt_K * (1.0 if weights is None else np.array(weights)))


def shares_of(run: Run, dataset: Dataset) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the classes' shares (K,) of the training tiles' pixels, and of those in an epoch's batches."""
    recipe = run.recipe
    index = with_gsds(build_index(dataset, "train", recipe.tiles), dataset, recipe)
    plan = epoch_plan(recipe, index, run.classes.names, 0, run.planned_replicas)
    return index.shares(), plan.shares(index.counts_NK)


def sampled_pixels(
    run: Run, predict: Predictor, dataset: Dataset, losses: BlockLosses
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.int64]]:
    """Return log-probabilities (N, K), class ids and places of random labelled validation pixels.

    A place is the number of the scene, or of the strip where there is one scene. Each labelled pixel with
    image data is as probable as any other. The choice follows from the recipe's seed and the windows.

    Args:
        losses: takes in all these pixels.

    Raises:
        RasterError, LabelError: a scene cannot be read.
    """
    scenes = dataset.of("validation")
    numbers = {scene.name: number for number, scene in enumerate(scenes)}
    chosen = _Chosen(min(_MOST_PIXELS, _MOST_VALUES // len(run.classes)), len(run.classes))
    jobs = (SceneJob(scene, dataset, run.mean_C) for scene in scenes)
    for event in classify_all(jobs, tiling_of(run, len(predict.workers)), predict):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            event.job.close()
            losses.finish(numbers[event.job.scene.name])
        elif isinstance(event, MappedWindow):
            label_HW, found = event.job.truth(event.window), event.prediction
            assert found.probabilities is not None
            pixels = np.flatnonzero((label_HW != IGNORE) & (found.ids != IGNORE))
            place = numbers[event.job.scene.name], event.window.row, event.window.col
            keys = np.random.default_rng((run.recipe.seed, *place)).random(len(pixels))
            strips = (event.window.row + pixels // label_HW.shape[1]) // _STRIP
            places = np.full(len(pixels), place[0]) if len(scenes) > 1 else strips
            chosen.add(keys, pixels, found.probabilities, label_HW, places)
            rows, cols = np.divmod(pixels, label_HW.shape[1])
            flat_NK = found.probabilities.reshape(-1, found.probabilities.shape[-1])[pixels]
            own = label_HW.reshape(-1)[pixels]
            losses.add(place[0], event.window.row + rows, event.window.col + cols, own, flat_NK)
    values, labels, places_N = chosen.settle()
    return np.log(np.maximum(values, _SMALLEST)), labels, places_N


class _Chosen:
    """Pixels with the smallest random keys, at most `most` after `settle`."""

    def __init__(self, most: int, classes: int) -> None:
        self._most, self._highest, self._waiting = most, np.inf, 0
        self._parts = [
            (np.empty(0), np.empty((0, classes), np.float32), np.empty(0, np.uint8), np.empty(0, int))
        ]

    def add(
        self,
        keys: NDArray[np.float64],
        pixels: NDArray[np.intp],
        probabilities_HWK: NDArray[Any],
        label_HW: NDArray[np.uint8],
        places: NDArray[np.int64],
    ) -> None:
        """Add pixels of a window by their position in it."""
        low = keys < self._highest
        keys, pixels, places = keys[low], pixels[low], places[low]
        values = probabilities_HWK.reshape(-1, probabilities_HWK.shape[-1])[pixels]
        self._parts.append((keys, values, label_HW.reshape(-1)[pixels], places))
        self._waiting += len(pixels)
        if self._waiting > self._most:  # seldom: the cost of a window does not depend on `most`
            self.settle()

    def settle(self) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.int64]]:
        """Keep the pixels with the smallest keys; return their probabilities, class ids and places."""
        keys, *others = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        kept = np.argsort(keys, kind="stable")[: self._most]
        values, labels, places = (each[kept] for each in others)
        self._parts, self._waiting = [(keys[kept], values, labels, places)], 0
        if len(kept) == self._most:
            self._highest = float(keys[kept[-1]])
        return values, labels, places
