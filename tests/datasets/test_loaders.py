"""Loaders on tiny files with the published names, their splits, and what a recipe leaves out."""

import itertools
import unicodedata
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from datasets import kinds, load_dataset
from datasets.folder import load_folder, pattern_regex
from datasets.published import POTSDAM_TEST, POTSDAM_TRAIN
from datasets.synthetic.make import potsdam_names
from segmenter.api.layouts import layout_of
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.datasets import FolderConfig
from segmenter.config.reading import load_recipe, recipe_from
from segmenter.grid.scenes import SPLITS, Dataset
from tests.helpers.refusals import refused

CONFIGS = Path(__file__).parents[2] / "configs"


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
    return tuple([scene.name for scene in dataset.of(split)] for split in SPLITS)


def potsdam_files(names: Iterable[str], *, images: str = "RGB", padded: bool = False) -> list[str]:
    files = []
    for name in names:
        row, col = name.split("_")
        stem = f"top_potsdam_{row:0>2}_{col:0>2}" if padded else f"top_potsdam_{name}"
        files += [f"2_Ortho/{stem}_{images}.tif", f"5_Labels/{stem}_label.tif"]
        files += [f"5_eroded/{stem}_label_noBoundary.tif", f"2_Ortho/{stem}_{images}.tfw"]
    return files


@pytest.mark.parametrize(("padded", "images"), [(False, "RGB"), (True, "IRRG"), (False, "RGBIR")])
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


def test_potsdam_labels_and_mixed_padding(tmp_path: Path) -> None:
    touch(tmp_path, ["top_potsdam_02_10_RGB.tif", "top_potsdam_2_10_label.tif"])
    scene = load(tmp_path, "potsdam", labels="full").scenes[0]
    assert (scene.name, scene.image.name, scene.split) == ("2_10", "top_potsdam_02_10_RGB.tif", "train")
    assert scene.label == tmp_path / "top_potsdam_2_10_label.tif"


def test_potsdam_split_by_names_takes_either_padding(tmp_path: Path) -> None:
    touch(tmp_path, potsdam_files(["2_10", "2_11", "3_10", "9_99"]))
    split: dict[str, Any] = {"validation": ["02_11"], "test": ["3_10"]}
    assert split_names(load(tmp_path, "potsdam", split=split)) == (["2_10", "9_99"], ["2_11"], ["3_10"])
    dataset = load(tmp_path, "potsdam", split=split | {"train": ["2_10"]})
    assert split_names(dataset) == (["2_10"], ["2_11"], ["3_10"])
    assert [path.name for path, _ in dataset.unused] == ["top_potsdam_9_99_RGB.tif"]


@pytest.mark.parametrize(
    ("files", "settings", "fields"),
    [
        ([], {}, {"fault": "found", "remedy": "files like top_potsdam_2_10_RGB.tif"}),
        (potsdam_files(["2_13"]), {}, {"where": "dataset.split", "got": "none of 1"}),
        (potsdam_files(["2_10", "8_8"]), {}, {"fault": "8_8"}),
        (["top_potsdam_2_10_RGB.tif"], {}, {"fault": "1 of 1 image"}),
        (["a/top_potsdam_2_10_RGB.tif", "b/top_potsdam_02_10_RGB.tif"], {}, {"got": "2"}),
        ([*potsdam_files(["2_10"]), "top_potsdam_2_11_label_noBoundary.tif"], {}, {"fault": "1 of 2 label"}),
        (potsdam_files(["2_10"]), {"split": {"validation": ["2_11", "06_09"]}}, {"fault": "2_11, 6_9"}),
        (
            potsdam_files(["2_10"]),
            {"leave_out": ["2_11"]},
            {"where": "dataset.leave_out", "fault": "2_11 matches"},
        ),
        (
            potsdam_files(["2_10"]),
            {"split": {"test": ["2_10"], "validation": ["02_10"]}},
            {"fault": "2_10 is named"},
        ),
    ],
)
def test_potsdam_errors(
    tmp_path: Path, files: list[str], settings: dict[str, Any], fields: dict[str, object]
) -> None:
    touch(tmp_path, files)
    with refused(DatasetError, **fields):
        load(tmp_path, "potsdam", **settings)


def naic_files(names: Iterable[str]) -> list[str]:
    return [file for name in names for file in (f"train/images/{name}.tif", f"train/labels/{name}.png")]


def test_a_number_as_a_name_is_to_be_quoted(tmp_path: Path) -> None:
    """It is not taken as text: YAML reads 010 as 8."""
    with refused(ConfigError, where="dataset.leave_out.0", expected="in quotes", got=3):
        load(tmp_path, "naic2020", leave_out=[3])


