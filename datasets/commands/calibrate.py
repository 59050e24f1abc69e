"""Fit the calibration of a trained run's probabilities, and the thresholds of its prediction sets, on its
validation scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import plain
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option

from .frame import parse_quietly, tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options:
    run: Path = option(..., "run directory whose probabilities are calibrated", "RUN", positional=True)
    root: str | None = option(
        None,
        "folder of the run's images and labels, if they were moved since the training",
        "FOLDER",
        path=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write calibration.json, sets.json and the report of a run; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)

    from segmenter.base.files import exclusive_lock
    from segmenter.devices.setup import load_tensorflow, require_tensorflow
    from segmenter.runs.run import load_run

    run = load_run(given.run)
    require_tensorflow()
    load_tensorflow()

    from segmenter.training.calibrating import calibrate, describe, prior_bias, shares_of
    from segmenter.training.ending import leave_report

    from ..known import dataset_of_run

    dataset = dataset_of_run(run, given.root)
    for note in dataset.notes:
        print(plain(note))
    with exclusive_lock(run.path):
        prior_K = prior_bias(run.recipe.loss, *shares_of(run, dataset))
        print(describe(calibrate(run, dataset, prior_K)))
        leave_report(run.path)
    return 0


_CALLS = {
    "runs/mine": "write calibration.json and sets.json into the run",
    "runs/mine --root /data/mine": "with the images and labels in a new place",
}


def _parser() -> ToolParser:
    return tool_parser("calibrate", __doc__, _Options, calls=_CALLS)
