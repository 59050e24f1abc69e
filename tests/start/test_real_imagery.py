"""Real imagery: what is seen is what its descriptions say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from datasets.start.choice import Choice
from datasets.synthetic.make import make_naic2020, make_potsdam
from tests.helpers import made_folders as made

Shared = Callable[[str], Path]


def reasons(choices: tuple[Choice, ...]) -> dict[str, Choice]:
    return {choice.key: choice for choice in choices}


def test_dubai(shared_data: Shared) -> None:
    choices, _, dataset = made.planned(shared_data("dubai"))
    assert len(dataset.scenes) == 45
    assert dataset.classes.encoding == "colours"
    assert set(dataset.classes.names) == {"building", "land", "road", "vegetation", "water"}
    assert set(dataset.classes.ignored) == {(0x9B, 0x9B, 0x9B), (0, 0, 0)}
    assert "172,544 pixels" in reasons(choices)["dataset.ignore"].reason


def test_amazon(shared_data: Shared) -> None:
    choices, _, dataset = made.planned(shared_data("amazon"))
    assert reasons(choices)["dataset.split.leave_out"].value == ["Amazon_181.tiff_34"]
    assert len(dataset.scenes) == 15
    assert (dataset.classes.encoding, dataset.classes.codes().tolist()) == ("codes", [1, 2])


def test_naip(shared_data: Shared) -> None:
    _, _, dataset = made.planned(shared_data("naip"))
    assert dataset.bands == (1, 2, 3, 4)
    assert dataset.classes.codes().tolist() == [0, 1, 2, 3, 4]
    assert (len(dataset.of("train")), len(dataset.of("validation"))) == (4, 2)


def test_a_look_alike_of_potsdam(tmp_path: Path) -> None:
    make_potsdam(tmp_path, scenes=3, seed=1, size=96, padded_names=True)
    choices, recipe, dataset = made.planned(tmp_path)
    assert recipe.dataset.kind == "potsdam"
    assert len(dataset.scenes) == 3
    assert reasons(choices)["dataset.labels"].value == "eroded"


@pytest.mark.parametrize("number", [1, 2])
def test_a_look_alike_of_naic2020(tmp_path: Path, number: int) -> None:
    make_naic2020(tmp_path, scenes=4, seed=1, round=number)
    choices, recipe, dataset = made.planned(tmp_path)
    assert recipe.dataset.kind == "naic2020"
    assert reasons(choices)["dataset.round"].value == number
    assert len(dataset.scenes) == 4


def test_tiles_named_as_naic2020_with_other_codes_are_a_folder(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    for i in range(4):
        made.save(tmp_path / f"{i}.tif", made.image(rng, size=(256, 256)))
        made.save(tmp_path / f"{i}.png", made.label([0, 1, 2], (256, 256), i))
    assert made.planned(tmp_path)[1].dataset.kind == "folder"
