"""The loaders on tiny files with the published names: the constants themselves are tested, not patched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from datasets import kinds, load_dataset
from datasets.classes import NAIC2020_ROUND1, NAIC2020_ROUND2, POTSDAM_TEST, POTSDAM_TRAIN, potsdam_classes
from datasets.files import files_under
from datasets.folder import pattern_regex
from segmenter.base.errors import ConfigError, DatasetError, LabelError
from segmenter.config.reading import recipe_from
from segmenter.grid.scenes import Dataset

SPLITS = ("train", "validation", "test")


def load(root: Path, kind: str, **settings: Any) -> Dataset:
    return load_dataset(
        recipe_from({"name": "t", "dataset": {"kind": kind, "root": str(root), **settings}}, "t")
    )


def touch(root: Path, names: Iterable[str]) -> Path:
    """Empty files: a loader reads no pixel."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def split_names(dataset: Dataset) -> tuple[list[str], ...]:
    return tuple([scene.name for scene in dataset.of(split)] for split in SPLITS)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- Potsdam


def potsdam_files(names: Iterable[str], *, images: str = "RGB", padded: bool = False) -> list[str]:
    files = []
    for name in names:
        row, col = name.split("_")
        stem = f"top_potsdam_{row:0>2}_{col:0>2}" if padded else f"top_potsdam_{name}"
        files += [f"2_Ortho/{stem}_{images}.tif", f"5_Labels/{stem}_label.tif"]
        files += [f"5_eroded/{stem}_label_noBoundary.tif", f"2_Ortho/{stem}_{images}.tfw"]
    return files


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("images", ["RGB", "IRRG", "RGBIR"])
def test_potsdam_standard_split(tmp_path: Path, padded: bool, images: str) -> None:
    touch(tmp_path, potsdam_files((*POTSDAM_TRAIN, *POTSDAM_TEST), images=images, padded=padded))
    dataset = load(tmp_path, "potsdam", images=images)
    train, validation, test = split_names(dataset)
    assert (len(train), len(validation), len(test)) == (24, 0, 14)
    assert set(train) == set(POTSDAM_TRAIN)
    assert set(test) == set(POTSDAM_TEST)
    assert train[:2] == ["2_10", "2_11"]
    assert {scene.image.suffix for scene in dataset.scenes} == {".tif"}
    assert dataset.bands == ((1, 2, 3, 4) if images == "RGBIR" else (1, 2, 3))
    assert dataset.notes == ()


def test_potsdam_constants() -> None:
    assert (len(set(POTSDAM_TRAIN)), len(set(POTSDAM_TEST))) == (24, 14)
    assert not set(POTSDAM_TRAIN) & set(POTSDAM_TEST)
    full, eroded = potsdam_classes("full", 6), potsdam_classes("eroded", 5)
    assert (len(full), full.ignored) == (6, ())
    assert (len(eroded), set(eroded.ignored)) == (5, {(0, 0, 0), (255, 0, 0)})
    assert full.names == ["impervious surfaces", "building", "low vegetation", "tree", "car", "clutter"]


def test_potsdam_labels_and_mixed_padding(tmp_path: Path) -> None:
    touch(tmp_path, ["top_potsdam_02_10_RGB.tif", "top_potsdam_2_10_label.tif"])
    scene = load(tmp_path, "potsdam", labels="full").scenes[0]
    assert (scene.name, scene.image.name, scene.split) == ("2_10", "top_potsdam_02_10_RGB.tif", "train")
    assert scene.label == tmp_path / "top_potsdam_2_10_label.tif"


def test_potsdam_missing_scenes_are_counted(tmp_path: Path) -> None:
    dataset = load(touch(tmp_path, potsdam_files(["2_10", "2_13"])), "potsdam")
    assert "1 of 24 training and 1 of 14 test scenes are there" in dataset.notes[0]
    assert "7_12" in dataset.notes[0]


