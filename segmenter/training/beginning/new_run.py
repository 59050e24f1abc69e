"""New run: its record and its initial weights.

A trained first convolution expects one normalisation. ImageNet's is passed on from run to run, band by band;
statistics of scenes are replaced by those of the new scenes, which give other imagery the same mean and
deviation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from segmenter.base.errors import WeightsError, plain
from segmenter.base.terminal import say, warn
from segmenter.config.models import EncoderDecoderConfig, ModelConfig
from segmenter.config.recipe import Recipe, TrainingConfig
from segmenter.demands.dataset import check_buffer
from segmenter.devices.strategy import Devices
from segmenter.grid.scenes import Dataset
from segmenter.model.building import build_model, shapes_of, stages_of
from segmenter.model.normalisation import Normalisation
from segmenter.model.pretrained.encoder_weights import EncoderWeights
from segmenter.model.pretrained.value_range import input_normalisation
from segmenter.model.receptive_field import network_geometry
from segmenter.model.size import Shape, training_bytes_per_image
from segmenter.model.stages import Pace, pace_of, part_of
from segmenter.runs.checkpoints import transfer_weights
from segmenter.runs.run import Run
from segmenter.tiles.statistics import BandStatistics, band_names
from segmenter.training.beginning.fine_tuning import (
    StartingRun,
    check_fit,
    describe_kept,
    fitting,
    frozen_at_random,
    lines_of_change,
    load_encoder,
)
from segmenter.training.checks import check_memory
from segmenter.training.learner import Learner
from segmenter.training.prepare import TrainingTiles

_SAME, _NOTABLE = 0.005, 0.1
"""Shares of a deviation, or of a ratio of two: no difference; enough to harm a frozen layer."""


def normalisation_of(
    recipe: Recipe,
    statistics: BandStatistics,
    source: StartingRun | None = None,
    *,
    shapes: Mapping[str, Shape],
    classes: list[str],
    pace: Pace,
    chief: bool = True,
) -> tuple[Normalisation, Normalisation | None]:
    """Return the model's normalisation, and that of the training scenes if different; print it.

    Args:
        shapes, classes, pace: those of the new model.
        chief: True on the chief of a cluster; other workers do not know the source and use the chief's
            choice.

    Raises:
        WeightsError: the recipe requests the weights' normalisation, but it is impossible.
    """
    scenes, config = Normalisation.of(statistics.mean_C, statistics.std_C), recipe.model
    if not chief:
        return scenes, None
    if source is not None:
        first = next((path for path, shape in shapes.items() if len(shape) == 4), "")
        kept = first in fitting(source, shapes, classes)
        chosen, lines = _start_normalisation(source.run, config, scenes, statistics.dtype, kept=kept)
        if kept and not pace.trains(first, 0):
            lines += _frozen_otherwise(chosen, source.run, statistics.dtype)
    elif isinstance(config, EncoderDecoderConfig) and config.weights is not None:
        chosen, line = input_normalisation(config, scenes, statistics.dtype)
        lines = [line]
    else:
        return scenes, None
    say("\n".join(lines))
    return chosen, None if chosen == scenes else scenes


def _start_normalisation(
    run: Run, model: ModelConfig, scenes: Normalisation, dtype: str, *, kept: bool
) -> tuple[Normalisation, list[str]]:
    """Return the normalisation for a start from a run's weights, and lines on it.

    Args:
        kept: True if the run's first layer is kept.
    """
    asked = getattr(model, "input_normalisation", "auto")
    as_there, why = kept and dtype == run.dtype, ""
    if not kept:
        why = f"the first layer of {run.path} does not fit, and starts anew"
    elif not as_there:
        why = f"{run.path} saw {run.dtype}, the data are {dtype}"
    if asked == "weights" and why:
        raise WeightsError(
            "model.input_normalisation: weights",
            expected=f"data for which the weights of --init-from keep their normalisation, but {why}",
            remedy="use scenes",
        )
    theirs = [False] * len(scenes.mean)
    if as_there and asked != "scenes":
        theirs = [asked == "weights" or own for own in _of_weights(run)]
    pairs = list(enumerate(theirs))
    chosen = Normalisation.of(
        [(run.normalisation if t else scenes).mean[i] for i, t in pairs],
        [(run.normalisation if t else scenes).std[i] for i, t in pairs],
    )
    if not as_there:
        return chosen, [f"normalisation: by the training scenes ({why})"]
    return chosen, [
        f"normalisation: {_normalisation_text(theirs, run)} ({_difference(scenes, run, taken=all(theirs))})"
    ]


def _of_weights(run: Run) -> list[bool]:
    """Return for each band True if a run's normalisation is that of its initial weights."""
    own = run.normalisation
    scenes = run.scenes or own
    pairs = zip(zip(own.mean, own.std, strict=True), zip(scenes.mean, scenes.std, strict=True), strict=True)
    return [there != here for there, here in pairs]


