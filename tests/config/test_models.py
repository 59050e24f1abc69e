"""Settings of pretrained weights: what they cannot be is said once, in the words of a recipe."""

from __future__ import annotations

from typing import Any

import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.reading import dump_recipe, recipe_from
from segmenter.config.recipe import Recipe

_BAND = "expected red, green, blue, null, or a channel's number from 1"


def read(**model: Any) -> Recipe:
    section = {"kind": "encoder_decoder", "weights": "imagenet", **model}
    return recipe_from({"name": "r", "dataset": {"kind": "potsdam", "root": "x"}, "model": section}, "r.yaml")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"weight_bands": ["red", "green", "nir"]}, f"weight_bands.2: {_BAND}, got 'nir'"),
        ({"weight_bands": [True, 1, 2]}, f"weight_bands.0: {_BAND}, got True"),
        ({"weight_bands": [1, 0, 2]}, f"weight_bands.1: {_BAND}, got 0"),
        ({"weight_bands": [1.0]}, f"weight_bands.0: {_BAND}, got 1.0"),
        ({"weight_bands": [[1]]}, f"weight_bands.0: {_BAND}, got [1]"),
        ({"weights": ""}, "weights: expected imagenet or a file of weights; null: from scratch, got ''"),
        ({"weights": " "}, "weights: expected imagenet or a file of weights; null: from scratch, got ' '"),
    ],
)
def test_a_mistake_takes_one_sentence_without_inner_names(model: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**model)
    assert str(refused.value) == f"r.yaml: model.{said}"


def test_channels_are_colours_numbers_and_null() -> None:
    recipe = read(weight_bands=["red", 2, None, "blue"])
    assert recipe.model.weight_bands == ("red", 2, None, "blue")  # type: ignore[union-attr]
    assert "weight_bands:\n  - red\n  - 2\n  - null\n  - blue\n" in dump_recipe(recipe)
