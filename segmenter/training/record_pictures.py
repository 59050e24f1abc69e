"""Best validation so far: the record to beat, and the pictures beside its scores."""

from __future__ import annotations

from segmenter.base.terminal import say
from segmenter.evaluation.figures import summary_figure
from segmenter.evaluation.scores import ConfusionMatrix, percent, title_of
from segmenter.grid.scenes import Dataset
from segmenter.runs.checkpoints import BEST
from segmenter.runs.resume import Position
from segmenter.runs.run import Run
from segmenter.runs.score_files import SUMMARY, record_to_beat
from segmenter.runs.windows_file import save_windows
from segmenter.training.examples import Examples


def with_record(run: Run, position: Position) -> Position:
    """Return the position that a run is resumed at, with the record that the next best has to beat."""
    if not (run.path / BEST).is_file():
        # A record without its model would keep the next best from being kept.
        return position._replace(best_score=Position().best_score)
    name = run.recipe.training.best_by
    if (score := record_to_beat(run.path, name)) is None:
        return position
    say(
        "pixels without image data count nowhere in scores now, and as misses before: by today's rule the "
        f"best validation so far has {title_of(name)} {percent(score)} %"
    )
    return position._replace(best_score=score)


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