def test_naic_pairs_by_stem_and_holds_out_a_stable_share(tmp_path: Path) -> None:
    few = load(touch(tmp_path, naic_files(str(i) for i in range(300))), "naic2020")
    assert len(few.of("validation")) == 30
    many = load(touch(tmp_path, naic_files(f"new{i}" for i in range(100))), "naic2020", round=2)
    before = {scene.name: scene.split for scene in few.scenes}
    moved = [scene.name for scene in many.scenes if scene.split != before.get(scene.name, scene.split)]
    assert (len(many.of("validation")), len(moved) < 5) == (40, True)
    assert (len(few.classes), len(many.classes)) == (8, 15)
    assert all(s.label is not None and s.label.stem == s.image.stem == s.name for s in many.scenes)


CODES: dict[str, Any] = {
    "images": "{tile}/images/{part}.jpg",
    "labels": "{tile}/masks/{part}.png",
    "classes": [{"name": "a", "code": 1}, {"name": "b", "code": 7, "colour": "#102030"}],
}


def tiled(tmp_path: Path, tiles: int = 3, parts: int = 2) -> Path:
    names = [f"t{t}/{{}}/p{p}." for t in range(tiles) for p in range(parts)]
    return touch(
        tmp_path, [n.format(f) + end for n in names for f, end in (("images", "jpg"), ("masks", "png"))]
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


GROUPS = {"group": "^(t[0-9])/"}


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"split": {"validation": ["t9"]}}, {"where": "split.validation", "fault": "t9 matches"}),
        ({"split": {"leave_out": ["t9"]}}, {"where": "split.leave_out", "fault": "t9 matches"}),
        ({"split": {**GROUPS, "validation": ["t1_p0"]}}, {"fault": "group t1 would"}),
        ({"split": {**GROUPS, "validation": ["t1"], "test": ["t1_p0"]}}, {"fault": "t1_p0 is named"}),
        ({"split": {"group": "^(x)/"}}, {"where": "split.group", "fault": "group in t0/images/p0.jpg"}),
        ({"split": {"test": ["*"]}}, {"where": "dataset.split", "got": "none of 6"}),
        ({"split": {"validation": ["t1"], "validation_share": 0.5}}, {"where": "split", "got": "both"}),
        ({"images": "*/images/{p}.jpg", "labels": "*/masks/{p}.png"}, {"got": "3"}),
        ({"images": "t0/images/{p}.jpg", "labels": "*/masks/{p}.png"}, {"got": "3"}),
        ({"images": "none/{part}{tile}.jpg"}, {"fault": "found", "remedy": "files like none/"}),
        ({"labels": "/etc/{tile}/{part}"}, {"where": "dataset.labels", "got": "/etc/{tile}/{part}"}),
        ({"images": "{}/{part}.jpg"}, {"where": "dataset.images", "got": "{}"}),
        ({"labels": "{tile}/images/{part}.jpg"}, {"expected": "both match t0/images/p0"}),
        ({"ignore": ["#000000"]}, {"where": "dataset.ignore.0", "got": "'#000000'"}),
        (
            {"encoding": "colours", "classes": [{"name": "a", "colour": "blue"}]},
            {"where": "dataset.classes.0.colour", "got": "'blue'"},
        ),
    ],
)
def test_folder_errors(tmp_path: Path, settings: dict[str, Any], fields: dict[str, object]) -> None:
    with refused((ConfigError, DatasetError), **fields):
        load(tiled(tmp_path), "folder", **{**CODES, **settings})


def test_two_scenes_of_one_name_are_refused(tmp_path: Path) -> None:
    touch(tiled(tmp_path), ["t0_p/images/x.jpg", "t0/images/p_x.jpg"])
    with refused(DatasetError, fault="called t0_p_x"):
        load(tmp_path, "folder", **CODES)


def test_the_pattern_with_more_literal_text_takes_what_both_match(tmp_path: Path) -> None:
    files = [f"{split}{end}/{i}.png" for split in ("train", "val") for end in ("", "annot") for i in range(2)]
    patterns = {"images": "{split}/{name}.png", "labels": "{split}annot/{name}.png"}
    dataset = load(touch(tmp_path / "a", files), "folder", **{**CODES, **patterns})
    assert [scene.name for scene in dataset.scenes] == ["train_0", "train_1", "val_0", "val_1"]
    turned = {"images": "{name}_rgb.png", "labels": "{name}.png"}
    dataset = load(
        touch(tmp_path / "b", ["x.png", "x_rgb.png", "y.png", "y_rgb.png"]), "folder", **{**CODES, **turned}
    )
    assert [scene.name for scene in dataset.scenes] == ["x", "y"]


