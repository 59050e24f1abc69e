"""Thresholds of a run's prediction sets, in its `sets.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from segmenter.base.errors import CheckpointError
from segmenter.base.files import write_whole
from segmenter.base.invocation import invocation, quote_path
from segmenter.base.sealed import seal
from segmenter.evaluation.calibration import Share
from segmenter.evaluation.prediction_sets import PROMISES, BlockLosses, SetThresholds, has_few
from segmenter.grid.labels import MAX_CLASSES
from segmenter.runs.records import SETS, Natural, RunWithWeights, StrictRecord, load_origin, loaded_record


class SetsFile(StrictRecord):
    """Content of sets.json: thresholds of prediction sets (`evaluation.prediction_sets`).

    Attributes:
        weights: fingerprint of the weights that they were fitted for.
        block: side in pixels of the blocks of the validation scenes.
        blocks: number of blocks that show each class.
        thresholds: by promise in percent, of each class.
    """

    format: Literal[1] = 1
    weights: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    block: int = Field(ge=1)
    blocks: tuple[Natural, ...] = Field(min_length=1, max_length=MAX_CLASSES)
    thresholds: dict[Literal["80", "90", "95"], tuple[Share, ...]]

    def of(self, promise: float) -> SetThresholds:
        """Return the thresholds of a promise."""
        few = tuple(k for k, n in enumerate(self.blocks) if has_few(n, promise))
        return SetThresholds(promise, self.thresholds[_percent_key(promise)], few)


def _percent_key(promise: float) -> Literal["80", "90", "95"]:
    return {0.8: "80", 0.9: "90", 0.95: "95"}[promise]  # type: ignore[return-value]


def save_sets(run: RunWithWeights, losses: BlockLosses) -> SetsFile:
    """Write the thresholds of a run's weights, completely or not at all; return them.

    Raises:
        CheckpointError: the run has no weights.
        OutputError: the file cannot be written.
    """
    content = SetsFile(
        weights=run.fingerprint(),
        block=losses.side,
        blocks=tuple(losses.blocks_K.tolist()),
        thresholds={_percent_key(promise): losses.thresholds(promise).each_K for promise in PROMISES},
    )
    write_whole(run.path / SETS, seal(json.dumps(content.model_dump(mode="json"), indent=1)).encode())
    return content


def describe_sets_file(content: SetsFile, names: Sequence[str]) -> str:
    """Return a line on the thresholds, and the classes that too few blocks show."""
    few = {f"{promise:.0%}": [names[k] for k in content.of(promise).few] for promise in PROMISES}
    lacking = [f"{', '.join(classes)} at {promise}" for promise, classes in few.items() if classes]
    line = f"prediction sets: thresholds for {', '.join(few)} in {SETS}, which predict --sets uses"
    return line + (f"; in every set, as too few blocks show it: {'; '.join(lacking)}" if lacking else "")


def check_validated(run: Path) -> None:
    """Refuse a run all of whose validation scenes trained it (`train --all`).

    Raises:
        CheckpointError: naming the run whose validation chose its steps.
    """
    origin = load_origin(run)
    if origin is not None and origin.chosen_by is not None:
        raise CheckpointError(
            run,
            expected="a run with validation scenes",
            got="one that they trained, too (--all)",
            remedy=f"take the run whose validation chose its steps: {', '.join(origin.chosen_by.runs)}",
        )


def load_sets(run: RunWithWeights, promise: float) -> SetThresholds:
    """Load the thresholds of a run's weights for a promise.

    Raises:
        CheckpointError: there are none, they are damaged, or of other weights; or no scene validated the run.
    """
    check_validated(run.path)
    anew = f"make them anew: {invocation('calibrate')} {quote_path(run.path)}"
    found = loaded_record(run.path / SETS, SetsFile, 1 << 20, remedy=anew)
    if found is None:
        raise CheckpointError(run.path, expected=f"thresholds of prediction sets in {SETS}", remedy=anew)
    if found.weights != run.fingerprint():
        raise CheckpointError(run.path / SETS, "is of other weights than those that predict", remedy=anew)
    return found.of(promise)
