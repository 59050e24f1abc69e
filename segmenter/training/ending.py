"""End of a training: outcome, and a one-screen summary with best validation, classes and pictures."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from segmenter.base.errors import OutputError, SegmenterError, plain
from segmenter.base.invocation import invocation, quote_path
from segmenter.base.terminal import align_table, say, warn
from segmenter.evaluation.scores import Scores, percent, title_of
from segmenter.runs.checkpoints import checkpoints
from segmenter.runs.records import copy_calibration, load_origin
from segmenter.runs.report.sections import write_report
from segmenter.runs.run import Run, load_run
from segmenter.runs.score_files import BEST_FILES, SUMMARY, Scored, describe_scores, load_score
from segmenter.training.calibrating import calibrate, describe, is_current, prior_bias
from segmenter.training.stopping import StoppedError

if TYPE_CHECKING:
    from segmenter.training.trainer import Trainer

_BAR = 25
"""Characters of a bar for an IoU of 1."""
_MOST_CLASSES, _WORST, _BEST = 8, 5, 2
"""Classes that all have a line; of more, so many of the lowest and of the highest IoU: with a terminal of 24
lines in mind, some of which are too long for it."""
_CONFUSIONS = 5
_LEAST = 0.01
"""Share of a class's pixels below which a confusion is not worth a line."""


@dataclass(frozen=True)
class TrainingOutcome:
    """Outcome of a call that trained.

    Attributes:
        ended: "finished", "early" (by training.stop_after) or "stopped" (by a signal).
        resumed: True if it resumed from a checkpoint.
        seconds: duration of this call's training, including validations.
        best: the best validation so far; None without validation.
        exit_code: 0, or 128 + the number of the signal.
    """

    run: Path
    ended: str
    resumed: bool
    epochs: int
    steps: int
    seconds: float
    best: Scored | None = None
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as data for JSON; undefined scores are null."""
        best = self.best
        return {
            "run": str(self.run),
            "ended": self.ended,
            "resumed": self.resumed,
            "epochs": self.epochs,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "best_epoch": None if best is None else best.epoch,
            "best_step": None if best is None else best.step,
            "scores": None if best is None else best.scores.to_dict(),
        }


class End(NamedTuple):
    """End of the steps of a training: `ended` and `exit_code` as in `TrainingOutcome`; when it `started`."""

    ended: str
    started: float
    exit_code: int = 0


def train_to_end(trainer: Trainer) -> End:
    """Train to the end, or until it is stopped.

    Raises:
        OutputError: the disk is full; the line says how to go on.
    """
    path, started = trainer.run.path, time.perf_counter()
    try:
        trainer.train()
    except StoppedError as stopped:
        return End("stopped", started, stopped.exit_code)
    except OutputError as error:
        if not path.is_dir():
            raise
        how = "make room, then give the same command again"
        if checkpoints(path):
            how = f"the checkpoints before it are whole: {how} with --resume"
        raise OutputError(f"{error} {how}") from None
    return End("early" if trainer.ended_early else "finished", started)


def report(trainer: Trainer, end: End, *, resumed: bool = False) -> TrainingOutcome:
    """Print the result, calibrate the model of a finished training, and write its report."""
    path, chief, position = trainer.run.path, trainer.devices.workers.chief, trainer.position
    if end.ended == "stopped":
        if chief:
            leave_report(path)
        say(f"stopped after step {position.done}; go on with the same command and --resume")
    elif chief:
        _describe_end(trainer)
    best, seconds = load_score(path / BEST_FILES[0]), time.perf_counter() - end.started
    return TrainingOutcome(
        path, end.ended, resumed, position.epoch, position.done, seconds, best, end.exit_code
    )


def _describe_end(trainer: Trainer) -> None:
    """Print the result of a finished training, and write its report."""
    path = trainer.run.path
    if (drawn := trainer.feed.drawn).tiles:
        say(
            f"of {drawn.tiles} tiles drawn, {drawn.redrawn / drawn.tiles:.2%} were drawn again to keep a "
            f"class in view, {drawn.replaced / drawn.tiles:.2%} taken as they lie"
        )
    if trainer.ended_early:
        say(f"{path}: {_describe_early_end(trainer)}")
    for line in describe_result(path, trainer.run.recipe.training.best_by):
        say(line)
    leave_calibration(trainer)
    leave_report(path)
    predict = f"{invocation('predict')} {quote_path(path)} INPUT --output DIR"
    say(plain(f"done: {path} holds the run; map rasters with: {predict}"))


def _describe_early_end(trainer: Trainer) -> str:
    training, position = trainer.run.recipe.training, trainer.position
    count = position.without_gain
    return (
        f"finished early, after epoch {position.epoch} of {training.epochs}: "
        f"{count} validation{'s' * (count > 1)} in a row without a gain in {title_of(training.best_by)} "
        f"(training.stop_after: {training.stop_after}); to go on, --resume with a larger one"
    )


def leave_calibration(trainer: Trainer) -> None:
    """Calibrate the best model of a finished training, unless that is done; print the result."""
    run, dataset, devices = trainer.run, trainer.dataset, trainer.devices
    if not dataset.of("validation"):
        _leave_copied_calibration(run)
        return
    if devices.workers.count > 1 or not devices.kind.may_calibrate:
        say(
            "no calibration in a training of several processes; to calibrate: "
            f"{invocation('calibrate')} {quote_path(run.path)}"
        )
        return
    try:
        if not is_current(run):
            shown_K = trainer.first_plan.shares(trainer.index.counts_NK)
            prior_K = prior_bias(run.recipe.loss, trainer.index.shares(), shown_K)
            say(describe(calibrate(run, dataset, prior_K)))
    except SegmenterError as error:
        say(f"not calibrated: {error}")


def _leave_copied_calibration(run: Run) -> None:
    """Copy the calibration of the one run that chose the steps of a training on all scenes; print it."""
    chosen = None if (origin := load_origin(run.path)) is None else origin.chosen_by
    if chosen is None:
        return
    if len(chosen.runs) > 1:
        say("not calibrated: several folds chose the steps, each with a calibration of its own")
        return
    try:
        source = load_run(Path(chosen.runs[0]))
        if (found := source.calibration_file()) is not None:
            copy_calibration(found, source.path, run)
            say(plain(f"calibration: temperature {found.temperature:.3g}, copied from {source.path}"))
    except SegmenterError as error:
        say(f"not calibrated: {error}")


def leave_report(run: Path) -> None:
    """Write `report.html` into a run directory, and print its path or the reason of a failure."""
    try:
        say(f"report: {write_report(run)}")
    except SegmenterError as error:
        again = f"{invocation('runs')} report {quote_path(run)}"
        warn(f"no report of the training: {error}; to write it later: {again}")


def describe_result(run: Path, best_by: str) -> list[str]:
    """Return lines on a run's best validation; without one, only the path of the learning curves."""
    lines = describe_scores(run, best_by)
    if (best := load_score(run / BEST_FILES[0])) is not None:
        lines += ["", *_classes(best.scores), *_confusions(best.scores), ""]
    pictures = [str(run / name) for name in (SUMMARY, "learning_curves.png") if (run / name).is_file()]
    return [*lines, f"pictures: {', '.join(pictures)}"] if pictures else lines


