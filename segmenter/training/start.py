"""Start of a training, new, resumed or fine-tuned: check and plan it, open the run directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from segmenter.base.errors import plain
from segmenter.base.files import exclusive_lock
from segmenter.base.invocation import quote_path
from segmenter.base.terminal import quiet, say, warn
from segmenter.config.recipe import Recipe
from segmenter.devices.strategy import Devices
from segmenter.evaluation.scores import percent, title_of
from segmenter.grid.scenes import Dataset
from segmenter.model.pretrained.encoder_weights import EncoderWeights
from segmenter.runs.checkpoints import BEST
from segmenter.runs.records import ChosenBy, save_validation_images
from segmenter.runs.resume import (
    Checkpoint,
    Position,
    check_as_seen,
    clear,
    set_aside_after,
    sweep,
    with_extension,
)
from segmenter.runs.run import MeasuredShares, Run, load_run
from segmenter.runs.score_files import record_to_beat
from segmenter.sampling import Plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.training.beginning.fine_tuning import StartingRun, find_encoder_weights
from segmenter.training.beginning.new_run import load_first_weights, new_run
from segmenter.training.beginning.origin import record_origin, record_scenes
from segmenter.training.checks import check_devices, check_same_plan
from segmenter.training.prepare import TrainingTiles, describe_plan, epoch_plan
from segmenter.training.trainer import Trainer
from segmenter.training.workers_agree import (
    arrays_from_chief,
    as_on_chief,
    check_same,
    facts_of,
    from_chief,
)


@dataclass(frozen=True)
class Training:
    """All that a training needs; nothing is checked or written yet.

    Attributes:
        path: run directory.
        checkpoint: where it goes on; None: it is new.
        source: run whose weights it starts from.
        chosen: how validation chose its steps, if all scenes train.
        profile: write a profile of some steps.
        workers: worker processes that make the batches; None: threads of this process.
    """

    recipe: Recipe
    dataset: Dataset
    tiles: TrainingTiles
    devices: Devices
    path: Path
    checkpoint: Checkpoint | None = None
    source: StartingRun | None = None
    chosen: ChosenBy | None = None
    profile: bool = False
    workers: WorkerPool | None = None

    @contextmanager
    def shared_end(self) -> Iterator[None]:
        """End all workers of a training if one ends in the block; all but the chief print nothing.

        Raises:
            WorkerError: a worker has another recipe, program or data.
        """
        workers = self.devices.workers
        with workers.shared_end(), quiet(not workers.chief):
            if workers.count > 1:
                tiles = self.tiles.fingerprint()
                check_same(workers, facts_of(self.recipe, self.dataset.classes, tiles, self.devices))
            yield


@dataclass(frozen=True)
class PlannedTraining:
    """A training that has passed all checks before its start; nothing is written yet.

    Attributes:
        run: content of its run.json.
        plan: plan of the first epoch.
        pretrained: initial weights of the encoder; None: of a run, or random.
    """

    training: Training
    run: Run
    plan: Plan
    pretrained: EncoderWeights | None = None


def plan_training(training: Training) -> PlannedTraining:
    """Run all checks that are possible before anything is written, and plan the first epoch.

    Raises:
        ConfigError: a setting does not fit the devices or the classes.
        CheckpointError: the run to resume was begun with other data or another plan.
        WeightsError: the encoder's pretrained weights are missing or do not fit.
    """
    recipe, dataset, tiles, devices = training.recipe, training.dataset, training.tiles, training.devices
    checkpoint, source, path = training.checkpoint, training.source, training.path
    check_devices(recipe, devices, profile=training.profile)
    planned_for = devices.replicas if recipe.sampling.planned_per_replica else 1
    pretrained = None
    if checkpoint is None and source is None and devices.workers.chief:
        pretrained = find_encoder_weights(recipe.model, len(tiles.statistics.mean_C))
    if checkpoint is not None:
        run = with_extension(load_run(path), recipe, checkpoint)
        check_same_plan(run, tiles, planned_for, checkpoint)
    else:
        run = replace(new_run(recipe, dataset, tiles, path, source, devices), planned_replicas=planned_for)
    if recipe.distribution.shares == "auto":
        chosen = devices.replica_tiles(recipe.training.global_batch)
        run = replace(run, shares=MeasuredShares(chosen, devices.models))
    run = as_on_chief(devices.workers, run)
    plan = epoch_plan(run.recipe, tiles.index, run.classes.names, 0, devices.replicas)
    return PlannedTraining(training, run, plan, pretrained)


@contextmanager
def open_training(planned: PlannedTraining) -> Iterator[Trainer]:
    """Yield the trainer of a planned training at its first step, with the run directory locked.

    Raises:
        SegmenterError: another process has locked the directory, or it is not writable.
        CheckpointError: another process has trained there since the check, or the weights do not fit.
    """
    run, training, checkpoint = planned.run, planned.training, planned.training.checkpoint
    if not training.devices.workers.chief:
        trainer = _following(planned)
        with trainer.feed:
            yield trainer
        return
    with exclusive_lock(run.path) as unlocked:
        if unlocked:
            warn(f"{unlocked}")
        check_as_seen(run.path, checkpoint)
        if checkpoint is None:
            clear(run.path)
        run.save()
        record_scenes(run.path, training.dataset, training.tiles.digests, resumed=checkpoint is not None)
        record_origin(
            run,
            training.dataset,
            training.tiles.index,
            training.source,
            training.devices.computed_on,
            training.chosen,
            resumed=checkpoint is not None,
        )
        save_validation_images(run.path, training.dataset.of("validation"))
        trainer = _trainer(planned)
        with trainer.feed:
            _describe(trainer)
            if checkpoint is not None:
                resume_from(trainer, checkpoint)
            else:
                load_first_weights(trainer.learner, run, training.source, planned.pretrained)
            _start_alike(trainer)
            yield trainer


def _following(planned: PlannedTraining) -> Trainer:
    """Return the trainer of a worker that writes nothing, with the chief's step and weights."""
    trainer = _trainer(planned)
    _start_alike(trainer)
    return trainer


