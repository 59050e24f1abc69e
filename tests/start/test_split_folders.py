"""Splits that folders hold: by their names in several languages, or asked about; never lost in silence."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.start.choice import Choice, nest_choices
from datasets.start.look import look
from segmenter.config.reading import recipe_from
from tests.helpers import made_folders as made

Rng = np.random.Generator
SPLIT_FOLDERS: dict[str, str] = {
    "Training Validierung Test": "train validation test",
    "entrenamiento validación prueba": "train validation test",
    "entraînement validation essai": "train validation test",
    "treino validação teste": "train validation test",
    "addestramento validazione prova": "train validation test",
    "trainset valset testset": "train validation test",
    "Trainingsdaten Validierungsdatensatz Testdaten": "train validation test",
    "trainval test": "train test",
    "train_val test": "train test",
    "set[a]/train set[a]/val": "train validation",
    "*/train */val": "train validation",
    "val_thorens val_gardena cortina": "train train train",
    "test_site_1 test_site_2 harbour": "train train train",
    "tr de fr": "train train train",
}


def split_folders(root: Path, rng: Rng, folders: str, labels: str = "{}/gt/{}.png") -> dict[str, Any]:
    """Write three scenes in each of the folders."""
    for n, (name, i) in enumerate(itertools.product(folders.split(), range(3))):
        made.save(root / f"{name}/im/{n}.png", made.image(rng))
        made.save(root / labels.format(name, n), made.label([1, 2, 5], shift=i))
    return {choice.key: choice for choice in look(root)}


def splits_by_folder(choices: dict[str, Choice], **changed: Any) -> dict[str, str]:
    """Return the split of the folders, once these settings are pasted."""
    data = nest_choices(choices.values())
    data["dataset"].setdefault("split", {}).update(changed)
    dataset = load_dataset(recipe_from({"name": "made", **data}, "made"))
    found = {(s.image.relative_to(dataset.root).parts[:-2], s.split) for s in dataset.scenes}
    assert len(found) == len(dict(found)), "a folder has one split"
    return {"/".join(folders): split for folders, split in found}


@pytest.mark.parametrize("folders", SPLIT_FOLDERS)
@pytest.mark.parametrize("labels", ["{}/gt/{}.png", "gt/{1}.png"])
def test_folders_hold_the_split_that_their_names_tell(
    tmp_path: Path, rng: Rng, folders: str, labels: str
) -> None:
    wanted = SPLIT_FOLDERS[folders]
    if "*" in folders:
        folders = " ".join(f"{place}/{name[2:]}" for name in folders.split() for place in ("ulm", "bonn"))
        wanted = " ".join(split for split in wanted.split() for _ in range(2))
    choices = split_folders(tmp_path, rng, folders, labels)
    assert splits_by_folder(choices) == dict(zip(folders.split(), wanted.split(), strict=True))
    assert not [choice.question for choice in choices.values() if choice.question]


@pytest.mark.parametrize(
    ("folders", "splits", "otherwise"),
    [
        ("train val extra", "train validation train", "train validation test"),
        ("train val test extra", "train validation test train", "train validation test test"),
        ("area1 area2 test", "train train test", "train train train"),
        ("train hidden", "train test", "train train"),
    ],
)
def test_folders_whose_names_tell_no_split_beside_some_that_do_are_asked_about(
    tmp_path: Path, rng: Rng, folders: str, splits: str, otherwise: str
) -> None:
    choices = split_folders(tmp_path, rng, folders)
    assert splits_by_folder(choices) == dict(zip(folders.split(), splits.split(), strict=True))
    (asked,) = [choice for choice in choices.values() if choice.question]
    pasted = {key.rpartition(".")[2]: value for key, value in asked.instead.items()}
    assert splits_by_folder(choices, **pasted) == dict(zip(folders.split(), otherwise.split(), strict=True))


def test_validation_is_dealt_if_the_folder_held_out_is_a_place_like_the_others(
    tmp_path: Path, rng: Rng
) -> None:
    choices = split_folders(tmp_path, rng, "area1 area2 val")
    asked = choices["dataset.split.validation"]
    data = nest_choices(choices.values())
    data["dataset"]["split"] |= {key.rpartition(".")[2]: value for key, value in asked.instead.items()}
    scenes = load_dataset(recipe_from({"name": "made", **data}, "made")).scenes
    assert 0 < sum(scene.split == "validation" for scene in scenes) < 3


@pytest.mark.parametrize(
    "form", ["im/{n}.png gt/{split}/{n}.png", "im/{split}{deep}/{n}.png gt/{split}{deep}/{n}.png"]
)
def test_splits_that_no_pattern_of_images_tells_name_scenes(tmp_path: Path, rng: Rng, form: str) -> None:
    """Labels alone lie in folders of a split, or folders are of several depths."""
    wanted = ["train"] * 4 + ["val", "val", "test", "test"]
    for n, split in enumerate(wanted):
        image, label = form.format(n=n, split=split, deep=f"/area{n}" if split == "train" else "").split()
        made.save(tmp_path / image, made.image(rng))
        made.save(tmp_path / label, made.label([1, 2, 5], shift=n))
    scenes = made.planned(tmp_path)[2].scenes
    found = {scene.image.stem: scene.split for scene in scenes}
    words = {"val": "validation"}
    assert found == {str(n): words.get(split, split) for n, split in enumerate(wanted)}


def test_lists_come_before_folders_of_which_some_tell_no_split(tmp_path: Path, rng: Rng) -> None:
    (tmp_path / "val.txt").write_text("1\n4\n")
    (tmp_path / "trainval.txt").write_text("".join(f"{i}\n" for i in range(6)))
    choices = split_folders(tmp_path, rng, "train extra")
    assert len(choices["dataset.split.validation"].value) == 2
    assert choices["dataset.split.validation"].reason == "2 scenes named in val.txt"
    assert "dataset.split.test" not in choices
