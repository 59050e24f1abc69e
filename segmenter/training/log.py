"""Training log: JSON lines, TensorBoard scalars, learning curves, scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.base.errors import OutputError
from segmenter.evaluation.by_gsd import gsd_facts
from segmenter.evaluation.drawing import save_figure
from segmenter.evaluation.figures import confusion_panel
from segmenter.evaluation.intervals import INTERVAL
from segmenter.evaluation.learning_curves import learning_curves
from segmenter.evaluation.protocol import of_one_rule
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.grid.labels import ClassMap
from segmenter.runs.log import RunLog
from segmenter.runs.score_files import LAST_FILES

_GAP = 8
"""White pixels between pictures side by side."""


class TrainLog:
    """Logs of a run directory."""

    def __init__(self, run: Path, classes: ClassMap | None = None) -> None:
        """Open the logs; `classes` define the colours of the learning curves."""
        self._run, self._log, self._classes = run, RunLog(run), classes
        self._board = tf.summary.create_file_writer(str(run / "tensorboard"))

    def rewind(self, step: int, *, validated: bool) -> None:
        """Remove records after a step, as `RunLog.rewind` does."""
        self._log.rewind(step, validated=validated)

    def log_steps(self, step: int, values: dict[str, Any]) -> None:
        """Log the steps since the last line; numbers also become TensorBoard scalars, lists do not."""
        self._log.append({"step": step, **values})
        with self._flushed_scalars(step):
            for name, value in values.items():
                if not isinstance(value, list):
                    tf.summary.scalar(f"training/{name}", value)

    def log_validation(
        self,
        step: int,
        epoch: int,
        scores: Scores,
        confusion: ConfusionMatrix,
        by_scale: Mapping[str, Scores] | None = None,
    ) -> None:
        """Log a validation's scores, and write the files of the last validation."""
        data = scores.to_dict()
        figures = {key: data[key] for key in ("miou", "iou", "completeness", *INTERVAL) if key in data}
        figures["protocol"] = str(scores.protocol)
        self._log.append({"step": step, "epoch": epoch, **figures})
        table, picture = (self._run / name for name in LAST_FILES)
        scores.write(table, gsd_facts(by_scale or {}), facts={"epoch": epoch, "step": step})
        save_figure(confusion_panel(confusion, f"validation after epoch {epoch}, step {step}"), picture)
        with self._flushed_scalars(step):
            for key in ("miou", "mf1", "oa"):
                tf.summary.scalar(f"validation/{key}", data[key] or 0.0)
            for name, value in data["iou"].items():
                tf.summary.scalar(f"validation_iou/{name}", value or 0.0)

    def log_pictures(self, step: int, layers: Mapping[str, NDArray[np.uint8]]) -> None:
        """Show pictures of one window side by side in TensorBoard: image, label, map, errors, confidence."""
        gap = np.full((next(iter(layers.values())).shape[0], _GAP, 3), 255, np.uint8)
        strip = np.concatenate([part for layer in layers.values() for part in (layer, gap)][:-1], axis=1)
        with self._flushed_scalars(step):
            tf.summary.image(f"validation window: {', '.join(layers)}", strip[None])

    def curves(self) -> None:
        """Draw learning_curves.png from the whole log."""
        path = self._run / "learning_curves.png"
        learning_curves(of_one_rule(self._log.records()), path, self._run.name, classes=self._classes)

    @contextmanager
    def _flushed_scalars(self, step: int) -> Iterator[None]:
        """Pass the scalars written in the block to TensorBoard at once."""
        try:
            with self._board.as_default(step):
                yield
            self._board.flush()
        except tf.errors.OpError as error:
            where, what = self._run / "tensorboard", str(error.message).splitlines()[0]
            raise OutputError(where, f"cannot write there: {what}", remedy="is the disk full?") from None