def _start_alike(trainer: Trainer) -> None:
    """Copy the chief's position, weights and state to all workers."""
    if trainer.devices.workers.count == 1:
        return
    # The chief's last record may be -1 or any number, but is finite.
    trainer.position = Position(*from_chief(trainer.devices.workers, list(trainer.position)))
    trainer.learner.assign(arrays_from_chief(trainer.devices, trainer.learner.state()))


def _trainer(planned: PlannedTraining) -> Trainer:
    run, training = planned.run, planned.training
    tiles, devices, batch = training.tiles, training.devices, run.recipe.training.global_batch
    own = devices.own_rows(batch) if devices.workers.count > 1 else None
    tiles_of_each = devices.replica_tiles(batch)
    loader = BatchLoader(run.recipe, tiles.index, tiles.store, tiles.statistics, tiles_of_each, own)
    feed = Feed(loader, batch if own is None else own.stop - own.start, training.workers)
    kind: type[Trainer] = devices.kind.trainer or Trainer
    return kind(
        run,
        tiles.index,
        feed,
        devices,
        training.dataset,
        profile=training.profile,
        planned={0: planned.plan},
    )


def _describe(trainer: Trainer) -> None:
    """Print the schedule, micro-batches, and the plan if it depends on the devices."""
    recipe, planned_for = trainer.run.recipe, trainer.run.planned_replicas
    for line in trainer.learner.describe():
        say(line)
    if planned_for > 1:
        names = trainer.run.classes.names
        lines = describe_plan(trainer.first_plan, recipe.sampling, trainer.index, names)
        say("\n".join([f"each of {planned_for} devices gets every class:", *lines]))
    say(plain(f"curves and pictures while it trains: tensorboard --logdir {quote_path(trainer.run.path)}"))


# ------------------------------------------------------------------------------------------- resuming


def resume_from(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Reset the run to a checkpoint, and print the consequences."""
    trainer.resume(checkpoint)  # may refuse: before anything is moved
    for line in checkpoint.warnings(trainer.devices.replicas, trainer.learner.computed_on):
        say(line)
    run = trainer.run.path
    sweep(run)
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
