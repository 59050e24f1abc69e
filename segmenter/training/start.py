"""Start of a training, resumed or fine-tuned: check, open the run directory, train to the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from segmenter.base.files import alone_in, remove_leftovers
from segmenter.base.terminal import quiet, say, warn
from segmenter.config.recipe import Recipe
from segmenter.devices.machines.workers import Workers
from segmenter.devices.strategy import Devices
from segmenter.evaluation.scores import percent, title_of
from segmenter.grid.scenes import Dataset
from segmenter.model.building import build_model, network_geometry, shapes_of, stages_of
from segmenter.model.normalisation import Normalisation
from segmenter.model.pretrained.encoder_weights import EncoderWeights
from segmenter.model.size import training_bytes_per_image
from segmenter.model.stages import pace_of, part_of
from segmenter.runs.checkpoints import BEST
from segmenter.runs.extending import with_extension
from segmenter.runs.log import LOG
from segmenter.runs.resume import Checkpoint, Position, check_as_seen, set_aside_after
from segmenter.runs.run import MeasuredShares, Run, load_run
from segmenter.runs.score_files import record_to_beat
from segmenter.runs.validation_images import save_validation_images
from segmenter.runs.weights import transfer_weights
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.scene_files import save_digests
from segmenter.tiles.statistics import band_names
from segmenter.training.beginning.fine_tuning import Source, check_fit, describe_kept
from segmenter.training.beginning.normalising import normalisation_of
from segmenter.training.beginning.origin import record_origin
from segmenter.training.beginning.pretraining import find_encoder_weights, frozen_at_random, load_encoder
from segmenter.training.checks import check_devices, check_memory, check_same_plan
from segmenter.training.ending import Outcome, train_to_end
from segmenter.training.optimiser.schedules import describe_schedule
from segmenter.training.prepare import Tiles, class_weights, describe_plan, describe_rare_parts
from segmenter.training.trainer import Trainer
from segmenter.training.workers_agree import (
    arrays_from_chief,
    check_same,
    facts_of,
    from_chief,
)


@dataclass(frozen=True)
class CheckedTraining:
    """A training that nothing known before its start speaks against; nothing is written yet.

    Attributes:
        run: as it will be saved.
        checkpoint: of this run, to go on from.
        source: another run, whose weights to start from.
        pretrained: weights that the encoder starts from.
        class_weights: (K,) weights in cross-entropy, or None.
        workers: processes that make the batches; None: threads of this one.
    """

    run: Run
    dataset: Dataset
    tiles: Tiles
    devices: Devices
    checkpoint: Checkpoint | None = None
    source: Source | None = None
    pretrained: EncoderWeights | None = None
    class_weights: tuple[float, ...] | None = None
    profile: bool = False
    workers: WorkerPool | None = None


def start_training(
    recipe: Recipe,
    dataset: Dataset,
    tiles: Tiles,
    devices: Devices,
    path: Path,
    *,
    checkpoint: Checkpoint | None = None,
    source: Source | None = None,
    profile: bool = False,
    workers: WorkerPool | None = None,
) -> Outcome:
    """Train in the run directory `path`.

    Args:
        checkpoint: of this run, to go on from.
        source: another run, whose weights to start from.
        workers: processes that make the batches; None: threads of this one.
    """
    with devices.workers.together(), quiet(not devices.workers.chief):
        if devices.workers.count > 1:
            facts = facts_of(recipe, dataset.classes, tiles.fingerprint(), devices)
            check_same(devices.workers, facts)
        checked = check_training(
            recipe, dataset, tiles, devices, path, checkpoint=checkpoint, source=source, profile=profile
        )
        with open_training(replace(checked, workers=workers)) as trainer:
            return train_to_end(trainer, resumed=checkpoint is not None)


def check_training(
    recipe: Recipe,
    dataset: Dataset,
    tiles: Tiles,
    devices: Devices,
    path: Path,
    *,
    checkpoint: Checkpoint | None = None,
    source: Source | None = None,
    profile: bool = False,
) -> CheckedTraining:
    """Refuse everything that can be refused before anything is written; arguments as of `start_training`.

    Raises:
        ConfigError: a setting does not go with the devices or the classes.
        CheckpointError: the run to go on with was begun with other data or another plan.
        WeightsError: the encoder's pretrained weights are not there, or do not fit.
    """
    check_devices(recipe, devices, profile=profile)
    planned_for = devices.replicas if recipe.sampling.planned_per_replica else 1
    pretrained, chief = None, devices.workers.chief
    if checkpoint is None and source is None and chief:
        pretrained = find_encoder_weights(recipe.model, len(tiles.statistics.mean_C))
    if checkpoint is not None:
        run = with_extension(load_run(path), recipe, checkpoint)
        check_same_plan(run, tiles, planned_for, checkpoint)
    else:
        run = replace(_new_run(recipe, dataset, tiles, path, source, devices), planned_replicas=planned_for)
    if recipe.distribution.shares == "auto":
        chosen = devices.dealt(recipe.training.global_batch)
        run = replace(run, shares=MeasuredShares(chosen, devices.models))
    run = _as_on_chief(devices.workers, run)
    weights = class_weights(recipe.loss, tiles.index)
    return CheckedTraining(run, dataset, tiles, devices, checkpoint, source, pretrained, weights, profile)


@contextmanager
def open_training(checked: CheckedTraining) -> Iterator[Trainer]:
    """Yield the trainer of a checked training, at its first step to do, alone in its run directory.

    Raises:
        SegmenterError: another process is in the directory, or it cannot be written.
        CheckpointError: another process has trained there since the check, or the weights do not fit.
    """
    run, tiles, checkpoint = checked.run, checked.tiles, checked.checkpoint
    if not checked.devices.workers.chief:
        yield _following(checked)
        return
    with alone_in(run.path) as unlocked:
        if unlocked:
            warn(f"{unlocked}")
        check_as_seen(run.path, checkpoint)
        if checkpoint is None:
            _clear(run.path)
        run.save()
        save_digests(run.path, tiles.digests)
        parts = run, checked.dataset, tiles.index, checked.source, checked.devices.computed_on
        record_origin(*parts, resumed=checkpoint is not None)
        save_validation_images(run.path, checked.dataset.of("validation"))
        trainer = _trainer(checked)
        _describe(trainer)
        if checkpoint is not None:
            resume_from(trainer, checkpoint)
        elif line := frozen_at_random(
            trainer.learner.pace, _begin(trainer, checked), run.recipe.training.epochs
        ):
            say(line)
        _start_alike(trainer)
        yield trainer


def _following(checked: CheckedTraining) -> Trainer:
    """Return the trainer of a worker that writes nothing, at the chief's step with the chief's weights."""
    trainer = _trainer(checked)
    _start_alike(trainer)
    return trainer


def _start_alike(trainer: Trainer) -> None:
    """Bring all workers to the chief's position, weights and state, wherever it has them from."""
    if trainer.devices.workers.count == 1:
        return
    # The chief's last record may be -1 or any number, but is finite.
    trainer.position = Position(*from_chief(trainer.devices.workers, list(trainer.position)))
    trainer.learner.assign(arrays_from_chief(trainer.devices, trainer.learner.state()))