def test_potsdam_split_by_names_takes_either_padding(tmp_path: Path) -> None:
    touch(tmp_path, potsdam_files(["2_10", "2_11", "3_10", "9_99"]))
    split: dict[str, Any] = {"validation": ["02_11"], "test": ["3_10"]}
    assert split_names(load(tmp_path, "potsdam", split=split)) == (["2_10", "9_99"], ["2_11"], ["3_10"])
    dataset = load(tmp_path, "potsdam", split=split | {"train": ["2_10"]})
    assert split_names(dataset) == (["2_10"], ["2_11"], ["3_10"])
    assert [path.name for path, _ in dataset.unused] == ["top_potsdam_9_99_RGB.tif"]


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        ([], {}, "found no image; expected files like top_potsdam_2_10_RGB.tif"),
        (potsdam_files(["2_13"]), {}, "at least one scene to train on, got none of 1"),
        (potsdam_files(["2_10", "8_8"]), {}, "8_8 are in neither part of the standard split"),
        (potsdam_files(["2_10"]), {"images": "IRRG"}, "found no image; expected files like .*IRRG"),
        (["top_potsdam_2_10_RGB.tif"], {}, "1 of 1 image files have no partner.*label_noBoundary"),
        (
            ["a/top_potsdam_2_10_RGB.tif", "b/top_potsdam_02_10_RGB.tif"],
            {},
            "expected one image for 2_10, got 2",
        ),
        (
            [*potsdam_files(["2_10"]), "top_potsdam_2_11_label_noBoundary.tif"],
            {},
            "1 of 2 label files have no partner, expected an image",
        ),
        (potsdam_files(["2_10"]), {"split": {"test": ["8_11"]}}, "split.test: 8_11 matches no scene"),
        (
            potsdam_files(["2_10"]),
            {"split": {"validation": ["2_11", "06_09"]}},
            "split.validation: none of 2_11, 6_9 is there; name others",
        ),
        (potsdam_files(["2_10"]), {"leave_out": ["2_11"]}, "dataset.leave_out: 2_11 matches no scene"),
        (
            potsdam_files(["2_10", "2_11"]),
            {"split": {"test": ["2_11"], "validation": ["02_11"]}},
            "2_11 is named for validation and for test",
        ),
    ],
)
def test_potsdam_errors(tmp_path: Path, files: list[str], settings: dict[str, Any], message: str) -> None:
    touch(tmp_path, files)
    with pytest.raises(DatasetError, match=message):
        load(tmp_path, "potsdam", **settings)


# ---------------------------------------------------------------------------------------- NAIC2020


def naic_files(names: Iterable[str]) -> list[str]:
    return [file for name in names for file in (f"train/images/{name}.tif", f"train/labels/{name}.png")]


def test_naic_constants() -> None:
    assert NAIC2020_ROUND1.codes().tolist() == [100, 200, 300, 400, 500, 600, 700, 800]
    assert NAIC2020_ROUND2.codes().tolist() == [1, 2, 3, 4, *range(7, 18)]
    assert NAIC2020_ROUND1.names[:3] == ["water", "transport", "building"]
    assert NAIC2020_ROUND2.names[3] == "airport"


def test_naic_pairs_by_stem_and_holds_out_a_stable_share(tmp_path: Path) -> None:
    few = load(touch(tmp_path, naic_files(str(i) for i in range(300))), "naic2020")
    assert len(few.of("validation")) == 30
    many = load(touch(tmp_path, naic_files(f"new{i}" for i in range(100))), "naic2020", round=2)
    before = {scene.name: scene.split for scene in few.scenes}
    moved = [scene.name for scene in many.scenes if scene.split != before.get(scene.name, scene.split)]
    assert (len(many.of("validation")), len(moved) < 5) == (40, True)
    assert (len(few.classes), len(many.classes)) == (8, 15)
    assert all(s.label is not None and s.label.stem == s.image.stem == s.name for s in many.scenes)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "found no image; expected files like images/NAME.tif"),
        (["1.tif"], "1 of 1 image files have no partner, expected a label like labels/NAME.png"),
        ([*naic_files("1"), "2.png"], "1 of 2 label files have no partner"),
        ([*naic_files("1"), "other/1.tif"], "expected one image for 1, got 2"),
        ([*naic_files("1"), "other/1.png"], "expected one label for 1, got 2"),
    ],
)
def test_naic_errors(tmp_path: Path, files: list[str], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load(touch(tmp_path, files), "naic2020")


def test_unpaired_files_are_listed_up_to_five(tmp_path: Path) -> None:
    touch(tmp_path, [*naic_files("a"), *(f"{i}.tif" for i in range(8))])
    with pytest.raises(
        DatasetError, match=r"8 of 9 image files .*0.tif, 1.tif, 2.tif, 3.tif, 4.tif and 3 more"
    ):
        load(tmp_path, "naic2020")


# ------------------------------------------------------------------------------------------ folder

CODES: dict[str, Any] = {
    "images": "{tile}/images/{part}.jpg",
    "labels": "{tile}/masks/{part}.png",
    "classes": [{"name": "a", "code": 1}, {"name": "b", "code": 7, "colour": "#102030"}],
}


def tiled(tmp_path: Path, tiles: int = 3, parts: int = 2) -> Path:
    kinds = (("images", "jpg"), ("masks", "png"))
    return touch(
        tmp_path,
        [f"t{t}/{folder}/p{p}.{end}" for t in range(tiles) for p in range(parts) for folder, end in kinds],
    )


def test_folder_pairs_and_names(tmp_path: Path) -> None:
    dataset = load(tiled(tmp_path), "folder", **CODES, bands=[2, 1], ignore=[0])
    assert [scene.name for scene in dataset.scenes][:3] == ["t0_p0", "t0_p1", "t1_p0"]
    assert dataset.scenes[1].label == tmp_path / "t0/masks/p1.png"
    assert dataset.classes.codes().tolist() == [1, 7]
    assert dataset.classes.classes[1].colour == (16, 32, 48)
    assert (dataset.bands, dataset.classes.encoding, dataset.classes.ignored) == ((2, 1), "codes", (0,))


def test_folder_of_one_pair_needs_no_names(tmp_path: Path) -> None:
    touch(tmp_path, ["scene.tif", "truth.png"])
    dataset = load(tmp_path, "folder", **{**CODES, "images": "*.tif", "labels": "**/tr*.png"})
    assert [scene.name for scene in dataset.scenes] == ["scene"]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ({"group": "^(t[0-9])/", "validation": ["t1"], "test": ["t2"]}, (2, 2, 2)),
        ({"group": "^(t[0-9])/", "validation": ["t[12]"]}, (2, 4, 0)),
        ({"validation": ["t1_p0"], "test": ["t2/images/*"]}, (3, 1, 2)),
        ({"group": "^(t[0-9])/", "validation_share": 0.01}, (4, 2, 0)),
        ({"group": "^(t[0-9])/", "validation_share": 0.01, "test": ["t0", "t1"]}, (2, 0, 4)),
    ],
)
def test_folder_splits(tmp_path: Path, split: dict[str, Any], expected: tuple[int, ...]) -> None:
    dataset = load(tiled(tmp_path), "folder", **CODES, split=split)
    assert tuple(map(len, split_names(dataset))) == expected
    if "group" in split:
        for group in ("t0", "t1", "t2"):
            assert len({scene.split for scene in dataset.scenes if scene.group == group}) == 1


