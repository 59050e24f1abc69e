"""Layouts of folders that nobody described: the pairs and classes found are those made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datasets.start.names import patterns_of
from segmenter.base.errors import DatasetError
from segmenter.grid.labels import IGNORE
from segmenter.raster import LabelRaster
from tests.helpers import made_folders as made

DEEPGLOBE = [
    (0, 255, 255),
    (255, 255, 0),
    (255, 0, 255),
    (0, 255, 0),
    (0, 0, 255),
    (255, 255, 255),
    (0, 0, 0),
]

LAYOUTS: dict[str, list[tuple[str, str]]] = {
    "two folders of any name": [(f"foo/{i}.tif", f"bar/{i}.tif") for i in "abcd"],
    "two folders, images of another ending": [(f"data/x{i}.jpg", f"truth/x{i}.png") for i in range(5)],
    "images and labels below a common folder": [
        (f"set/images/a{i}.png", f"set/labels/a{i}.png") for i in range(4)
    ],
    "a suffix": [(f"area {i}.tif", f"area {i}_mask.tif") for i in range(5)],
    "two suffixes in one folder": [(f"s{i}_rgb.tif", f"s{i}_cls.tif") for i in range(5)],
    "two prefixes in one folder": [(f"img{i}.png", f"seg{i}.png") for i in range(11)],
    "suffixes with dashes and numbers": [(f"2020-{i}-sat.jpg", f"2020-{i}-gt.png") for i in range(1, 6)],
    "a folder for each scene": [(f"s{i}/image.png", f"s{i}/mask.png") for i in range(7)],
    "a folder for each of many scenes": [(f"area_{i}/image.png", f"area_{i}/mask.png") for i in range(70)],
    "train, val and test with subfolders": [
        (f"{s}/images/{i}.png", f"{s}/labels/{i}.png") for s in ("train", "val", "test") for i in range(3)
    ],
    "images and labels with subfolders": [
        (f"images/{s}/{i}.png", f"labels/{s}/{i}.png") for s in ("train", "val") for i in range(3)
    ],
    "CamVid": [(f"{s}/{i}.png", f"{s}annot/{i}.png") for s in ("train", "val", "test") for i in range(4)],
    "LoveDA": [
        (f"{s}/{k}/images_png/{n}{i}.png", f"{s}/{k}/masks_png/{n}{i}.png")
        for n, (s, k) in enumerate(
            [("Train", "Urban"), ("Train", "Rural"), ("Val", "Urban"), ("Val", "Rural")]
        )
        for i in range(3)
    ],
    "DeepGlobe": [(f"train/{i}_sat.jpg", f"train/{i}_mask.png") for i in (119, 606, 855, 2334)],
    "OpenEarthMap": [
        (f"{r}/images/{r}_{i}.tif", f"{r}/labels/{r}_{i}.tif")
        for r in ("aachen", "accra", "lima")
        for i in (1, 2)
    ],
    "FLAIR": [
        (f"D0{d}_2021/Z{z}_UN/img/IMG_0{d}{z}{i}.tif", f"D0{d}_2021/Z{z}_UN/msk/MSK_0{d}{z}{i}.tif")
        for d in (4, 6)
        for z in (1, 2)
        for i in range(2)
    ],
    "Dubai": [
        (f"tile_{t}/images/image_part_00{i}.jpg", f"tile_{t}/masks/image_part_00{i}.png")
        for t in (1, 2, 5)
        for i in range(3)
    ],
    "NAIP": [(f"img/tile_{i}.tif", f"mask/mask_{i}.tif") for i in (13476, 13846, 14215)],
    "masks in one folder, images in several": [
        (f"{y}/rgb/p{y}{i}.tif", f"labels/p{y}{i}.tif") for y in (1, 2) for i in (3, 4)
    ],
    "folders of several depths": [
        ("images/a.tif", "labels/a.tif"),
        ("images/x/b.tif", "labels/b.tif"),
        ("images/x/y/c.tif", "labels/c.tif"),
    ],
    "a word of their own within names": [
        (f"img/{town}_RGB_{i}.png", f"gt/{town}_GT_{i}.png") for town in ("ulm", "bonn") for i in range(3)
    ],
    "a word more within the labels' names": [
        (f"sar/x{i}__{57 * i}_4.png", f"zones/x{i}_zones__{57 * i}_4.png") for i in range(5)
    ],
    "numbers of their own": [
        (f"p{i}_r7/L71{i}098_0{i * 37}.TIF", f"p{i}_r7/L7_p{i}_r7_mask2015.TIF") for i in range(224, 230)
    ],
    "small numbers by chance alike": [
        (f"act/E107-{i}/s1_raw/E107-{i}.tif", f"act/E107-{i}/mask/E107-{i}.tif") for i in range(5)
    ],
    "words that begin alike": [(f"m_{i}_naip.tif", f"m_{i}_nlcd.tif") for i in range(4)],
    "one image and one label": [("scene.tif", "scene_label.tif")],
    "names of other scripts": [(f"影像/区域{i}.tif", f"标签/区域{i}.tif") for i in range(3)],
    "upper-case endings": [(f"images/{i}.TIF", f"labels/{i}.TIF") for i in range(3)],
    "endings of several spellings": [
        ("im/a.jpg", "gt/a.png"),
        ("im/b.jpeg", "gt/b.png"),
        ("im/c.jpg", "gt/c.png"),
    ],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_pairs_are_those_made(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    folder, codes = tmp_path / "data", [1, 2, 5]
    if name in ("LoveDA", "CamVid", "OpenEarthMap", "FLAIR"):
        codes = [1, 2, 3, 4]
    for n, (image, label) in enumerate(LAYOUTS[name]):
        drawn = made.label(codes, shift=n)
        if name == "DeepGlobe":
            codes = list(range(6))
            drawn = made.label(codes, shift=n)
            made.save(folder / label, made.painted(drawn, dict(enumerate(DEEPGLOBE))))
        else:
            made.save(folder / label, drawn)
        made.save(folder / image, made.image(rng))
    choices, recipe, dataset = made.planned(folder)
    assert made.pairs_of(dataset) == set(LAYOUTS[name])
    assert not [choice.key for choice in choices if choice.key == "dataset.ignore"]
    if name == "DeepGlobe":
        assert dataset.classes.encoding == "colours"
        assert set(dataset.classes.names) == {
            "urban land",
            "agriculture",
            "rangeland",
            "forest",
            "water",
            "barren",
        }
    else:
        assert [each.code for each in dataset.classes.classes] == codes
    for scene in dataset.scenes:
        assert scene.label is not None
        with LabelRaster(scene.label, dataset.classes) as opened:
            assert IGNORE not in opened.ids()
    splits = {"val": "validation", "test": "test"}
    if {"train", "val"} <= {part.lower() for pair in LAYOUTS[name] for part in pair[0].split("/")}:
        wanted = {
            p: splits.get(x, "train")
            for p, _ in LAYOUTS[name]
            for x in p.lower().split("/")
            if x in ("train", *splits)
        }
        assert {s.image.relative_to(dataset.root).as_posix(): s.split for s in dataset.scenes} == wanted
    assert recipe.dataset.kind == "folder"


def test_a_pattern_does_not_cut_a_word() -> None:
    made_of = patterns_of([(f"sat_{i}.tif", f"gt_{i}.tif") for i in range(4)])
    assert (*made_of.images, made_of.labels) == ("sat_{name}.tif", "gt_{name}.tif")
    letters = patterns_of([(f"img{i}.tif", f"lbl{i}.tif") for i in "abcd"])
    assert (*letters.images, letters.labels) == ("img{name}.tif", "lbl{name}.tif")


SEVERAL: dict[str, tuple[dict[str, int], str, str]] = {
    "suffixes": ({"t{}_nrg": 3, "t{}_rgb": 3, "t{}_builds": -2, "t{}_cover": -4}, "t{}_rgb", "t{}_cover"),
    "folders": (
        {"{}/DEM/e{}": 1, "{}/s1_raw/e{}": 2, "{}/gt/e{}": -2, "{}/hydro/e{}": -2},
        "{}/s1_raw/e{}",
        "{}/gt/e{}",
    ),
    "dates": ({"{}/post-event": 1, "{}/pre-event": 3, "{}/damage": -3}, "{}/pre-event", "{}/damage"),
    "numbers": (
        {"s2_a/g{}": 4, "s2_b/g{}": 4, "m/2class/g{}": -2, "m/3class/g{}": -3},
        "s2_a/g{}",
        "m/3class/g{}",
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_images_and_labels_one_of_each_is_taken(
    name: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    kinds, image, label = SEVERAL[name]
    for kind, bands in kinds.items():
        for i in range(5):
            drawn = made.image(rng, bands) if bands > 0 else made.label(range(-bands), shift=i)
            made.save(tmp_path / f"{kind.format(i, i)}.tif", drawn)
    choices, _, dataset = made.planned(tmp_path)
    assert made.pairs_of(dataset) == {
        (f"{image.format(i, i)}.tif", f"{label.format(i, i)}.tif") for i in range(5)
    }
    others = " ".join(choice.other for choice in choices)
    assert all(kind.format(0, 0) in others for kind in kinds.keys() - {image, label})
    for other in [kind for kind, bands in kinds.items() if bands < 0 and kind != label]:
        found = made.planned(tmp_path, Path(f"{other.replace('{}', '*')}.tif"))[2]
        assert {b for _, b in made.pairs_of(found)} == {f"{other.format(i, i)}.tif" for i in range(5)}


def test_what_is_not_used_is_said(tmp_path: Path, rng: np.random.Generator) -> None:
    for end in ("", *range(2, 6)):
        made.save(tmp_path / f"pairs/x/image{end}.tif", made.image(rng))
        made.save(tmp_path / f"pairs/x/labels{end}.tif", made.label([0, 1, 2]))
        made.save(tmp_path / f"unread/im/a{end}.tif", made.image(rng))
        (tmp_path / "unread/gt").mkdir(exist_ok=True)
        (tmp_path / f"unread/gt/a{end}.npy").write_bytes(b"")
    choices, _, dataset = made.planned(tmp_path / "pairs")
    assert len(dataset.scenes) == 4
    assert "labels.tif" in next(choice.other for choice in choices if choice.key == "dataset.labels")
    with pytest.raises(DatasetError, match=r"5 \.npy in gt"):
        made.planned(tmp_path / "unread")
    with pytest.raises(DatasetError, match="nothing"):
        made.planned(tmp_path / "pairs", Path("*_nothing.tif"))


def test_of_two_collections_of_other_folders_the_larger_is_taken(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    larger = [(f"A/img/{i}.tif", f"A/msk/{i}.tif") for i in range(6)]
    for n, (image, label) in enumerate([*larger, *((f"B/rgb/x{i}.tif", f"B/gt/x{i}.tif") for i in range(3))]):
        made.save(tmp_path / image, made.image(rng))
        made.save(tmp_path / label, made.label([0, 1, 2], shift=n))
    choices, _, dataset = made.planned(tmp_path)
    assert made.pairs_of(dataset) == set(larger)
    assert "B/gt/" in " ".join(choice.other for choice in choices)