def test_further_codes_are_codes_or_ranges(tmp_path: Path) -> None:
    road = {"name": "road", "code": 237, "also": ["119-236", 255]}
    dataset = load(tiled(tmp_path), "folder", **{**CODES, "classes": [{"name": "rest", "code": 0}, road]})
    assert dataset.classes.classes[1].also == (*range(119, 237), 255)
    for wrong in ("9-3", "a", "-4", "1-2-3"):
        with pytest.raises(ConfigError, match="also"):
            load(tiled(tmp_path), "folder", **{**CODES, "classes": [{**road, "also": [wrong]}]})
    with pytest.raises(ConfigError, match="also"):
        load(
            tiled(tmp_path),
            "folder",
            **{**CODES, "encoding": "colours", "classes": [{**road, "colour": "#010203"}]},
        )


def test_folder_chooses_colours_that_differ(tmp_path: Path) -> None:
    classes = [{"name": str(i), "code": i} for i in range(40)]
    dataset = load(tiled(tmp_path), "folder", **{**CODES, "classes": classes})
    assert len({c.colour for c in dataset.classes.classes}) == 40


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


@pytest.mark.parametrize(
    "pattern", ["/a/{n}.tif", "../{n}.tif", "C:/{n}.tif", "~/{n}.tif", "s3://bucket/{n}.tif"]
)
def test_patterns_that_leave_the_root_are_refused(pattern: str) -> None:
    with refused(ConfigError, where="dataset.labels", expected="below dataset.root", got=pattern):
        pattern_regex(pattern, "dataset.labels")


def test_a_cache_in_a_bucket_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, ["t/images/a.jpg", "t/masks/a.png"])
    with refused(DatasetError, where="dataset.cache", got="the address s3://bucket/a"):
        load(tmp_path, "folder", cache="s3://bucket/a", **CODES)


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    for kind in kinds():
        with refused(DatasetError, where="dataset.root", expected="folder"):
            load(tmp_path / "none", kind, **(CODES if kind == "folder" else {}))


def test_files_whose_ending_is_spelt_otherwise_are_counted(tmp_path: Path) -> None:
    names = ("a.tif", "b.TIF", "c.tiff", "d.png")
    touch(tmp_path, [f"{part}/{name}" for part in ("images", "labels") for name in names])
    patterns = {"images": "images/{n}.tif", "labels": "labels/{n}.tif"}
    dataset = load(tmp_path, "folder", **patterns, classes=[{"name": "a", "code": 0}])
    assert [scene.name for scene in dataset.scenes] == ["a"]
    assert sorted(path.name for path, _ in dataset.unused) == ["b.TIF", "b.TIF", "c.tiff", "c.tiff"]


@pytest.mark.parametrize("forms", [*itertools.product(("NFC", "NFD"), repeat=3)], ids="".join)
def test_names_agree_however_their_accents_are_stored(tmp_path: Path, forms: tuple[str, ...]) -> None:
    """Archives of macOS hold letters and their accents apart; keyboards and recipes do not."""
    image, label, recipe = (partial(unicodedata.normalize, form) for form in forms)
    files = [image(f"Fläche/{n}_{band}.tif") for n in "äöü" for band in "rn"]
    files += [label(f"Maske/{name}/{n}.tif") for n in "äöü" for name in ("Gebäude", "Wald")]
    settings: dict[str, Any] = {
        "images": [recipe("Fläche/{n}_r.tif"), recipe("Fläche/{n}_n.tif")],
        "labels": "Maske/{class}/{n}.tif",
        "encoding": "masks",
        "classes": [{"name": recipe(name), "code": i} for i, name in enumerate(("Feld", "Gebäude", "Wald"))],
        "split": {"validation": [recipe("ä")], "leave_out": [recipe("ö")], "group": recipe("([äöü])_")},
    }
    section = recipe_from({"name": "t", "dataset": {"kind": "folder", "root": ".", **settings}}, "t").dataset
    assert isinstance(section, FolderConfig)
    dataset = load_folder(section.model_copy(update={"root": str(touch(tmp_path, files))}))
    assert split_names(dataset) == (["ü"], ["ä"], [])
    for scene in dataset.scenes:
        paths = [scene.image, scene.label, *scene.files, *(mask for _, mask in scene.masks)]
        assert len(paths) == 6
        assert all(path is not None and path.is_file() for path in paths)
    assert layout_of(section).fields(Path(image("Fläche/ü_r.tif"))) == {"n": "ü"}


