"""Run directories as trainings leave them, which were never trained: records, log, scores, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segmenter.config.recipe import Recipe
from segmenter.labels import ClassMap, LandCoverClass
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.run import Run
from tests.helpers.made_checkpoints import RECIPE

NAMES = ("water", "forest", "road")


def bare_run(path: Path, names: Sequence[str] = NAMES, recipe: Recipe = RECIPE, **changes: Any) -> Run:
    """A run whose run.json and recipe.yaml are written."""
    classes = ClassMap(
        tuple(LandCoverClass(name, (37 * i % 256, 91 * i % 256, 200), i) for i, name in enumerate(names)),
        "codes",
    )
    plain, network = Normalisation.of([0.0] * 3, [1.0] * 3), NetworkGeometry(2, 9)
    run = Run(path, recipe, classes, None, 3, "uint8", plain, 0.5, "full", network, **changes)
    run.save()
    return run
