"""Augmentation before a training starts: refused before scenes are read, compared on resuming."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets import load_dataset
from datasets.__main__ import main
from segmenter.base.errors import ConfigError
from segmenter.config.reading import load_recipe
from segmenter.training.prepare import _check_same_recipe, prepare_tiles
from tests.helpers.made_training import made


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "augmentation.transforms=[{name: RandomGama}]",
            r"no transform RandomGama; did you mean RandomGamma",
        ),
        (
            "augmentation.transforms=[{name: D4}, {name: CLAHE}]",
            r"1 \(CLAHE\): fails on tiles of 4 bands of ui",
        ),
        ("augmentation.copy_paste.classes=[scrace]", r"got scrace; did you mean scarce\?"),
        ("augmentation.hue=10", r"expected 8-bit images of 3 bands, got 4 of uint16"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_scenes_are_read_through(
    tmp_path: Path, setting: str, said: str
) -> None:
    file = made(tmp_path, "uint16", 4)
    recipe = load_recipe(file, [setting])
    with pytest.raises(ConfigError, match=said):
        prepare_tiles(recipe, load_dataset(recipe))
    assert not list(tmp_path.glob(".tile-index/*"))
    with pytest.raises(ConfigError, match=said):  # after what is wrong with the data
        main(["check", str(file), "--set", setting])


def test_classes_that_no_tile_holds_are_refused_once_the_index_is_known(tmp_path: Path) -> None:
    recipe = load_recipe(
        made(tmp_path), ["augmentation.copy_paste={classes: [scarce]}", "sampling.min_pixels=900"]
    )
    with pytest.raises(
        ConfigError, match=r"expected classes that training tiles hold with 900 pixels .*scarce"
    ):
        prepare_tiles(recipe, load_dataset(recipe))


def test_a_run_is_not_resumed_with_other_transforms(tmp_path: Path) -> None:
    file = made(tmp_path, scenes=2)
    listed = "augmentation.transforms=[{name: RandomGamma, gamma_limit: [80, %d]}]"
    known = load_recipe(file, [listed % 120])
    _check_same_recipe(tmp_path, known, load_recipe(file, [listed % 120]))
    with pytest.raises(ConfigError, match=r"cannot resume under another recipe \(augmentation.transforms: "):
        _check_same_recipe(tmp_path, known, load_recipe(file, [listed % 121]))
    with pytest.raises(ConfigError, match=r"\(augmentation.copy_paste"):
        _check_same_recipe(
            tmp_path, known, load_recipe(file, [listed % 120, "augmentation.copy_paste.p=0.5"])
        )