def test_folder_leaves_out_what_it_is_told_to_and_says_so(tmp_path: Path) -> None:
    dataset = load(tiled(tmp_path), "folder", **CODES, split={"leave_out": ["t1_*"]})
    assert [scene.name for scene in dataset.scenes] == ["t0_p0", "t0_p1", "t2_p0", "t2_p1"]
    assert [(path.name, reason) for path, reason in dataset.unused] == [
        ("p0.jpg", "named in split.leave_out"),
        ("p1.jpg", "named in split.leave_out"),
    ]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"validation": ["t9"]}, "split.validation: t9 matches no scene and no group"),
        ({"leave_out": ["t9"]}, "split.leave_out: t9 matches no scene"),
        (
            {"group": "^(t[0-9])/", "validation": ["t1_p0"]},
            r"group t1 would be in validation \(t1_p0\) and in train",
        ),
        (
            {"group": "^(t[0-9])/", "validation": ["t1"], "test": ["t1_p0"]},
            "t1_p0 is named for validation and",
        ),
        ({"group": "^(x)/"}, r"\^\(x\)/ names no group in t0/images/p0.jpg"),
        ({"test": ["*"]}, "expected at least one scene to train on, got none of 6"),
    ],
)
def test_folder_split_errors(tmp_path: Path, split: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load(tiled(tmp_path), "folder", **CODES, split=split)


@pytest.mark.parametrize(
    ("extra", "patterns", "message"),
    [
        (["t0/images/p9.jpg"], {}, "1 of 7 image files have no partner.*t0/images/p9.jpg"),
        (["t0/masks/p9.png"], {}, "1 of 7 label files have no partner.*t0/masks/p9.png"),
        ([], {"images": "*/images/{p}.jpg", "labels": "*/masks/{p}.png"}, "expected one image for p0, got 3"),
        (
            [],
            {"images": "t0/images/{p}.jpg", "labels": "*/masks/{p}.png"},
            "expected one label for p0, got 3",
        ),
        ([], {"images": "none/{part}{tile}.jpg"}, "found no image; expected files like none/"),
        (["t0_p/images/x.jpg", "t0/images/p_x.jpg"], {}, "would both be called t0_p_x"),
    ],
)
def test_folder_pairing_errors(
    tmp_path: Path, extra: list[str], patterns: dict[str, str], message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        load(touch(tiled(tmp_path), extra), "folder", **{**CODES, **patterns})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": "../{tile}/{part}.jpg"}, "dataset.images: expected a pattern below dataset.root"),
        ({"labels": "/etc/{tile}/{part}"}, "dataset.labels: expected a pattern below dataset.root"),
        ({"images": "{}/{part}.jpg"}, r"expected \{name\} in braces, got \{\}"),
        ({"labels": "{tile}/masks/*.png"}, r"the same \{names\}.*got \{tile\} against \{tile\} \{part\}"),
        (
            {"labels": "{tile}/images/{part}.jpg"},
            "expected to match different files, both match t0/images/p0",
        ),
        ({"ignore": ["#000000"]}, "dataset.ignore.0: expected a code, since labels hold codes"),
        (
            {"encoding": "colours", "classes": [{"name": "a", "colour": "blue"}]},
            "dataset.classes.0.colour: expected a colour as '#rrggbb', in quotes, got 'blue'",
        ),
        (
            {"encoding": "colours", "classes": [{"name": "a", "colour": "#0000ff"}], "ignore": [0]},
            "dataset.ignore.0: expected a colour",
        ),
        ({"split": {"validation": ["t1"], "validation_share": 0.5}}, "got both"),
    ],
)
def test_folder_settings_errors(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tiled(tmp_path), "folder", **{**CODES, **settings})


