"""Fine-tuning from another run's weights (`--init-from`): what fits is known before the data are indexed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from segmenter.config.recipe import Recipe
from segmenter.errors import CheckpointError
from segmenter.model.stages import joined_stages
from segmenter.model.weight_shapes import Shape, stage_of, weight_shapes
from segmenter.raster import open_raster
from segmenter.runs.arrays import Arrays
from segmenter.runs.run import Run, load_run
from segmenter.runs.weights import learned_weights
from segmenter.scenes import Dataset

LEAST_KEPT = 0.5
"""Share of the new model's parameters below which a start from another run is more likely a slip."""


@dataclass(frozen=True)
class Source:
    """Another run to start from, with its weights in memory.

    Attributes:
        run: what its directory says.
        weights: those that predict, under `model/`.
    """

    run: Run
    weights: Arrays


def find_source(path: Path, recipe: Recipe, dataset: Dataset, *, partial: bool = False) -> Source:
    """The run that `--init-from` names, whose weights fit the recipe's model; imports no TensorFlow.

    Args:
        partial: `--init-from-partial`: however few of them do.

    Raises:
        CheckpointError: it is no run, has no checkpoint yet or a damaged one, or less than half of the
            new model's parameters would be kept.
    """
    run = load_run(path)
    source = Source(run, learned_weights(run.weights()))
    if not partial:
        _check_fit(source, recipe, dataset)
    return source


def _check_fit(source: Source, recipe: Recipe, dataset: Dataset) -> None:
    shapes = weight_shapes(recipe.model, _bands(recipe, dataset), len(dataset.classes))
    kept = fitting(source, shapes, dataset.classes.names)
    count, total = _parameters(shapes, kept), _parameters(shapes, shapes)
    if count >= LEAST_KEPT * total:
        return
    found = f"{count:,} of its {total:,} parameters" if kept else "none"
    raise CheckpointError(
        f"--init-from {source.run.path}: expected weights for at least half of the model, got {found} "
        f"({_difference(source.run, recipe)}); take that run's model section, or say --init-from-partial "
        "to start from what fits"
    )


def fitting(source: Source, shapes: Mapping[str, Shape], classes: list[str]) -> list[str]:
    """Paths of the weights that `runs.weights.transfer_weights` keeps for a model of such shapes."""
    head = "logits/" if source.run.classes.names != classes else None
    return [
        path
        for path, shape in shapes.items()
        if (found := source.weights.get(f"model/{path}")) is not None
        and found.shape == shape
        and not (head and path.startswith(head))
    ]


def describe_kept(shapes: Mapping[str, Shape], kept: Collection[str], depth: int) -> str:
    """Kept parameters, and the stages that are kept, kept in part and begun anew, in a line."""
    stages: dict[str, list[str]] = {}
    for path in shapes:
        stages.setdefault(stage_of(path, depth), []).append(path)
    known = set(kept)
    found: dict[str, list[str]] = {"kept": [], "kept in part": [], "anew": []}
    for stage, paths in stages.items():
        there = sum(path in known for path in paths)
        found["anew" if not there else "kept" if there == len(paths) else "kept in part"].append(stage)
    count, total = _parameters(shapes, known), _parameters(shapes, shapes)
    parts = [f"{what}: {joined_stages(names)}" for what, names in found.items() if names]
    return f"{count:,} of {total:,} parameters ({count / total:.1%}) kept; {'; '.join(parts)}"


def _parameters(shapes: Mapping[str, Shape], paths: Collection[str]) -> int:
    return sum(math.prod(shapes[path]) for path in paths)


def _bands(recipe: Recipe, dataset: Dataset) -> int:
    """Bands that the model sees, from the recipe or the first training image."""
    if dataset.bands is not None:
        return len(dataset.bands)
    for scene in dataset.of("train")[:1]:
        with open_raster(scene.image, dataset.bands) as raster:
            return len(raster.bands)
    return 3  # no scene to train on: refused where the data are indexed


def _difference(source: Run, recipe: Recipe) -> str:
    """Differences of the two models, as settings of the recipe."""
    theirs, ours = (r.model.model_dump(exclude={"dropout"}) for r in (source.recipe, recipe))
    changed = [
        f"model.{key}: {theirs[key]} there, {ours[key]} here" for key in ours if theirs[key] != ours[key]
    ]
    return ", ".join(changed) or "its weights are of another model"
