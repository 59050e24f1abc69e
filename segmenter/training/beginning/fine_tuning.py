"""Fine-tuning from another run's weights (`--init-from`), checked before the data are indexed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segmenter.base.errors import CheckpointError, WeightsError, counted
from segmenter.config.models import EncoderDecoderConfig, ModelConfig
from segmenter.config.recipe import Recipe, UNetConfig
from segmenter.demands.encoder import bands_seen
from segmenter.grid.scenes import Dataset
from segmenter.model.architectures import FAMILIES
from segmenter.model.pretrained.encoder_weights import EncoderWeights, torch_encoder_weights
from segmenter.model.size import Shape, weight_shapes
from segmenter.model.stages import Pace, joined_stages
from segmenter.runs.checkpoints import Arrays, learned_weights
from segmenter.runs.records import load_origin
from segmenter.runs.run import Run, load_run
from segmenter.runs.scenes import Digests, changes_since

_NOT_ENCODER = ("decoder_", "logits")
"""Beginnings of the names of all other layers, see `model.encoders`."""


def find_encoder_weights(config: ModelConfig, bands: int) -> EncoderWeights | None:
    """Return the initial weights of a recipe's encoder; None: random.

    Raises:
        WeightsError: the weights cannot be used.
    """
    if not isinstance(config, EncoderDecoderConfig) or config.weights is None:
        return None
    if config.encoder in FAMILIES:
        return torch_encoder_weights(config, bands)
    from segmenter.training.beginning.keras_weights import keras_encoder_weights  # loads TensorFlow

    return keras_encoder_weights(config, bands)


def load_encoder(model: Any, weights: EncoderWeights) -> str:
    """Set an encoder's weights in a model; return a line on them.

    Raises:
        WeightsError: a weight is missing or has another shape; the message names the first.
    """
    from segmenter.training.beginning.keras_weights import weight_key

    count = 0
    for variable in model.variables:
        if variable.path.startswith(_NOT_ENCODER) or variable.path.endswith("/masks"):
            continue
        array = weights.arrays.get(weight_key(variable.path))
        if array is None or array.shape != tuple(variable.shape):
            got = "none" if array is None else str(array.shape)
            raise WeightsError(
                weights.describe("no"), expected=f"{variable.path} of shape {tuple(variable.shape)}", got=got
            )
        variable.assign(array)
        count += math.prod(array.shape)
    return weights.describe(f"{count:,}")


def frozen_at_random(pace: Pace, known: Collection[str], epochs: int) -> str:
    """Return a warning if untrained random weights are frozen at the start; else empty text."""
    by_duration: dict[str, list[str]] = {}
    for stage, paths in pace.stages.items():
        if anew := [path for path in paths if path not in known and not pace.trains(path, 0)]:
            if any(pace.trains(path) for path in anew):
                long = f"in {pace.frozen_epochs} of {epochs} epochs (training.freeze_encoder)"
            else:
                norms = pace.norms.issuperset(anew)
                long = "in BatchNorm (training.freeze_norms)" if norms else "for good (training.rates)"
            by_duration.setdefault(long, []).append(stage)
    if not by_duration:
        return ""
    stages = "; ".join(f"{joined_stages(names)} {long}" for long, names in by_duration.items())
    return (
        f"warning: random weights are frozen: {stages}; start from trained ones (model.weights, --init-from)"
    )


_PARTS = ("encoder", "bottleneck", "decoder", "head")
LEAST_KEPT = 0.5
"""Share of the new model's parameters below which a start from another run is more likely a slip."""
_MOST_NAMED = 5
"""Scenes of a kind of change that are named."""


@dataclass(frozen=True)
class StartingRun:
    """Another run to start from, with its weights in memory.

    Attributes:
        partial: `--init-from-partial`: accept it however few of its weights fit.
    """

    run: Run
    weights: Arrays
    partial: bool = False


def find_source(path: Path, recipe: Recipe, dataset: Dataset, *, partial: bool = False) -> StartingRun:
    """Return the run of `--init-from`, if its weights fit the recipe's model; without TensorFlow.

    Args:
        partial: `--init-from-partial`: accept however few weights fit.

    Raises:
        CheckpointError: the path is no run, its checkpoint is missing or damaged, or under half of the new
            model's parameters would be taken from it.
    """
    run = load_run(path)
    source = StartingRun(run, learned_weights(run.weights()), partial)
    if isinstance(recipe.model, UNetConfig):
        shapes = weight_shapes(recipe.model, bands_seen(dataset), len(dataset.classes))
        check_fit(source, shapes, recipe, dataset.classes.names)
    elif _network(run.recipe.model) != _network(recipe.model) and not partial:
        raise _little_fits(source, recipe, "none of its encoder")
    return source


