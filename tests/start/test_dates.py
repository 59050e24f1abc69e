"""Time series without georeference: names without dates tell places, or are asked about."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.contents import Contents
from datasets.start.choice import nest_choices
from datasets.start.draft import Draft
from datasets.start.groups import Groups, groups_of
from datasets.start.look import look
from datasets.start.split import longest_buffer, split_of
from segmenter.config.reading import recipe_from
from segmenter.grid.geometry import Size
from segmenter.grid.scenes import Scene
from tests.helpers import made_folders as made

DAYS = ("20190604", "20190719", "20200611", "20200830")
DASHED = ("2019-06-04", "2019-07-19", "2020-06-11", "2021-01-30")
MONTHS = ("201906", "201907", "202006")
YEARS = ("2018", "2019", "2020")


def found_groups(names: list[str]) -> Groups:
    """Return the groups of scenes of these names whose pixels tell nothing."""
    root = Path("/data")
    scenes = [Scene(name, root / name, None, name, "train") for name in names]
    plain: Any = SimpleNamespace(crs=None, transform=None, size=Size(9, 9))
    return groups_of(root, scenes, [plain] * len(names), 5.0)


@pytest.mark.parametrize(
    ("form", "dates"),
    [
        ("tile_{:02}_{}.png", DAYS),
        ("tile_{:02}_{}.png", DASHED),
        ("tile_{:02}_{}.png", [day.replace("-", "_") for day in DASHED]),
        ("tile_{:02}_{}.png", MONTHS),
        ("tile_{:02}_{}.png", YEARS),
        ("{1}_tile_{0:02}.png", YEARS),
        ("{1}/tile_{0:02}.png", YEARS),
        ("images/{1}/tile_{0:02}.png", ["2019_06", "2019_07", "2020_06"]),
        ("tile_{:02}/{}.png", DAYS),
        ("tile_19{:02}_{}.png", DAYS),
        ("tile_{1}_{0:02}.png", YEARS),
        ("S2A_{1}T101031_R108_{0:02}_{1}T141516.tif", DAYS),
        ("{1}/a_{1}0604_{0:02}_x.png", YEARS),
    ],
)
def test_places_are_what_names_tell_without_dates(form: str, dates: list[str]) -> None:
    names = [form.format(place, date) for place, date in product(range(1, 9), dates)]
    found = found_groups(names)
    assert found.of_S.tolist() == [place for place in range(8) for _ in dates]
    assert found.regex is not None
    assert len(found.names) == 8
    assert found.asked is None


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"2019{month:02}{day:02}.png" for month in range(1, 5) for day in (3, 7, 22)], 12),
        ([f"{year}.png" for year in range(1999, 2016)], 17),
        ([f"tile_{number}.png" for number in range(1999, 2006)], 7),
        ([f"{place}/tile_{number}.png" for place in "abc" for number in range(1999, 2006)], 3),
        ([f"20{i}_{i}.png" for i in range(10, 30)], 20),
        ([f"{p}_2021/{z}_UN/im_{i}.png" for p in "abc" for z in "xyz" for i in range(4)], 9),
    ],
)
def test_dates_alone_and_numbers_like_years_name_no_other_places(names: list[str], groups: int) -> None:
    found = found_groups(names)
    assert found.count == groups
    assert found.asked is None


def test_doubtful_places_at_several_dates_are_asked_about() -> None:
    north = [f"{place}_{day}.png" for place in ("north", "south") for day in DAYS]
    for names in (
        north,
        north[:7],
        [f"{s}_{y}_{m:02}.png" for s in "ab" for y in YEARS for m in range(1, 8)],
    ):
        found = found_groups(names)
        assert found.asked is not None
        assert found.asked.count == 2
        assert found.asked.names == tuple(dict.fromkeys(name.partition("_")[0] for name in names))


@pytest.mark.parametrize("days", [2, 4])
def test_the_lines_to_paste_hold_a_whole_place_out(
    tmp_path: Path, rng: np.random.Generator, days: int
) -> None:
    for n, (place, day) in enumerate(product(("north", "south"), DAYS[:days])):
        made.save(tmp_path / f"im/{place}_{day}.png", made.image(rng))
        made.save(tmp_path / f"gt/{place}_{day}.png", made.label([1, 2, 5], shift=n))
    draft = Draft(look(tmp_path), "made", None, (), Contents())
    assert longest_buffer(draft) == np.inf, "a block of one date lies where one of another does"
    choices = [*draft.choices, *split_of(draft)]
    (asked,) = [choice for choice in choices if choice.question]
    data = nest_choices(choices)
    data["dataset"]["split"] |= {key.rpartition(".")[2]: value for key, value in asked.instead.items()}
    scenes = load_dataset(recipe_from({"name": "made", **data}, "made")).scenes
    splits = {scene.name.partition("_")[0]: scene.split for scene in scenes}
    assert sorted(splits.values()) == ["train", "validation"]
    assert all(scene.split == splits[scene.name.partition("_")[0]] for scene in scenes)
