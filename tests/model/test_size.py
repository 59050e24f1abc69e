"""Sizes without a built model: what a checkpoint must hold, and the memory that recipes name."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import CheckpointError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import UNetConfig
from segmenter.model.size import check_weights, weight_shapes
from tests.helpers.refusals import refused

CONFIGS: list[dict[str, Any]] = [
    {"depth": 1, "width": 2},
    {"depth": 3, "width": 3, "max_width": 5, "upsampling": "transpose", "dropout": 0.5},
    {"depth": 2, "width": 4, "normalisation": "none", "upsampling": "bilinear"},
]


@pytest.mark.parametrize(("settings", "synchronised"), [*zip(CONFIGS, (True, False, True), strict=True)])
def test_the_shapes_are_those_of_the_built_model(
    tensorflow: ModuleType, settings: dict[str, Any], synchronised: bool
) -> None:
    from segmenter.model.building import build_model

    config = UNetConfig(**settings)
    model = build_model(config, 5, 7, synchronised=synchronised)
    built = {v.path: tuple(v.shape) for v in model.variables if not v.path.endswith("/masks")}
    shapes = dict(weight_shapes(config, 5, 7))
    assert {name: shapes[name] for name in built} == built
    assert shapes.keys() == built.keys()


def arrays(config: UNetConfig) -> dict[str, Any]:
    return {
        f"model/{name}": np.ones(shape, np.float32) for name, shape in weight_shapes(config, 3, 4).items()
    }


def test_weights_that_do_not_fit_are_refused_without_a_model() -> None:
    """A width of 256 at depth 6 would be 4.4 GB; nothing is made here but the weights that are there."""
    small, huge = UNetConfig(depth=1, width=2), UNetConfig(depth=6, width=256, max_width=2048)
    file, there = Path("run/best.npz"), arrays(small)
    check_weights(there, weight_shapes(small, 3, 4), file)
    with pytest.raises(CheckpointError, match=r"best.npz: .*down0_conv0/kernel of shape \(3, 3, 3, 256\)"):
        check_weights(there, weight_shapes(huge, 3, 4), file)
    with refused(CheckpointError, where="run/best.npz", got="(1, 1, 2, 4)"):
        check_weights(there, weight_shapes(small, 3, 5), file)
    there["model/logits/bias"] = np.zeros(4, "U3")
    with refused(CheckpointError, where="run/best.npz", got="(4,) of <U3"):
        check_weights(there, weight_shapes(small, 3, 4), file)
    there["model/logits/bias"] = np.array([0, np.nan, 0, 0], np.float32)
    with refused(CheckpointError, where="run/best.npz", expected="finite weights, logits/bias"):
        check_weights(there, weight_shapes(small, 3, 4), file)


CARDS, GIB = 4, 1 << 30
SAID = re.compile(r"^# Memory: +about (?P<gib>[\d.]+) GiB a GPU at (?P<cards>\d) × (?P<tiles>\d+) tiles")
FOUND = {
    path.stem: match
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
    for line in path.read_text().splitlines()
    if (match := SAID.match(line))
}
CLASSES = {
    "potsdam": 6,
    "potsdam_pretrained": 6,
    "naic2020": 8,
    "naic2020_pretrained": 8,
    "naic2020_round2": 14,
}
"""Bands and classes of the dataset; others would change the head alone, some megabytes."""


@pytest.mark.parametrize(  # those of a whole ResNet50 take half a minute to build
    "name", [pytest.param(each, marks=[pytest.mark.slow] if "pretrained" in each else []) for each in CLASSES]
)
def test_the_memory_that_a_recipe_names_is_the_formulas(tensorflow: ModuleType, name: str) -> None:
    from segmenter.model.building import build_model
    from segmenter.model.size import training_bytes_per_image

    recipe = load_recipe(Path(__file__).parents[2] / "configs" / f"{name}.yaml")
    precision, side = recipe.training.precision, recipe.tiles.size
    assert int(FOUND[name]["cards"]) == CARDS
    tiles = recipe.training.global_batch // CARDS
    assert int(FOUND[name]["tiles"]) == tiles
    model = build_model(recipe.model, 3, CLASSES[name], dtype=precision, synchronised=True)
    each = training_bytes_per_image(model, side, side, mixed=precision == "mixed_float16")
    parameters = sum(int(variable.shape.num_elements()) for variable in model.trainable_variables)
    assert f"{(tiles * each + 16 * parameters) / GIB + 1:.1f}" == FOUND[name]["gib"]


def test_every_recipe_for_four_cards_says_it() -> None:
    assert set(FOUND) == set(CLASSES)
