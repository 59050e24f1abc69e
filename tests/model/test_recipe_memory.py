"""What the recipes for four cards say of their memory is what the formula gives (docs/settings.md)."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from segmenter.config.reading import load_recipe

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
"""Of the dataset; other numbers would change the head alone, some megabytes."""


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


def test_the_template_fits_a_small_machine_and_says_how_much_it_takes(tensorflow: ModuleType) -> None:
    from segmenter.model.building import build_model
    from segmenter.model.size import training_bytes_per_image

    path = Path(__file__).parents[2] / "configs" / "folder.yaml"
    recipe = load_recipe(path)
    model = build_model(recipe.model, 4, 9, dtype="float32", synchronised=True)
    tiles = recipe.training.global_batch // recipe.training.accumulate
    needed = tiles * training_bytes_per_image(model, recipe.tiles.size, recipe.tiles.size) / GIB
    said = re.search(r"small: ([\d.]+) GiB a step", path.read_text())
    assert said is not None
    assert abs(needed - float(said[1])) < 0.1
    assert needed < 2


def test_every_recipe_for_four_cards_says_it() -> None:
    assert set(FOUND) == set(CLASSES)
