"""Record of a run: everything in its directory on the training; does not import TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segmenter.base.errors import CheckpointError, counted
from segmenter.base.files import read_regular
from segmenter.base.sealed import json_object
from segmenter.evaluation.protocol import of_one_rule
from segmenter.evaluation.scores import MODEL, Scores, percent
from segmenter.evaluation.tallies import FURTHER
from segmenter.pages.parts import Block, Paragraph, Table, number, plain
from segmenter.runs.checkpoints import BEST
from segmenter.runs.log import LoggedCoverage, RunLog, run_coverage
from segmenter.runs.records import (
    AccuracyFile,
    CalibrationFile,
    ChosenBy,
    Progress,
    ShownWindows,
    load_accuracy,
    load_origin,
    load_progress,
    load_windows,
)
from segmenter.runs.resume import Checkpoint, CheckpointFacts, newest_record, record_of
from segmenter.runs.run import Run, load_run
from segmenter.runs.scenes import RunScenes, load_scenes
from segmenter.runs.score_files import BEST_FILES, LAST_FILES, MOST_BYTES, Scored, load_score


def scores_of_maps(run: Run, maps: Path) -> Scores:
    """Read the scores that predict.py wrote beside maps of this run.

    Raises:
        CheckpointError: there are none, they are damaged, or the maps are of another model.
    """
    path = maps / "scores.json"
    try:
        record = json_object(read_regular(path, MOST_BYTES)) or {}
        scores = Scores.from_dict(record, FURTHER)
        _table(scores)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise CheckpointError(path, expected="scores of predict.py", remedy="score the maps anew") from None
    if record.get(MODEL) not in (run.checksum(), replace(run, calibrated=False).checksum()):
        raise CheckpointError(path, expected=f"scores of maps of {run.path}", got="another model's")
    return scores


def map_blocks(scores: Scores | None, accuracy: AccuracyFile | None) -> list[Block]:
    """Return what is known of the maps."""
    blocks: list[Block] = []
    if scores is not None:
        blocks += [
            Paragraph(plain(f"Against labels: {scores.protocol}, {number(scores.pixels)} pixels.")),
            _table(scores),
        ]
    if scores is not None and scores.interval is not None:
        blocks.append(Paragraph(f"mIoU {scores.interval}."))
    if scores is not None and "boundary" in scores.more:
        width = scores.more["boundary"]["within_pixels"]
        text = f"Boundary IoU is of pixels at most {width} px from another class; objects match at IoU > 0.5."
        blocks.append(Paragraph(text))
    if accuracy is not None:
        blocks.append(Paragraph(plain(f"From labelled points, {accuracy.source}: {accuracy.head}.")))
        blocks += [Paragraph(plain(f"{line}."), "notice") for line in accuracy.remarks]
        blocks.append(Table("Accuracy and area of each class", accuracy.titles, accuracy.rows))
    return blocks


def _table(scores: Scores) -> Table:
    names = scores.protocol.classes
    columns = {"IoU %": [*scores.iou.tolist(), scores.miou], "F1 %": [*scores.f1.tolist(), scores.mf1]}
    for key, facts in scores.more.items():
        title, each, mean = FURTHER[key]
        columns[f"{title} %"] = [*(facts[each][name] for name in names), facts[mean]]
    rows = zip((*names, "mean"), *(map(percent, values) for values in columns.values()), strict=True)
    return Table("Scores of the maps", ["Class", *columns], list(rows))


@dataclass(frozen=True)
class LogLine:
    """One line of the log; missing or non-finite values are None.

    Attributes:
        steps: steps since the line before.
        rate: tiles a second in this epoch so far.
        waiting: share of this epoch's time so far spent waiting for batches.
    """

    step: int
    epoch: int
    steps: int | None
    loss: float | None
    learning_rate: float | None
    rate: float | None
    waiting: float | None


@dataclass(frozen=True)
class Validation:
    """A validation from the log; scores are fractions of 1, None if undefined.

    Attributes:
        protocol: protocol as text; empty if the log does not have it.
    """

    step: int
    epoch: int
    miou: float | None
    iou: dict[str, float | None]
    protocol: str


@dataclass(frozen=True)
class EpochSpeed:
    """Speed of an epoch's steps.

    Attributes:
        seconds: time of the steps, from tiles and rate; without validation, checkpoints and compilation.
    """

    epoch: int
    rate: float
    waiting: float | None
    seconds: float | None


@dataclass(frozen=True)
class Story:
    """Everything that a run directory records.

    Attributes:
        record: position and facts of the newest checkpoint; None if missing or damaged.
        facts: facts of that checkpoint, else of the best model (a packed run may have only that).
        coverage: coverage of the steps; None if the log has none.
        missing: a sentence on each record that could not be read or is not shown.
        calibration: calibration of the weights that predict; None if not calibrated.
        scenes: scenes with their roles; None for a run of before.
        progress: maps of a window after each validation; None for a run of before.
        chosen_by: how its steps were chosen, if validation scenes trained, too.
        accuracy: estimates of the maps of these weights; None if there are none.
        maps: scores of maps that were named for the report.
    """

    run: Run
    record: Checkpoint | None
    facts: CheckpointFacts | None
    lines: Sequence[LogLine]
    validations: Sequence[Validation]
    best: Scored | None
    last: Scored | None
    coverage: LoggedCoverage | None
    windows: ShownWindows | None
    missing: Sequence[str]
    calibration: CalibrationFile | None = None
    accuracy: AccuracyFile | None = None
    maps: Scores | None = None
    scenes: RunScenes | None = None
    progress: Progress | None = None
    chosen_by: ChosenBy | None = None

    @property
    def steps(self) -> int:
        """Number of steps done."""
        logged = [line.step for line in self.lines]
        return max([*logged, self.record.position.done if self.record else 0])

    @property
    def speeds(self) -> list[EpochSpeed]:
        """Speed of each timed epoch, in order."""
        by_epoch: dict[int, list[LogLine]] = {}
        for line in self.lines:
            by_epoch.setdefault(line.epoch, []).append(line)
        speeds, batch = [], self.run.recipe.training.global_batch
        for epoch, lines in sorted(by_epoch.items()):
            last = lines[-1]
            if last.rate:  # 0 where the epoch's only call was compiled in it
                steps = [line.steps for line in lines]
                total = None if None in steps else sum(step or 0 for step in steps)
                seconds = None if total is None else total * batch / last.rate
                speeds.append(EpochSpeed(epoch, last.rate, last.waiting, seconds))
        return speeds

    @property
    def waiting(self) -> float | None:
        """Share of the steps' time spent waiting for data; None if it was not measured."""
        timed = [(s.waiting, s.seconds or 1.0) for s in self.speeds if s.waiting is not None]
        total = sum(seconds for _, seconds in timed)
        return sum(waiting * seconds for waiting, seconds in timed) / total if total else None

    @property
    def status(self) -> str:
        """Progress as short text."""
        epochs = self.run.recipe.training.epochs
        if self.record is None:
            if any(validation.epoch >= epochs for validation in self.validations):
                return f"finished, {epochs} epochs"  # handed over without checkpoints
            return f"stands at step {self.steps:,}, without a checkpoint"
        at = self.record.position
        if at.epoch >= epochs:
            return f"finished, {epochs} epoch{'s' * (epochs != 1)}"
        if at.ended_early(self.run.recipe.training):
            return f"ended early, after {at.epoch} of {epochs} epochs"
        where = f"stands at step {at.done:,}, in epoch {at.epoch + 1} of {epochs}"
        return f"{where}; its command with --resume goes on"


