"""Labels and images of several files a scene: masks of one class each, bands in folders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from datasets.made import MadeFilesError
from segmenter.base.errors import DatasetError
from segmenter.raster import LabelRaster, raster_info
from tests.helpers import made_folders as made
from tests.helpers.refusals import refused

MASKS: dict[str, tuple[str, str, str]] = {
    "folders": ("images/rgb/{}.jpg", "labels/{}/{}.png", "labels/{class}/{name}.png"),
    "suffixes": ("img_{}.tif", "img_{1}_{0}.tif", "{name}_{class}.tif"),
    "prefixes": ("sat/s{}.tif", "gt/{}-s{}.tif", "gt/{class}-{name}.tif"),
    "folders and words": ("im/{}_sat.png", "mask_{0}/{1}_{0}.png", "mask_{class}/{name}_{class}.png"),
    "a folder for each scene": ("s{}/image.tif", "s{1}/{0}.tif", "{folder}/{class}.tif"),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_one_class_each_are_one_label(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    image, mask, pattern = MASKS[name]
    for i in range(6):
        made.save(tmp_path / image.format(i), made.image(rng))
        for k, word in enumerate(("road", "storm_damage", "water")):
            if (i, k) != (2, 1):  # a mask that lacks
                drawn = np.roll(made.label([255, 0, 0, 0], shift=i), k * made.SIZE[1] // 4, axis=1)
                made.save(tmp_path / mask.format(word, i), drawn)
    choices, _, dataset = made.planned(tmp_path)
    keys = {choice.key: choice for choice in choices}
    assert (keys["dataset.labels"].value, keys["dataset.encoding"].value) == (pattern, "masks")
    assert "1 of all lack" in keys["dataset.encoding"].reason
    assert not any(choice.question or choice.left for choice in choices)
    assert dataset.classes.names == ["background", "road", "storm_damage", "water"]
    assert len(dataset.scenes) == 6
    alone = keys["dataset.labels"].other.partition("--labels '")[2].partition("'")[0]
    again = made.planned(tmp_path, Path(alone))[1]
    assert (again.dataset.encoding, len(again.dataset.classes)) == ("codes", 2)


def test_masks_of_classes_come_before_one_of_valid_pixels(tmp_path: Path, rng: np.random.Generator) -> None:
    """Agriculture-Vision: the folder `masks` has one for each picture, also where no class is labelled."""
    for i in range(9):
        split = ("train", "val", "test")[i // 4]
        made.save(tmp_path / split / f"images/{i}.jpg", made.image(rng))
        for kind in ("masks", "boundaries"):
            made.save(tmp_path / split / f"{kind}/{i}.png", made.label([255, 255, 255, 0]))
        for shift, word in enumerate(("drydown", "water") if split != "test" else ()):
            drawn = np.roll(made.label([255, 0, 0, 0], shift=i), shift * made.SIZE[1] // 4, axis=1)
            made.save(tmp_path / split / f"labels/{word}/{i}.png", drawn)
    _, recipe, dataset = made.planned(tmp_path)
    assert recipe.dataset.labels == "{split}/labels/{class}/{name}.png"
    assert dataset.classes.names == ["background", "drydown", "water"]
    assert len(dataset.scenes) == 8


def test_a_label_of_classes_comes_before_masks(tmp_path: Path, rng: np.random.Generator) -> None:
    for i in range(6):
        made.save(tmp_path / f"image/{i}.tif", made.image(rng))
        made.save(tmp_path / f"label/{i}.tif", made.label(range(4), shift=i))
        for word in ("cloud", "snow"):
            made.save(tmp_path / f"{word}/{i}.tif", made.label([0, 0, 255], shift=i))
    _, recipe, dataset = made.planned(tmp_path)
    assert (recipe.dataset.labels, recipe.dataset.encoding) == ("label/{name}.tif", "codes")
    assert len(dataset.classes) == 4


def test_overlaps_are_said_and_scenes_of_ill_fitting_masks_left_out(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    for i in range(5):
        made.save(tmp_path / f"im/{i}.png", made.image(rng))
        for shift, word in enumerate(("road", "tree")):
            drawn = np.roll(made.label([255, 0, 0, 0], shift=i), 9 * shift, axis=1)
            made.save(tmp_path / f"gt/{word}/{i}.png", drawn[: 60 if (i, shift) == (3, 1) else None])
    choices, _, dataset = made.planned(tmp_path)
    keys = {choice.key: choice for choice in choices}
    assert "in several masks" in keys["dataset.classes"].reason
    assert keys["dataset.split.leave_out"].value == ["3"]
    assert len(dataset.scenes) == 4


def test_bands_that_are_masks_are_one_label(tmp_path: Path, rng: np.random.Generator) -> None:
    for i in range(4):
        drawn = made.label(range(4), shift=i)
        bands = np.stack([drawn == k for k in range(4)], axis=2).astype(np.uint8)
        for folder, each in (("all", bands), ("few", 255 * bands[..., :2])):
            made.save(tmp_path / folder / f"im/{i}.tif", made.image(rng, 5, dtype="uint16"))
            made.save(tmp_path / folder / f"gt/{i}.tif", each)
    for folder, names in (("all", [1, 2, 3, 4]), ("few", [0, 1, 2])):
        _, recipe, dataset = made.planned(tmp_path / folder)
        assert recipe.dataset.encoding == "masks"
        assert [each.code for each in dataset.classes.classes] == names
        with LabelRaster(dataset.scenes[0].label, dataset.classes) as label:
            drawn = made.label(range(4))
            assert (label.ids() == (drawn if folder == "all" else np.where(drawn < 2, drawn + 1, 0))).all()


@pytest.mark.parametrize("kinds", [("gt", "gt_eroded"), ("rater1", "rater2"), ("building", "edges")])
def test_versions_of_one_mask_are_not_classes(
    kinds: tuple[str, str], tmp_path: Path, rng: np.random.Generator
) -> None:
    for i in range(5):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng))
        for shift, kind in enumerate(kinds):
            made.save(tmp_path / f"{kind}/{i}.tif", np.roll(made.label([0, 0, 255], shift=i), shift))
    choices = {choice.key: choice for choice in made.planned(tmp_path)[0]}
    assert choices["dataset.encoding"].value == "codes"
    assert sum(kind in choices["dataset.labels"].value for kind in kinds) == 1
    assert choices["dataset.labels"].other


BANDS: dict[str, tuple[list[str], list[str]]] = {
    "38-Cloud": (
        [f"train_{band}/{band}_patch_{{}}.TIF" for band in ("blue", "green", "nir", "red")],
        [f"train_{band}/{band}_{{name}}.TIF" for band in ("red", "green", "blue", "nir")],
    ),
    "numbers": (
        ["B03/x{}.tif", "B02/x{}.tif", "B8A/x{}.tif"],
        ["B02/{name}.tif", "B03/{name}.tif", "B8A/{name}.tif"],
    ),
    "products and cuts": (
        [f"{{}}x/{path}B0{band}.tif" for path in ("all_raw/S2_", "cut/") for band in (2, 3)],
        ["{folder}x/cut/B02.tif", "{folder}x/cut/B03.tif"],
    ),
    "optical and SAR": (["optical/x{}.tif", "sar/x{}.tif"], ["optical/{name}.tif"]),
    "change": (["A/x{}.tif", "B/x{}.tif"], ["A/{name}.tif"]),
}


@pytest.mark.parametrize("name", BANDS)
def test_bands_in_folders_are_one_image(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    (files, patterns), bands = BANDS[name], 3 if name in ("change", "optical and SAR") else 1
    for i in range(5):
        for file in files:
            made.save(
                tmp_path / file.format(i), made.image(rng, 1 if "sar" in file else bands, dtype="uint16")
            )
        label = files[0].replace("blue", "gt") if name == "38-Cloud" else "label/x{}.tif"
        made.save(tmp_path / label.format(i), made.label([0, 255], shift=i))
    _, recipe, dataset = made.planned(tmp_path)
    assert list(recipe.dataset.images) == patterns
    assert len(dataset.scenes) == 5
    assert raster_info(dataset.scenes[0].image).count == bands * len(patterns)


def _bands(folder: Path, rng: np.random.Generator) -> Path:
    """Save scenes of a file a band and return one of them."""
    for i in range(7):
        for band in (2, 3, 4):
            made.save(
                folder / f"im/t{i}_B0{band}.tif", made.image(rng, 1, dtype="uint16"), **made.place(100 * i)
            )
        made.save(folder / f"gt/t{i}.tif", made.label(range(3), shift=i), **made.place(100 * i))
    return folder / "im/t3_B03.tif"


def _masks(folder: Path, rng: np.random.Generator) -> Path:
    """Save scenes with a mask a class and return one of them."""
    for i in range(7):
        made.save(folder / f"im/t{i}.tif", made.image(rng))
        for k, word in enumerate(("road", "water")):
            drawn = np.roll(made.label([255, 0, 0, 0], shift=i), k * made.SIZE[1] // 4, axis=1)
            made.save(folder / f"gt/{word}/t{i}.tif", drawn)
    return folder / "gt/water/t3.tif"


def _placed_labels(folder: Path, rng: np.random.Generator) -> Path:
    """Save scenes whose labels have a wider grid and return one of the labels."""
    for i in range(7):
        made.save(folder / f"im/t{i}.tif", made.image(rng), **made.place(200 * i))
        wider = np.pad(made.label(range(3), shift=i), ((0, 8), (0, 8)), mode="edge")
        made.save(folder / f"gt/t{i}.tif", wider, **made.place(200 * i))
    return folder / "gt/t3.tif"


@pytest.mark.parametrize("save", [_bands, _masks, _placed_labels])
def test_a_scene_is_left_out_when_one_of_its_files_is_cut_short(
    save: Callable[[Path, np.random.Generator], Path], tmp_path: Path, rng: np.random.Generator
) -> None:
    damaged = save(tmp_path, rng)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size * 2 // 3])
    choices, _, dataset = made.planned(tmp_path)
    left = {choice.key: choice for choice in choices}["dataset.split.leave_out"]
    assert left.value == ["t3"]
    assert damaged.name in left.left
    assert len(dataset.scenes) == 6


def test_more_than_a_fifth_of_scenes_cut_short_is_no_plan(tmp_path: Path, rng: np.random.Generator) -> None:
    damaged = _bands(tmp_path, rng)
    for name in ("t3", "t5"):
        file = damaged.with_name(f"{name}_B04.tif")
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    with refused(MadeFilesError) as raised:
        made.planned(tmp_path)
    assert (set(raised.value.faults), raised.value.scenes) == ({"t3", "t5"}, 7)


@pytest.mark.parametrize(("gone", "planned"), [(("t3_B04",), True), (("t3_B04", "t5_B03"), False)])
def test_a_scene_that_lacks_a_file_is_left_out_unless_they_are_many(
    gone: tuple[str, ...], planned: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    folder = _bands(tmp_path, rng).parent
    for name in gone:
        (folder / f"{name}.tif").unlink()
    if not planned:
        with refused(DatasetError):
            made.planned(tmp_path)
        return
    choices, _, dataset = made.planned(tmp_path)
    left = {choice.key: choice for choice in choices}["dataset.split.leave_out"]
    assert (left.value, len(dataset.scenes)) == (["t3"], 6)
    assert "B04" in left.left
