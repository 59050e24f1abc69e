"""What a recipe leaves out or ignores is counted, and the projects' recipes fit the look-alikes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.classes import NAIC2020_ROUND1, potsdam_classes
from datasets.synthetic.make import potsdam_names
from segmenter.base.errors import ConfigError, DatasetError, LabelError
from segmenter.config.reading import load_recipe, recipe_from
from segmenter.grid.scenes import SPLITS, Dataset

CONFIGS = Path(__file__).parents[2] / "configs"


def load(root: Path, kind: str, **settings: Any) -> Dataset:
    recipe = {"name": "t", "dataset": {"kind": kind, "root": str(root), **settings}}
    return load_dataset(recipe_from(recipe, "t"))


def touch(root: Path, names: Iterable[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def potsdam(names: Iterable[str]) -> list[str]:
    endings = ("RGB", "label_noBoundary")
    return [f"top_potsdam_{name}_{ending}.tif" for name in names for ending in endings]


@pytest.mark.parametrize("scenes", [6, 12, 38])
def test_the_recipe_of_potsdam_fits_the_look_alike(tmp_path: Path, scenes: int) -> None:
    touch(tmp_path, potsdam(potsdam_names(scenes)))
    dataset = load_dataset(load_recipe(CONFIGS / "potsdam.yaml", [f"dataset.root={tmp_path}"]))
    assert len(dataset.scenes) == scenes
    assert all(dataset.of(split) for split in SPLITS)
    if scenes == 38:
        assert dataset.notes == ()
    else:
        assert "6_9 (validation)" in dataset.notes[0]
        assert (
            f"{1 + 14 - len(dataset.of('test'))} scenes that dataset.split names are not" in dataset.notes[0]
        )


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_runs_are_called_after_their_recipes(path: Path, tmp_path: Path) -> None:
    assert load_recipe(path).name == path.stem
    copy = tmp_path / "mine.yaml"
    copy.write_bytes(path.read_bytes())
    assert load_recipe(copy).name == "mine"


def test_potsdam_leaves_out_and_ignores(tmp_path: Path) -> None:
    touch(tmp_path, [*potsdam(["2_10", "2_11", "4_12"]), "top_potsdam_7_7_RGB.tif"])
    dataset = load(tmp_path, "potsdam", leave_out=["04_12", "7_7"], ignore=["#102030"])
    assert [scene.name for scene in dataset.scenes] == ["2_10", "2_11"]
    assert [(path.name, why) for path, why in dataset.unused] == [
        ("top_potsdam_4_12_RGB.tif", "named in leave_out"),
        ("top_potsdam_7_7_RGB.tif", "named in leave_out"),
    ]
    assert dataset.classes == potsdam_classes("eroded", 6).__class__(
        potsdam_classes("eroded", 6).classes, "colours", ((0, 0, 0), (16, 32, 48))
    )
    with pytest.raises(ConfigError, match=r"dataset\.ignore\.0: expected a colour as '#rrggbb'"):
        load(tmp_path, "potsdam", leave_out=["7_7"], ignore=["grey"])


def test_naic2020_leaves_out_and_ignores(tmp_path: Path) -> None:
    touch(tmp_path, [f"{i}.{ending}" for i in range(30) for ending in ("tif", "png")] + ["alone.tif"])
    dataset = load(tmp_path, "naic2020", leave_out=["1?", "alone"], ignore=[0])
    assert len(dataset.scenes) == 20
    assert len(dataset.unused) == 11
    assert dataset.classes.ignored == (0,)
    assert dataset.classes.classes == NAIC2020_ROUND1.classes
    with pytest.raises(DatasetError, match=r"dataset\.leave_out: 99 matches no scene"):
        load(tmp_path, "naic2020", leave_out=["alone", "99"])


@pytest.mark.parametrize("kind", ["potsdam", "naic2020", "folder"])
def test_the_advice_at_an_unknown_value_names_settings_that_the_kind_has(kind: str) -> None:
    with pytest.raises(LabelError, match=r"know: 7 .*dataset\.ignore .*leave_out") as raised:
        NAIC2020_ROUND1.decode(np.full((3, 5), 7, np.uint8))
    section: dict[str, Any] = {"kind": kind, "root": "r"}
    advised = {"ignore": ["#000000"] if kind == "potsdam" else [7]}
    if kind == "folder":
        classes = [{"name": "a", "code": 0}]
        section |= {
            "images": "{n}.tif",
            "labels": "{n}.png",
            "classes": classes,
            "split": {"leave_out": ["x"]},
        }
    else:
        advised["leave_out"] = ["x"]
    recipe_from({"name": "t", "dataset": section | advised}, "t")
    assert "folder's dataset.classes" in str(raised.value)


FOLDER: dict[str, Any] = {"images": "i/{n}.tif", "labels": "l/{n}.png", "classes": [{"name": "a", "code": 0}]}


def test_images_without_label_are_skipped_where_that_is_said_and_counted(tmp_path: Path) -> None:
    touch(tmp_path, [f"i/{n}.tif" for n in "abcde"] + [f"l/{n}.png" for n in "ab"])
    with pytest.raises(DatasetError, match=r"3 of 5 image files have no .*dataset\.unlabelled: skip"):
        load(tmp_path, "folder", **FOLDER)
    dataset = load(tmp_path, "folder", **FOLDER, unlabelled="skip")
    assert [scene.name for scene in dataset.scenes] == ["a", "b"]
    assert [path.name for path, _ in dataset.unused] == ["c.tif", "d.tif", "e.tif"]
    assert {why for _, why in dataset.unused} == {"without a label (unlabelled: skip)"}
    touch(tmp_path, ["l/z.png"])  # a label without image is a slip all the same
    with pytest.raises(DatasetError, match="1 of 3 label files have no partner"):
        load(tmp_path, "folder", **FOLDER, unlabelled="skip")


@pytest.mark.parametrize(
    ("bands", "message"),
    [
        ([], "dataset.bands: expected at least one band, counted from 1, got .*without this line all"),
        ([0, 1], "dataset.bands.0: expected greater than or equal to 1, got 0"),
    ],
)
def test_bands_are_some_and_counted_from_1(bands: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_from({"name": "t", "dataset": {"kind": "folder", "root": "r", **FOLDER, "bands": bands}}, "t")