def _as_on_chief(workers: Workers, run: Run) -> Run:
    """Return the run with the chief's normalisation: means taken on another processor differ in last bits."""
    scenes = None if run.scenes is None else run.scenes.to_dict()
    shared = from_chief(workers, [run.normalisation.to_dict(), scenes])
    scenes_of_chief = None if shared[1] is None else Normalisation.from_dict(shared[1])
    return replace(run, normalisation=Normalisation.from_dict(shared[0]), scenes=scenes_of_chief)


def _trainer(checked: CheckedTraining) -> Trainer:
    run, tiles, devices = checked.run, checked.tiles, checked.devices
    batch = run.recipe.training.global_batch
    own = devices.own_rows(batch) if devices.workers.count > 1 else None
    form = tiles.statistics, devices.dealt(batch)
    loader = BatchLoader(run.recipe, tiles.index, tiles.store, *form, own)
    feed = Feed(loader, batch if own is None else own.stop - own.start, checked.workers)
    kind: type[Trainer] = devices.kind.trainer or Trainer
    return kind(
        run, tiles.index, feed, devices, checked.dataset, checked.class_weights, profile=checked.profile
    )


def _describe(trainer: Trainer) -> None:
    """Say the schedule, micro-batches, and the plan if it depends on the devices."""
    recipe, planned_for = trainer.run.recipe, trainer.run.planned_replicas
    say(describe_schedule(recipe.training, trainer.steps))
    if line := trainer.learner.pace.describe():
        say(line)
    if line := _describe_accumulation(recipe, trainer.devices):
        say(line)
    if planned_for > 1:
        held_K = (trainer.index.counts_NK >= recipe.sampling.min_pixels).sum(axis=0)
        lines = describe_plan(trainer.first_plan, held_K, trainer.run.classes.names)
        lines += describe_rare_parts(
            recipe.sampling, trainer.first_plan, trainer.index, trainer.run.classes.names
        )
        say("\n".join([f"each of {planned_for} devices gets every class:", *lines]))