def _normalisation_text(theirs: list[bool], run: Run) -> str:
    if not any(theirs):
        return "by the training scenes"
    if all(theirs):
        return f"as {run.path} has it"
    bands = [", ".join(str(i + 1) for i, t in enumerate(theirs) if t is which) for which in (True, False)]
    return f"bands {bands[0]} as {run.path} has them, bands {bands[1]} by the training scenes"


def _shift(scenes: Normalisation, there: Normalisation) -> tuple[float, float, float]:
    """Return the largest difference of means in deviations, and the least and largest deviation ratio."""
    means = zip(scenes.mean, there.mean, there.std, strict=True)
    ratios = [here / std for here, std in zip(scenes.std, there.std, strict=True)]
    return max(abs(here - mean) / std for here, mean, std in means), min(ratios), max(ratios)


def _differs(shift: tuple[float, float, float], by: float) -> bool:
    mean, least, most = shift
    return mean > by or least < 1 - by or most > 1 + by


def _difference(scenes: Normalisation, run: Run, *, taken: bool) -> str:
    """Return text on how far the scenes' statistics are from a run's normalisation."""
    shift = _shift(scenes, run.normalisation)
    if not _differs(shift, _SAME):
        return f"those of the scenes and of {run.path} are the same"
    mean, least, most = (f"{value:.2f}" for value in shift)
    ratio = least if least == most else f"{least} to {most}"
    beside = "it" if taken else f"that of {run.path}"
    means = f"the scenes have means up to {mean} deviations off"
    return f"beside {beside}, {means}, and {ratio} times the deviations"


def _frozen_otherwise(chosen: Normalisation, run: Run, dtype: str) -> list[str]:
    """Return a warning if a frozen first layer would see other input values than in its training."""
    if dtype != run.dtype or not _differs(_shift(chosen, run.normalisation), _NOTABLE):
        return []
    return [
        f"warning: the encoder's first layer is frozen, and its input is not normalised as in {run.path}: "
        "let it train, as with training.rates: {encoder: 0.1} in place of freeze_encoder or a rate of 0"
    ]


def new_run(
    recipe: Recipe,
    dataset: Dataset,
    tiles: TrainingTiles,
    path: Path,
    source: StartingRun | None,
    devices: Devices,
) -> Run:
    """Return the run of a new training, not saved yet; print its model's size and normalisation.

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
    check_buffer(recipe, dataset, network)
    side = recipe.tiles.size
    mixed = recipe.training.precision.startswith("mixed")
    normalisation, scenes = normalisation_of(
        recipe, statistics, source, shapes=shapes, classes=names, pace=pace, chief=devices.workers.chief
    )
    memory = training_bytes_per_image(model, side, side, mixed=mixed)
    say(f"model: {model.count_params():,} parameters, {network}, {memory / 2**20:.0f} MiB a tile in training")
    if devices.shares:
        say(_memory_of_each(devices, recipe.training, memory))
    parameters = model.count_params()
    if devices.kind.memory_known and (line := check_memory(recipe, devices, memory, parameters)):
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
        scene_means=statistics.scenes,
        metres_per_pixel=tiles.metres_per_pixel,
        labels=dataset.labels,
        network=network,
        tiles=tiles.fingerprint(),
    )


def _memory_of_each(devices: Devices, training: TrainingConfig, of_a_tile: int) -> str:
    """Return a line on the memory for each device's share of a step."""
    dealt = devices.replica_tiles(training.global_batch)
    at_once = [tiles // training.accumulate for tiles in dealt]
    parts = [
        f"{device.name} {tiles * of_a_tile / 2**20:,.0f} MiB for {tiles} tile{'s' * (tiles != 1)}"
        for device, tiles in zip(devices.used, at_once, strict=True)
    ]
    return f"memory of the tiles at a time: {', '.join(parts)}"


def load_first_weights(
    learner: Learner, run: Run, source: StartingRun | None, pretrained: EncoderWeights | None
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


def _fine_tuned(learner: Learner, run: Run, source: StartingRun) -> tuple[list[str], str]:
    """Set matching weights of another run; return their paths, and a line on them."""
    same = source.run.classes.names == run.classes.names
    kept, _ = transfer_weights(learner.model, source.weights, same_classes=same)
    described = describe_kept(shapes_of(learner.model), kept, stages_of(learner.model, run.recipe.model))
    return kept, f"from {source.run.path}: {described}"