def test_folder_class_map_errors(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="each value in label files may occur once, got twice: 1"):
        load(tiled(tmp_path), "folder", **{**CODES, "ignore": [1]})


def test_folder_colours(tmp_path: Path) -> None:
    classes = [{"name": "a", "colour": "#3C1098"}, {"name": "b", "colour": "8429f6"}]
    settings = {**CODES, "encoding": "colours", "classes": classes, "ignore": ["#9B9B9B"]}
    dataset = load(tiled(tmp_path), "folder", **settings)
    assert [c.colour for c in dataset.classes.classes] == [(0x3C, 0x10, 0x98), (0x84, 0x29, 0xF6)]
    assert dataset.classes.ignored == ((0x9B, 0x9B, 0x9B),)
    assert dataset.classes.encoding == "colours"


def test_folder_chooses_colours_that_differ(tmp_path: Path) -> None:
    classes = [{"name": str(i), "code": i} for i in range(40)]
    dataset = load(tiled(tmp_path), "folder", **{**CODES, "classes": classes})
    assert len({c.colour for c in dataset.classes.classes}) == 40


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a/*.tif", "a/b.tif", True),
        ("a/*.tif", "a/b/c.tif", False),
        ("**/*.tif", "c.tif", True),
        ("**/*.tif", "a/b/c.tif", True),
        ("{x}/{x}.tif", "a/a.tif", True),
        ("{x}/{x}.tif", "a/b.tif", False),
        ("a[1]+.tif", "a[1]+.tif", True),
        ("{x}.tiff", "Amazon_1.tiff_2.tiff", True),
    ],
)
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    assert bool(pattern_regex(pattern, "dataset.images").fullmatch(path)) == fits


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    for kind in kinds():
        with pytest.raises(DatasetError, match=r"dataset.root: expected a folder, .*none is none"):
            load(tmp_path / "none", kind, **(CODES if kind == "folder" else {}))


def test_links_are_followed_once_and_hidden_files_are_not_data(tmp_path: Path) -> None:
    touch(tmp_path, ["data/a.tif", "data/._a.tif", "data/.tile-index/b.tif", "far/c.tif"])
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data", target_is_directory=True)
    (tmp_path / "data" / "far").symlink_to(tmp_path / "far", target_is_directory=True)
    assert files_under(tmp_path / "data") == ["a.tif", "far/c.tif"]


def test_real_folders_load(shared_data: Callable[[str], Path]) -> None:
    classes = {"classes": CODES["classes"], "split": {"group": "^(tile_[0-9]+)/", "validation": ["tile_4"]}}
    patterns = {"images": "{tile}/images/{part}.jpg", "labels": "{tile}/masks/{part}.png"}
    dataset = load(shared_data("dubai"), "folder", **patterns, **classes)
    assert tuple(map(len, split_names(dataset))) == (36, 9, 0)


def test_files_whose_ending_is_spelt_otherwise_are_counted(tmp_path: Path) -> None:
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
        for name in ("a.tif", "b.TIF", "c.tiff", "d.png"):
            (tmp_path / part / name).touch()
    classes = [{"name": "a", "code": 0}]
    section = {
        "kind": "folder",
        "root": str(tmp_path),
        "images": "images/{n}.tif",
        "labels": "labels/{n}.tif",
    }
    dataset = load_dataset(recipe_from({"name": "t", "dataset": {**section, "classes": classes}}, "t"))
    assert [scene.name for scene in dataset.scenes] == ["a"]
    assert sorted(path.name for path, _ in dataset.unused) == ["b.TIF", "b.TIF", "c.tiff", "c.tiff"]
