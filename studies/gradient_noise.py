"""Scatter of the gradient from step to step under several samplings, at the same weights, class by class.

    python -m studies.gradient_noise --dubai DIR --camvid DIR --roads DIR    a JSON line a data set and sampling

A model is trained with a shuffle and cross-entropy for a third of the steps of `what_lifts`. At its weights,
gradients of batches of epochs that it never saw are compared: the trace of their covariance and the squared
length of their mean, for all weights, and for those of each class's logit. trace / length² is the number of
steps after which the mean stands out of the scatter. Data, model and recipe are those of
`what_lifts`; results lie in `studies/results/gradient_noise`, and one that is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.coverage_table import gradient_noise
from studies.short_training import loader_of, rows_of, train
from studies.what_lifts import FOLDERS, SAMPLINGS, study_of
from studies.what_lifts_data import BATCH, DATA, Trial
from segmenter.base.files import write_whole
from segmenter.devices.strategy import load_tensorflow
from segmenter.raster import quiet_gdal

RESULTS = Path("studies/results/gradient_noise")
COMPARED = ("shuffle", "rare_class", "plan", "quotas")
_PROBE_EPOCH = 1_000_000
"""No training comes so far: its batches are new to the model."""


def main() -> int:
    """Compute what is not there yet."""
    arguments = _arguments()
    quiet_gdal()
    RESULTS.mkdir(parents=True, exist_ok=True)
    study = study_of(arguments)
    for name in DATA:
        path = RESULTS / f"{name}.json"
        if path.is_file() or (name in FOLDERS and name not in study.folders):
            continue
        study.prepare(name)
        load_tensorflow()
        trials = {s: study.trial(name, 0, {"sampling": SAMPLINGS[s], "loss": {}}) for s in COMPARED}
        found = _compared(trials, DATA[name].steps // 3, arguments.batches)
        write_whole(path, json.dumps(found, indent=1).encode())
        print(json.dumps({"data": name, **found}), flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, what in FOLDERS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=f"folder of {what}")
    parser.add_argument("--hold-out", default="tile_7", help="the tile of Dubai that scores")
    parser.add_argument("--work", type=Path, default=Path("runs/what_lifts"), help="data that is made")
    parser.add_argument("--batch", type=int, default=BATCH, help="tiles of a gradient")
    parser.add_argument("--batches", type=int, default=48, help="gradients of each sampling")
    return parser.parse_args()


def _compared(trials: dict[str, Trial], steps: int, batches: int) -> dict[str, Any]:
    first = trials["shuffle"]
    model, _ = train(first.material, first.recipe, steps)
    gradients = _gradient_function(model, first)
    noises: dict[str, Any] = {}
    for sampling, trial in trials.items():
        loader = loader_of(trial.material, trial.recipe)
        found = []
        for i in range(batches):
            # One of each epoch: the batches of one epoch share no tile, and their mean would be too good.
            rows = rows_of(trial.material, trial.recipe, epoch := _PROBE_EPOCH + i)
            found.append([part.numpy() for part in gradients(*loader.load(rows, epoch, i % rows.steps)[:3])])
        everything_MP, logits_MKP = (np.stack(part) for part in zip(*found, strict=True))
        noises[sampling] = {
            "all": _rounded(everything_MP),
            "classes": [_rounded(logits_MKP[:, c]) for c in range(logits_MKP.shape[1])],
        }
    classes = list(first.material.dataset.classes.names)
    return {"steps": steps, "batches": batches, "classes": classes, "noise": noises}


def _rounded(gradients_MP: NDArray[Any]) -> dict[str, float]:
    """Return the trace and the squared length of the mean, which may be below 0 where the noise is larger."""
    return {name: float(f"{value:.4g}") for name, value in gradient_noise(gradients_MP).items()}


def _gradient_function(model: Any, trial: Trial) -> Any:
    """A compiled function of a batch → (all gradients as a vector, (K, P) those of each class's logit)."""
    import tensorflow as tf

    from segmenter.training.losses import segmentation_loss

    recipe, normalisation = trial.recipe, trial.material.normalisation
    loss = segmentation_loss(recipe.loss, None, recipe.training.global_batch)
    variables = [v.value for v in model.trainable_variables]
    paths = [v.path for v in model.trainable_variables]

    @tf.function(reduce_retracing=True)
    def gradients(image: Any, valid: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(label, model(normalisation.apply(image, valid), training=True))
        found = tape.gradient(value, variables)
        head = [g for g, path in zip(found, paths, strict=True) if path.startswith("logits/")]
        by_class = tf.concat([tf.reshape(g, [-1, g.shape[-1]]) for g in head], 0)
        return tf.concat([tf.reshape(g, [-1]) for g in found], 0), tf.transpose(by_class)

    return gradients


if __name__ == "__main__":
    sys.exit(main())
