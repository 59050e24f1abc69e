"""Input normalisation at the start of a training: by its scenes, or from its initial weights.

A trained first convolution expects one normalisation. ImageNet's is passed on from run to run, band by band;
statistics of scenes are replaced by those of the new scenes, which give other imagery the same mean and
deviation.
"""

from __future__ import annotations

from collections.abc import Mapping

from segmenter.base.errors import WeightsError
from segmenter.base.terminal import say
from segmenter.config.models import EncoderDecoderConfig, ModelConfig
from segmenter.config.recipe import Recipe
from segmenter.model.normalisation import Normalisation
from segmenter.model.pretrained.value_range import input_normalisation
from segmenter.model.size import Shape
from segmenter.model.stages import Pace
from segmenter.runs.run import Run
from segmenter.tiles.statistics import BandStatistics
from segmenter.training.beginning.fine_tuning import Source, fitting

_SAME, _NOTABLE = 0.005, 0.1
"""Shares of a deviation, or of a ratio of two: no difference; enough to harm a frozen layer."""


def normalisation_of(
    recipe: Recipe,
    statistics: BandStatistics,
    source: Source | None = None,
    *,
    shapes: Mapping[str, Shape],
    classes: list[str],
    pace: Pace,
    chief: bool = True,
) -> tuple[Normalisation, Normalisation | None]:
    """Return the model's normalisation, and that of the training scenes if different; print it.

    Args:
        source: another run to take weights from.
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
        chosen, lines = _beside(source.run, config, scenes, statistics.dtype, kept=kept)
        if kept and not pace.trains(first, 0):
            lines += _frozen_otherwise(chosen, source.run, statistics.dtype)
    elif isinstance(config, EncoderDecoderConfig) and config.weights is not None:
        chosen, line = input_normalisation(config, scenes, statistics.dtype)
        lines = [line]
    else:
        return scenes, None
    say("\n".join(lines))
    return chosen, None if chosen == scenes else scenes


def _beside(
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
    return chosen, [f"normalisation: {_named(theirs, run)} ({_difference(scenes, run, taken=all(theirs))})"]


def _of_weights(run: Run) -> list[bool]:
    """Return for each band True if a run's normalisation is that of its initial weights."""
    own = run.normalisation
    scenes = run.scenes or own
    pairs = zip(zip(own.mean, own.std, strict=True), zip(scenes.mean, scenes.std, strict=True), strict=True)
    return [there != here for there, here in pairs]


def _named(theirs: list[bool], run: Run) -> str:
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