@pytest.mark.parametrize(
    ("images", "files"),
    [
        ("{tile}/images/{part}.jpg", ["{t}/images/{p}.jpg"]),
        ("{tile}_{part}.jpg", ["a_{t}_{p}.jpg"]),
        ("img/**/{tile}-{part}.jpg", ["img/x/{t}-{p}.jpg", "img/{t}-z{p}.jpg"]),
        ("{day}/{tile}({part}).jpg", ["d/{t}({p}).jpg"]),
    ],
)
def test_parts_of_one_place_on_both_sides_are_said_with_what_keeps_them_together(
    tmp_path: Path, images: str, files: list[str]
) -> None:
    paths = [file.format(t=f"t{t}", p=p) for file in files for t in range(4) for p in range(3)]
    touch(tmp_path, [*paths, *(path.replace(".jpg", ".png") for path in paths)])
    patterns = {"images": images, "labels": images.replace(".jpg", ".png"), "classes": CODES["classes"]}
    torn = load(tmp_path, "folder", **patterns, split={"validation_share": 0.3})
    (note,) = torn.notes
    assert "of one {tile} lie on both sides" in note
    group = note.partition("dataset.split.group: '")[2].partition("'")[0]
    whole = load(tmp_path, "folder", **patterns, split={"validation_share": 0.3, "group": group})
    assert whole.notes == ()
    assert len({scene.group for scene in whole.scenes}) == 4
    assert {scene.group.removeprefix("a_") for scene in whole.of("validation")} < {"t0", "t1", "t2", "t3"}


def potsdam(names: Iterable[str]) -> list[str]:
    endings = ("RGB", "label_noBoundary")
    return [f"top_potsdam_{name}_{ending}.tif" for name in names for ending in endings]


@pytest.mark.parametrize("scenes", [6, 38])
def test_the_recipe_of_potsdam_fits_the_look_alike(tmp_path: Path, scenes: int) -> None:
    touch(tmp_path, potsdam(potsdam_names(scenes)))
    dataset = load_dataset(load_recipe(CONFIGS / "potsdam.yaml", [f"dataset.root={tmp_path}"]))
    assert len(dataset.scenes) == scenes
    assert all(dataset.of(split) for split in SPLITS)
    if scenes == 38:
        assert dataset.notes == ()
    else:
        assert "6_9 (validation)" in dataset.notes[0]


def test_potsdam_leaves_out_and_ignores(tmp_path: Path) -> None:
    touch(tmp_path, [*potsdam(["2_10", "2_11", "4_12"]), "top_potsdam_7_7_RGB.tif"])
    dataset = load(tmp_path, "potsdam", leave_out=["04_12", "7_7"], ignore=["#102030"])
    assert [scene.name for scene in dataset.scenes] == ["2_10", "2_11"]
    assert [(path.name, why) for path, why in dataset.unused] == [
        ("top_potsdam_4_12_RGB.tif", "named in leave_out"),
        ("top_potsdam_7_7_RGB.tif", "named in leave_out"),
    ]
    assert dataset.classes.ignored == ((0, 0, 0), (16, 32, 48))
    five = load(tmp_path, "potsdam", leave_out=["7_7"], classes=5).classes
    assert (len(five), set(five.ignored)) == (5, {(0, 0, 0), (255, 0, 0)})
    with refused(ConfigError, where="dataset.ignore.0", got="'grey'"):
        load(tmp_path, "potsdam", leave_out=["7_7"], ignore=["grey"])


FOLDER: dict[str, Any] = {"images": "i/{n}.tif", "labels": "l/{n}.png", "classes": [{"name": "a", "code": 0}]}


@pytest.mark.parametrize(
    ("images", "labels", "fault", "alone", "why"),
    [
        ("abcde", "ab", "3 of 5 image", "i/c.tif i/d.tif i/e.tif", "without a label (unlabelled: skip)"),
        ("ab", "abz", "1 of 3 label", "l/z.png", "without an image (unlabelled: skip)"),
    ],
)
def test_files_without_partner_are_skipped_where_that_is_said_and_counted(
    tmp_path: Path, images: str, labels: str, fault: str, alone: str, why: str
) -> None:
    touch(tmp_path, [f"i/{n}.tif" for n in images] + [f"l/{n}.png" for n in labels])
    with refused(DatasetError, fault=fault):
        load(tmp_path, "folder", **FOLDER)
    dataset = load(tmp_path, "folder", **FOLDER, unlabelled="skip")
    assert [scene.name for scene in dataset.scenes] == ["a", "b"]
    assert dataset.unused == tuple((tmp_path / path, why) for path in alone.split())