def _begin(trainer: Trainer, checked: CheckedTraining) -> list[str]:
    """Load the weights that the training starts from, and say which; gives their paths."""
    if checked.source is not None:
        kept, line = _fine_tuned(trainer, checked.source)
    elif checked.pretrained is not None:
        line = load_encoder(trainer.learner.model, checked.pretrained)
        kept = [path for path in shapes_of(trainer.learner.model) if part_of(path) == "encoder"]
    else:
        return []
    if trainer.learner.averaged is not None:
        trainer.learner.averaged.follow()
    say(line)
    return kept


def _fine_tuned(trainer: Trainer, source: Source) -> tuple[list[str], str]:
    """Set another run's weights, as far as they fit: their paths, and a line on them."""
    run = trainer.run
    same = source.run.classes.names == run.classes.names
    kept, _ = transfer_weights(trainer.learner.model, source.weights, same_classes=same)
    stages = stages_of(trainer.learner.model, run.recipe.model)
    return kept, f"from {source.run.path}: {describe_kept(shapes_of(trainer.learner.model), kept, stages)}"


def resume_from(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Take the run back to a checkpoint, and say what that changes."""
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


def _clear(run: Path) -> None:
    """Remove what a training left that ended before its first checkpoint: it is begun anew."""
    _sweep(run)
    (run / LOG).unlink(missing_ok=True)


def _sweep(run: Path) -> None:
    if left := sum(remove_leftovers(folder) for folder in (run, run / "checkpoints")):
        say(f"removed {left} file{'s' * (left > 1)} that a killed training left half-written")


def _describe_accumulation(recipe: Recipe, devices: Devices) -> str:
    """Describe what accumulation means for this recipe; an empty text without it."""
    training = recipe.training
    if training.accumulate == 1:
        return ""
    at_once = training.global_batch // training.accumulate
    each = sorted({tiles // training.accumulate for tiles in devices.dealt(training.global_batch)})
    line = (
        f"accumulation: {training.accumulate} micro-batches of {at_once} tiles, "
        f"{' to '.join(map(str, (each[0], each[-1])[: len(each)]))} on "
        f"each device, make a step of {training.global_batch}"
    )
    if recipe.model.kind != "unet" or recipe.model.normalisation == "batch":
        line += (
            f"; BatchNorm's statistics are those of {at_once} tiles, all else is of {training.global_batch}"
        )
    return line


def _new_run(
    recipe: Recipe, dataset: Dataset, tiles: Tiles, path: Path, source: Source | None, devices: Devices
) -> Run:
    statistics = tiles.statistics
    bands, classes = len(statistics.mean_C), len(dataset.classes)
    model = build_model(recipe.model, bands, classes, dtype=recipe.training.precision, synchronised=True)
    shapes, names = shapes_of(model), dataset.classes.names
    if source is not None:
        check_fit(source, shapes, recipe, names)
    pace = pace_of(stages_of(model, recipe.model), recipe.training)  # refuses stages that the model has not
    network = network_geometry(model)
    side = recipe.tiles.size
    mixed = recipe.training.precision.startswith("mixed")
    normalisation, scenes = normalisation_of(
        recipe, statistics, source, shapes=shapes, classes=names, pace=pace, chief=devices.workers.chief
    )
    memory = training_bytes_per_image(model, side, side, mixed=mixed)
    say(f"model: {model.count_params():,} parameters, {network}, {memory / 2**20:.0f} MiB a tile in training")
    if devices.shares:
        say(_memory_of_each(devices, recipe, memory))
    if not devices.kind.elsewhere and (line := check_memory(recipe, devices, memory, model.count_params())):
        warn(line)
    return Run(
        path=path,
        recipe=recipe,
        classes=dataset.classes,
        bands=dataset.bands,
        band_count=bands,
        band_names=band_names(dataset),
        dtype=statistics.dtype,
        normalisation=normalisation,
        scenes=scenes,
        metres_per_pixel=tiles.metres_per_pixel,
        labels=dataset.labels,
        network=network,
        tiles=tiles.fingerprint(),
    )


def _memory_of_each(devices: Devices, recipe: Recipe, of_a_tile: int) -> str:
    """Return a line on the memory that each device's part of a step takes at a time."""
    dealt = devices.dealt(recipe.training.global_batch)
    at_once = [tiles // recipe.training.accumulate for tiles in dealt]
    parts = [
        f"{device.name} {tiles * of_a_tile / 2**20:,.0f} MiB for {tiles} tile{'s' * (tiles != 1)}"
        for device, tiles in zip(devices.used, at_once, strict=True)
    ]
    return f"memory of the tiles at a time: {', '.join(parts)}"
