"""Report at the end of a training; where it cannot be written, the training is done all the same."""

from __future__ import annotations

from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.base.invocation import invocation
from segmenter.base.terminal import say, warn
from segmenter.runs.report.sections import write_report


def leave_report(run: Path) -> None:
    """Write `report.html` into a run directory, and say where it is, or in one line why it is not."""
    try:
        say(f"report: {write_report(run)}")
    except SegmenterError as error:
        again = f"{invocation('runs')} report {run}"
        warn(f"no report of the training: {error}; to write it later: {again}")