def read_story(path: Path, maps: Path | None = None) -> Story:
    """Read all records of a run directory; `missing` names damaged or missing ones.

    Raises:
        CheckpointError: the path is no run directory, its run.json or recipe.yaml is damaged, or its log is
            of another format; or `maps` has no scores of its maps.
        ConfigError: the recipe is not valid in this version.
    """
    run = load_run(path)
    records = RunLog(path).records()
    missing: list[str] = []

    def read(what: str, reader: Any, *arguments: Any) -> Any:
        try:
            return reader(*arguments)
        except CheckpointError as error:
            missing.append(f"Could not be read: {what}: {error}")
            return None

    comparable = of_one_rule(records)
    if earlier := len(records) - len(comparable):
        missing.append(
            f"{counted(earlier, 'validation')} of an earlier version, which took pixels without image data "
            "for misses: such scores are not put beside the later ones."
        )

    record = read("Position, devices and versions", newest_record, path)
    return Story(
        run=run,
        record=record,
        facts=_facts_of_best(path) if record is None else record.facts,
        lines=[_line(record) for record in records if "miou" not in record],
        validations=[_validation(record) for record in comparable if "miou" in record],
        best=load_score(path / BEST_FILES[0]),
        last=load_score(path / LAST_FILES[0]),
        coverage=read("Coverage", run_coverage, path, run.classes.names),
        windows=read("Windows", load_windows, path),
        calibration=read("Calibration", run.calibration_file),
        accuracy=read("Accuracy", load_accuracy, run),
        maps=None if maps is None else scores_of_maps(run, maps),
        scenes=read("Scenes", load_scenes, path),
        progress=read("Progress", load_progress, path),
        chosen_by=None if (origin := load_origin(path)) is None else origin.chosen_by,
        missing=missing,
    )


def _facts_of_best(path: Path) -> CheckpointFacts | None:
    with suppress(CheckpointError):  # not there, or of a version that did not write them
        return record_of(path / BEST).facts
    return None


def _line(record: dict[str, Any]) -> LogLine:
    steps = record.get("steps")
    return LogLine(
        step=record["step"],
        epoch=_natural_number(record.get("epoch")),
        steps=steps if isinstance(steps, int) and 0 <= steps < 1 << 40 else None,
        loss=finite(record.get("loss")),
        learning_rate=finite(record.get("learning_rate")),
        rate=finite(record.get("images_per_second")),
        waiting=finite(record.get("waiting_for_data")),
    )


def _validation(record: Mapping[str, Any]) -> Validation:
    iou = {str(name): finite(value) for name, value in (record.get("iou") or {}).items()}
    epoch, protocol = _natural_number(record.get("epoch")), str(record.get("protocol") or "")
    return Validation(record["step"], epoch, finite(record["miou"]), iou, protocol)


def finite(value: Any) -> float | None:
    """Return a finite number as float, else None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _natural_number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else 0
