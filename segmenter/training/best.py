"""Pictures of a validation that set a record, beside its scores: the summary, and the report's windows."""

from __future__ import annotations

from segmenter.evaluation.scores import ConfusionMatrix
from segmenter.evaluation.summary_figure import summary_figure
from segmenter.runs.resume import Position
from segmenter.runs.run import Run
from segmenter.runs.score_files import SUMMARY
from segmenter.runs.windows_file import save_windows
from segmenter.scenes import Dataset
from segmenter.training.examples import Examples


def show_best(
    run: Run, position: Position, dataset: Dataset, confusion: ConfusionMatrix, examples: Examples
) -> None:
    """Draw the summary of the validation just done, and keep its worst and best windows.

    Raises:
        RasterError: a scene cannot be read again.
        OutputError: a file cannot be written.
    """
    title = f"validation after epoch {position.epoch}"
    summary_figure(confusion, examples.read(dataset), run.classes, run.path / SUMMARY, title)
    save_windows(
        run.path,
        examples.shown(dataset),
        step=position.done,
        epoch=position.epoch,
        windows=examples.windows,
        scenes=len(examples.scenes),
        of_scenes=len(dataset.of("validation")),
    )