def _network(model: ModelConfig) -> str:
    """Return the network's name; most weights fit only if it is the same."""
    return model.encoder if isinstance(model, EncoderDecoderConfig) else model.kind


def check_fit(source: StartingRun, shapes: Mapping[str, Shape], recipe: Recipe, classes: list[str]) -> None:
    """Refuse a source that provides less than half of the new model, unless `partial`.

    Args:
        shapes: shapes of the new model's weights by path.

    Raises:
        CheckpointError: too few weights fit; the message lists the models' differences.
    """
    kept = fitting(source, shapes, classes)
    count, total = _parameters(shapes, kept), _parameters(shapes, shapes)
    if count >= LEAST_KEPT * total or source.partial:
        return
    raise _little_fits(source, recipe, f"{count:,} of its {total:,} parameters" if kept else "none")


def _little_fits(source: StartingRun, recipe: Recipe, found: str) -> CheckpointError:
    return CheckpointError(
        f"--init-from {source.run.path}",
        expected="weights for at least half of the model",
        got=f"{found} ({_difference(source.run, recipe)})",
        remedy="take that run's model section, or say --init-from-partial to start from what fits",
    )


def fitting(source: StartingRun, shapes: Mapping[str, Shape], classes: list[str]) -> list[str]:
    """Return the paths of weights that `runs.checkpoints.transfer_weights` would keep."""
    head = "logits/" if source.run.classes.names != classes else None
    return [
        path
        for path, shape in shapes.items()
        if (found := source.weights.get(f"model/{path}")) is not None
        and found.shape == shape
        and not (head and path.startswith(head))
    ]


def describe_kept(shapes: Mapping[str, Shape], kept: Collection[str], stage_of: Mapping[str, str]) -> str:
    """Return a line on the parameters kept, and on stages kept, partly kept and random."""
    stages: dict[str, list[str]] = {}
    for path in sorted(shapes, key=lambda path: _PARTS.index(stage_of[path].split(" ")[0])):
        stages.setdefault(stage_of[path], []).append(path)
    known = set(kept)
    by_state: dict[str, list[str]] = {"kept": [], "kept in part": [], "anew": []}
    for stage, paths in stages.items():
        count_kept = sum(path in known for path in paths)
        by_state["anew" if not count_kept else "kept" if count_kept == len(paths) else "kept in part"].append(
            stage
        )
    count, total = _parameters(shapes, known), _parameters(shapes, shapes)
    parts = [f"{what}: {joined_stages(names)}" for what, names in by_state.items() if names]
    return f"{count:,} of {total:,} parameters ({count / total:.1%}) kept; {'; '.join(parts)}"


def _parameters(shapes: Mapping[str, Shape], paths: Collection[str]) -> int:
    return sum(math.prod(shapes[path]) for path in paths)


def _difference(source: Run, recipe: Recipe) -> str:
    """Return the settings in which the two models differ."""
    theirs, ours = (r.model.model_dump(exclude={"dropout"}) for r in (source.recipe, recipe))
    if theirs["kind"] != ours["kind"]:  # they share no other setting
        theirs, ours = {"kind": theirs["kind"]}, {"kind": ours["kind"]}
    changed = [
        f"model.{key}: {theirs[key]} there, {ours[key]} here" for key in ours if theirs[key] != ours[key]
    ]
    return ", ".join(changed) or "its weights are of another model"


def lines_of_change(source: Run, digests: Digests, pixels: Mapping[str, int]) -> Iterator[str]:
    """Yield lines on scenes and classes that differ from those of an earlier run; none if it has no record.

    Args:
        pixels: labelled pixels of the training tiles by class.
    """
    changes = changes_since(source.path, digests)
    if changes is None:
        return
    told = [
        f"{counted(len(names), 'scene')} {how} ({_few(names)})" for how, names in changes.items() if names
    ]
    yield f"since {source.path}: {'; '.join(told) or 'the same scenes and labels'}"
    origin = load_origin(source.path)
    before = {} if origin is None else origin.pixels
    moved = [
        f"{name} {before.get(name, 0):,} → {count:,}"
        for name, count in pixels.items()
        if before and count != before.get(name, 0)
    ]
    if moved:
        yield f"labelled pixels of the training tiles since then: {', '.join(moved)}"


def _few(names: list[str]) -> str:
    more = f", … {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