def _classes(scores: Scores) -> list[str]:
    """Return a line for each class with its IoU and a bar; if there are many, only the worst and best."""
    ious = [float(iou) for iou in scores.iou]
    chosen = _printed_classes(ious)
    shares = [float(count) / max(1, scores.pixels) for count in scores.truth_pixels]
    bars = ["" if math.isnan(iou) else "#" * round(_BAR * iou) for iou in ious]
    cells = [(scores.protocol.classes[i], percent(ious[i]), percent(shares[i])) for i in chosen]
    head, *table = align_table(("class", "IoU", "share of truth"), cells)
    lines = [f"{line}  {bars[i]}".rstrip() for i, line in zip(chosen, table, strict=True)]
    if len(chosen) < len(ious):
        between = len(ious) - sum(map(math.isnan, ious)) > len(chosen)
        lines.insert(
            _WORST if between else len(lines), f"… {len(ious) - len(chosen)} more, see {BEST_FILES[0]}"
        )
    return [head, *lines]


def _printed_classes(ious: list[float]) -> list[int]:
    """Return the indices of the classes to print; if there are many, lowest and highest IoU."""
    if len(ious) <= _MOST_CLASSES:
        return list(range(len(ious)))
    ranked = sorted((i for i, iou in enumerate(ious) if not math.isnan(iou)), key=lambda i: ious[i])
    return [*ranked[:_WORST], *ranked[_WORST:][-_BEST:]]


def _confusions(scores: Scores) -> list[str]:
    """Return lines on the largest confusions, as shares of the true class's pixels."""
    truth = scores.truth_pixels[:, None]
    shares = np.divide(scores.matrix, truth, out=np.zeros(scores.matrix.shape), where=truth > 0)
    np.fill_diagonal(shares, 0)
    names = scores.protocol.classes
    largest = [np.unravel_index(i, shares.shape) for i in np.argsort(-shares, axis=None, kind="stable")]
    lines = [
        f"  {names[i]} taken for {names[j]}: {percent(float(shares[i, j]))} % of the pixels of {names[i]}"
        for i, j in largest[:_CONFUSIONS]
        if shares[i, j] >= _LEAST
    ]
    return ["", "most confused:", *lines] if lines else []
