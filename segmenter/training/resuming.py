"""Resuming of a run: reset to a checkpoint, or start again if there is none."""

from __future__ import annotations

from pathlib import Path

from segmenter.base.files import remove_leftovers
from segmenter.base.terminal import say
from segmenter.evaluation.scores import percent, title_of
from segmenter.runs.checkpoints import BEST
from segmenter.runs.log import LOG
from segmenter.runs.resume import Checkpoint, Position, set_aside_after
from segmenter.runs.run import Run
from segmenter.runs.score_files import record_to_beat
from segmenter.training.trainer import Trainer


def resume_from(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Reset the run to a checkpoint, and print the consequences."""
    trainer.resume(checkpoint)  # may refuse: before anything is moved
    for line in checkpoint.warnings(trainer.devices.replicas, trainer.learner.computed_on):
        say(line)
    run = trainer.run.path
    _sweep(run)
    step = checkpoint.position.done
    if later := set_aside_after(run, step):
        say(
            f"what came after step {step} will be done again; its checkpoints "
            f"({', '.join(path.name for path in later)}) and the log are kept in {later[0].parent}"
        )
    trainer.position = _with_record(trainer.run, trainer.position)
    trainer.rewind_log()
    say(f"resumed after step {trainer.position.done} of {trainer.steps}")


def _with_record(run: Run, position: Position) -> Position:
    """Return the position to resume at, with the score that the next best model must exceed."""
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


def clear(run: Path) -> None:
    """Remove the files of a training that ended before its first checkpoint, to start again."""
    _sweep(run)
    (run / LOG).unlink(missing_ok=True)


def _sweep(run: Path) -> None:
    if left := sum(remove_leftovers(folder) for folder in (run, run / "checkpoints")):
        say(f"removed {left} file{'s' * (left > 1)} that a killed training left half-written")
