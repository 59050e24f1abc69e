"""New run: its record and its initial weights."""

from __future__ import annotations

from pathlib import Path

from segmenter.base.errors import plain
from segmenter.base.terminal import say, warn
from segmenter.config.recipe import Recipe, TrainingConfig
from segmenter.devices.strategy import Devices
from segmenter.grid.scenes import Dataset
from segmenter.model.building import build_model, shapes_of, stages_of
from segmenter.model.pretrained.encoder_weights import EncoderWeights
from segmenter.model.receptive_field import network_geometry
from segmenter.model.size import training_bytes_per_image
from segmenter.model.stages import pace_of, part_of
from segmenter.runs.checkpoints import transfer_weights
from segmenter.runs.run import Run
from segmenter.tiles.statistics import band_names
from segmenter.training.beginning.demands import check_buffer
from segmenter.training.beginning.fine_tuning import Source, check_fit, describe_kept, lines_of_change
from segmenter.training.beginning.normalising import normalisation_of
from segmenter.training.beginning.pretraining import frozen_at_random, load_encoder
from segmenter.training.checks import check_memory
from segmenter.training.learner import Learner
from segmenter.training.prepare import Tiles


def new_run(
    recipe: Recipe, dataset: Dataset, tiles: Tiles, path: Path, source: Source | None, devices: Devices
) -> Run:
    """Return the run of a new training, not saved yet; print its model's size and normalisation.

    Args:
        source: another run to take weights from.

    Raises:
        CheckpointError: the weights of `source` do not fit.
        ConfigError: a step exceeds the memory, or the model lacks a stage that the recipe names.
    """
    statistics = tiles.statistics
    bands, classes = len(statistics.mean_C), len(dataset.classes)
    model = build_model(recipe.model, bands, classes, dtype=recipe.training.precision, synchronised=True)
    shapes, names = shapes_of(model), dataset.classes.names
    if source is not None:
        check_fit(source, shapes, recipe, names)
        pixels = dict(zip(names, tiles.index.counts_NK.sum(axis=0).tolist(), strict=True))
        for line in lines_of_change(source.run, tiles.digests, pixels):
            say(plain(line))
    pace = pace_of(stages_of(model, recipe.model), recipe.training)  # refuses stages that the model has not
    network = network_geometry(model)
    check_buffer(recipe.dataset, network)
    side = recipe.tiles.size
    mixed = recipe.training.precision.startswith("mixed")
    normalisation, scenes = normalisation_of(
        recipe, statistics, source, shapes=shapes, classes=names, pace=pace, chief=devices.workers.chief
    )
    memory = training_bytes_per_image(model, side, side, mixed=mixed)
    say(f"model: {model.count_params():,} parameters, {network}, {memory / 2**20:.0f} MiB a tile in training")
    if devices.shares:
        say(_memory_of_each(devices, recipe.training, memory))
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


def _memory_of_each(devices: Devices, training: TrainingConfig, of_a_tile: int) -> str:
    """Return a line on the memory for each device's share of a step."""
    dealt = devices.dealt(training.global_batch)
    at_once = [tiles // training.accumulate for tiles in dealt]
    parts = [
        f"{device.name} {tiles * of_a_tile / 2**20:,.0f} MiB for {tiles} tile{'s' * (tiles != 1)}"
        for device, tiles in zip(devices.used, at_once, strict=True)
    ]
    return f"memory of the tiles at a time: {', '.join(parts)}"


def load_first_weights(
    learner: Learner, run: Run, source: Source | None, pretrained: EncoderWeights | None
) -> None:
    """Load the initial weights of a new training; print their source, and which random ones are frozen."""
    kept: list[str] = []
    line = ""
    if source is not None:
        kept, line = _fine_tuned(learner, run, source)
    elif pretrained is not None:
        line = load_encoder(learner.model, pretrained)
        kept = [path for path in shapes_of(learner.model) if part_of(path) == "encoder"]
    if line and learner.averaged is not None:
        learner.averaged.follow()
    for each in filter(None, (line, frozen_at_random(learner.pace, kept, run.recipe.training.epochs))):
        say(each)


def _fine_tuned(learner: Learner, run: Run, source: Source) -> tuple[list[str], str]:
    """Set matching weights of another run; return their paths, and a line on them."""
    same = source.run.classes.names == run.classes.names
    kept, _ = transfer_weights(learner.model, source.weights, same_classes=same)
    described = describe_kept(shapes_of(learner.model), kept, stages_of(learner.model, run.recipe.model))
    return kept, f"from {source.run.path}: {described}"
