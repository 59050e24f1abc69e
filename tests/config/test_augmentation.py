"""Section `augmentation`: listed transforms survive every form of a recipe, and a list is a whole section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.augmentation import in_words
from segmenter.config.reading import describe_recipe, dump_recipe, load_recipe, recipe_from
from segmenter.config.recipe import Recipe
from tests.helpers.refusals import refused

GAMMA = {"name": "RandomGamma", "p": 0.3, "gamma_limit": [80, 120]}
ELASTIC = {"name": "ElasticTransform", "p": 0.5, "alpha": 30.5, "approximate": True}


def recipe(augmentation: Any) -> Recipe:
    data = {"name": "t", "dataset": {"kind": "potsdam", "root": "unused"}, "augmentation": augmentation}
    return recipe_from(data, "recipe.yaml")


@pytest.mark.parametrize(
    "section",
    [
        {"transforms": [GAMMA, ELASTIC]},
        {"mosaic": 0.2, "copy_paste": {"p": 0.5, "classes": ["car"]}},
        {"copy_paste": {}},
        [ELASTIC],
        {"scale": 0.1, "probability": {"affine": 0.5, "brightness_contrast": 0.25}},
    ],
    ids=["transforms", "mosaic and copy-paste", "copy-paste", "list", "probability"],
)
def test_what_is_written_is_what_is_read(tmp_path: Path, section: Any) -> None:
    before = recipe(section)
    for text in (dump_recipe(before), describe_recipe(before)):
        (tmp_path / "again.yaml").write_text(text)
        again = load_recipe(tmp_path / "again.yaml")
        assert again == before
        assert again.model_dump(mode="json") == before.model_dump(mode="json")


def test_a_list_is_all_the_augmentation_there_is() -> None:
    listed = recipe([GAMMA]).augmentation
    assert [(one.name, one.p, one.parameters) for one in listed.transforms] == [
        ("RandomGamma", 0.3, {"gamma_limit": [80, 120]})
    ]
    assert not any((listed.d4, listed.brightness, listed.contrast, listed.scale, listed.mosaic))
    kept = recipe({"transforms": [GAMMA]}).augmentation
    assert kept.d4
    assert kept.brightness == 0.2
    assert kept.transforms == listed.transforms


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "d4 (default), brightness 0.2 (default), contrast 0.2 (default)"),
        ({"scale": 0.5, "brightness": 0}, "d4 (default), scale 0.5, contrast 0.2 (default)"),
        ({"d4": True, "brightness": 0.2, "contrast": 0}, "d4, brightness 0.2"),
        ({"d4": False, "brightness": 0, "contrast": 0}, "none"),
        ([GAMMA], "RandomGamma"),
        (
            {"scale_to": [0.2, 1], "mosaic": 0.1, "brightness": 0, "contrast": 0},
            "d4 (default), scale_to 0.2 1, mosaic 0.1",
        ),
    ],
)
def test_defaults_are_told_from_what_the_recipe_names(section: Any, said: str) -> None:
    assert in_words(recipe(section).augmentation) == said


def test_transforms_can_be_set_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(recipe({})))
    override = "augmentation.transforms=[{name: RandomGamma, p: 0.3, gamma_limit: [80, 120]}]"
    assert load_recipe(file, [override]) == recipe({"transforms": [GAMMA]}).model_copy()
    pasted = load_recipe(file, ["augmentation.copy_paste.p=0.1", "augmentation.mosaic=0.2"]).augmentation
    assert pasted.copy_paste is not None
    assert (pasted.copy_paste.p, pasted.mosaic) == (0.1, 0.2)


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ({"transforms": [{"p": 0.5}]}, "augmentation.transforms.0.name"),
        ({"transforms": [{"name": "D4", "p": 0}]}, "transforms.0.p"),
        ({"transforms": ["D4"]}, "augmentation.transforms.0"),
        ({"transforms": {"name": "D4"}}, "augmentation.transforms"),
        ({"copy_paste": {"classes": []}}, "augmentation.copy_paste.classes"),
        ({"copy_paste": {"clases": ["car"]}}, "copy_paste.clases"),
        ({"transforms": [{"name": "D4", "x": float("nan")}]}, "transforms.0"),
        ({"probability": {"affine": 0.5}}, "probability.affine"),
        ({"probability": {"d4": 0}}, "probability.d4"),
    ],
)
def test_mistakes_are_named_in_one_line(section: Any, where: str) -> None:
    with refused(ConfigError, where=where) as caught:
        recipe(section)
    assert "\n" not in str(caught.value)
