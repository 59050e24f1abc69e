"""Layouts of folders that nobody described, and real imagery: pairs, classes and splits are those made."""

import itertools
import json
import unicodedata
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.published import POTSDAM
from datasets.start.choice import Choice
from datasets.start.groups import groups_of
from datasets.start.look import look
from datasets.start.names import patterns_of
from datasets.synthetic.make import make_naic2020, make_potsdam
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.reading import recipe_from
from segmenter.grid.labels import IGNORE
from segmenter.raster import LabelRaster, raster_info
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
    "accents in one letter, and apart as in archives of macOS": [
        (f"Höhe/{n}_é.tif", unicodedata.normalize("NFD", f"Größe/{n}_é.tif")) for n in "äöüñ"
    ],
    "a suffix": [(f"area {i}.tif", f"area {i}_mask.tif") for i in range(5)],
    "two prefixes in one folder": [(f"img{i}.png", f"seg{i}.png") for i in range(11)],
    "suffixes with dashes and numbers": [(f"2020-{i}-sat.jpg", f"2020-{i}-gt.png") for i in range(1, 6)],
    "a folder for each scene": [(f"s{i}/image.png", f"s{i}/mask.png") for i in range(7)],
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
    ends = {"LoveDA": (1, 8), "CamVid": (0, 11), "OpenEarthMap": (1, 9), "FLAIR": (1, 20)}
    folder, codes = tmp_path / "data", list(range(*ends[name])) if name in ends else [1, 2, 5]
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
    asked = [choice.key for choice in choices if choice.question]
    assert asked == ["dataset.classes"] * (name == "OpenEarthMap"), "whose folders anyone might have"
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
    "instances": (
        {"im/g{}": 3, "gt/g{}_labelIds": -3, "gt/g{}_instanceIds": -7},
        "im/g{}",
        "gt/g{}_labelIds",
    ),
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
    pairs = {(f"{image.format(i, i)}.tif", f"{label.format(i, i)}.tif") for i in range(5)}
    assert made.pairs_of(dataset) == pairs
    assert not [choice.question for choice in choices if choice.question]
    told = " ".join(choice.other for choice in choices)
    assert all(kind.format(0, 0) in told for kind in kinds.keys() - {image, label})
    for other in [kind for kind, bands in kinds.items() if bands < 0 and kind != label]:
        found = made.planned(tmp_path, Path(f"{other.replace('{}', '*')}.tif"))[2]
        assert {b for _, b in made.pairs_of(found)} == {f"{other.format(i, i)}.tif" for i in range(5)}


def test_of_copies_with_other_endings_one_is_taken(tmp_path: Path, rng: np.random.Generator) -> None:
    """Massachusetts Buildings, as archives have them."""
    for ending, of_label in (("png", "png"), ("tiff", "tif")):
        for split, i in itertools.product(("train", "val", "test"), range(2)):
            made.save(tmp_path / f"{ending}/{split}/{i}.{ending}", made.image(rng))
            label = made.label([0, 255], shift=i)
            made.save(tmp_path / f"{ending}/{split}_labels/{i}.{of_label}", label)
    choices = seen(tmp_path)
    assert choices["dataset.images"].value == "png/{split}/{name}.png"
    assert choices["dataset.labels"].value == "png/{split}_labels/{name}.png"
    assert "tiff/test/0.tiff" in choices["dataset.images"].other


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


Rng = np.random.Generator
ISPRS = {i: each.colour for i, each in enumerate(POTSDAM.classes)}
LAND_COVER = {
    0: (0, 255, 255),
    1: (255, 255, 0),
    2: (255, 0, 255),
    3: (0, 255, 0),
    4: (0, 0, 255),
    5: (255,) * 3,
}


def folder(root: Path, rng: Rng, names: Any, values: Any = (0, 1, 2), **options: Any) -> Path:
    """Images `im/NAME.png` and labels `gt/NAME.png`; names may have folders."""
    for i, name in enumerate(names):
        made.save(root / f"im/{name}.png", made.image(rng))
        made.save(root / f"gt/{name}.png", made.label(values, shift=i), **options)
    return root


def seen(root: Path, labels: Path | None = None) -> dict[str, Choice]:
    return {choice.key: choice for choice in look(root, labels)}


def names_of(choices: dict[str, Choice]) -> list[str]:
    return [each["name"] for each in choices["dataset.classes"].value]


@pytest.mark.parametrize(("colours", "name"), [(ISPRS, "car"), (LAND_COVER, "urban land")])
@pytest.mark.parametrize("lacking", [0, 1])
def test_of_published_lists_of_colours_the_nearest_is_taken(
    tmp_path: Path, rng: Rng, colours: dict[int, tuple[int, int, int]], name: str, lacking: int
) -> None:
    absent, hidden = {"car": ("clutter", (255, 0, 0)), "urban land": ("rangeland", (255, 0, 255))}[name]
    kept = {i: colour for i, colour in colours.items() if not (lacking and colour == hidden)}
    for i in range(2):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng))
        made.save(tmp_path / f"gt/{i}.tif", made.painted(made.label(list(kept), shift=i), kept))
    choices = seen(tmp_path)
    told = "DeepGlobe" in choices["dataset.classes"].reason
    if lacking:
        assert told  # as colours of both lists would be
    else:
        assert {name, absent} <= set(names_of(choices))
        assert told == (name != "car")


@pytest.mark.parametrize(
    ("colours", "named", "ignored"),
    [
        ("000000 0000ff 00ff00 00ffff ff0000 ffff00", "background water farmland forest built-up meadow", 0),
        ("000000 0000ff 00ff00 00ffff ff0000 ffff00 ffffff", "building tree clutter car", 1),
    ],
)
def test_a_list_that_has_all_colours_comes_before_its_kin(
    tmp_path: Path, rng: Rng, colours: str, named: str, ignored: int
) -> None:
    """GID's colours are ISPRS's but for white; where borders are black, ISPRS's are GID's and white."""
    painted = {i: (each[0], each[1], each[2]) for i, each in enumerate(map(bytes.fromhex, colours.split()))}
    for i in range(2):
        made.save(tmp_path / f"im/{i}.png", made.image(rng))
        made.save(tmp_path / f"gt/{i}.png", made.painted(made.label(list(painted), shift=i), painted))
    choices = seen(tmp_path)
    assert {*named.split()} <= {*names_of(choices)}
    assert len(names_of(choices)) + ignored == len(painted)


@pytest.mark.parametrize(
    "colours", ["ff0000 00ff00 0000ff ffff00", "000000 ff0000 00ff00 0000ff ff00ff ffff00", "00ff00 ffffff"]
)
def test_colours_that_anyone_takes_name_no_published_list(tmp_path: Path, rng: Rng, colours: str) -> None:
    """As grains of sandstone are painted: all are ISPRS's, which has two more."""
    painted = {i: (each[0], each[1], each[2]) for i, each in enumerate(map(bytes.fromhex, colours.split()))}
    for i in range(2):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng))
        made.save(tmp_path / f"gt/{i}.tif", made.painted(made.label(list(painted), shift=i), painted))
    assert not {each.name for each in POTSDAM.classes} & set(names_of(seen(tmp_path)))


@pytest.mark.parametrize(
    ("file", "lines", "names"),
    [
        ("test.txt", ["grass", "road", "water"], 0),
        ("train_list.txt", [f"M-{i}-d_{i}" for i in range(5)], 0),
        ("tiles.txt", ["s1", "s2", "s3", "t4"], 0),
        ("split.csv", [",file,train", "0,s1_a.png,False", "1,s2_b.png,True", "2,s3_c.png,True"], 0),
        ("authors.txt", [f"name{i}" for i in range(20)], 0),
        ("tiles.csv", ["tile;state;ha", *(f"{i:05};checked;0,{i}" for i in range(9))], 0),
        ("classes.txt", ["grass", "road", "water", "sea"], 3),
        ("class_dict_test.csv", ["name,value", "grass,0", "road,1", "water,2"], 3),
    ],
)
def test_lists_of_other_things_name_no_classes(
    tmp_path: Path, rng: Rng, file: str, lines: list[str], names: int
) -> None:
    folder(tmp_path, rng, ("s1_a", "s2_b", "s3_c"))
    (tmp_path / file).write_text("\n".join(lines))
    choices = seen(tmp_path)
    assert sum(not name.startswith("class ") for name in names_of(choices)) == names
    assert bool(choices["dataset.classes"].other) == (names == 0)


@pytest.mark.parametrize("values", [(0, 1, 2, 3, 4), (0, 255), (0, 128, 255)])
def test_grey_colours_are_codes_that_are_read_as_codes(tmp_path: Path, rng: Rng, values: Any) -> None:
    drawn = [made.label(values, shift=i).astype(np.uint8) for i in range(3)]
    for i, each in enumerate(drawn):
        made.save(tmp_path / f"{i}.jpg", made.image(rng))
        made.save(tmp_path / f"{i}_m.png", np.repeat(each[..., None], 3, 2))
    _, _, dataset = made.planned(tmp_path)
    assert dataset.classes.encoding == "codes"
    assert [each.code for each in dataset.classes.classes] == list(values)
    label = dataset.scenes[0].label
    with LabelRaster(label, dataset.classes) as raster:
        assert (dataset.classes.codes()[raster.ids()] == drawn[0]).all()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("class_dict.csv", "name,r,g,b\nland,0,0,0\nroad,255,255,255\n"),
        ("labelmap.txt", "# label:color_rgb:parts:actions\nroad:255,255,255::\nland:0,0,0::\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["colours", "codes"])
def test_a_list_names_greys_as_colours_and_as_codes(
    tmp_path: Path, rng: Rng, file: str, text: str, encoding: str
) -> None:
    for i in range(3):
        drawn = made.painted(made.label([0, 1], shift=i), {1: (255, 255, 255)})
        made.save(tmp_path / f"im/{i}.png", made.image(rng))
        made.save(tmp_path / f"gt/{i}.png", drawn if encoding == "colours" else drawn[..., 0])
    (tmp_path / file).write_text(text)
    choices = seen(tmp_path)
    assert (names_of(choices), choices["dataset.encoding"].value) == (["land", "road"], encoding)


@pytest.mark.parametrize(("values", "tag"), [((0, 1), 0), ((0, 1, 2), 0), ((3, 7), 7)])
def test_a_nodata_tag_where_images_have_data_is_a_class(
    tmp_path: Path, rng: Rng, values: tuple[int, ...], tag: int
) -> None:
    folder(tmp_path, rng, "abc", values)
    for path in (tmp_path / "gt").iterdir():
        with LabelRaster(path) as raster:
            made.save(path.with_suffix(".tif"), raster.stored_values()[0], nodata=tag)
        path.unlink()
    choices, _, dataset = made.planned(tmp_path)
    by_key = {choice.key: choice for choice in choices}
    assert by_key["dataset.label_nodata"].value == "class"
    assert [each.code for each in dataset.classes.classes] == list(values)
    if len(named := set(values) - {tag}) > 1:  # a list that knows the others tells more
        (tmp_path / "classes.txt").write_text("".join(f"{value},wood {value}\n" for value in named))
        choices, _, dataset = made.planned(tmp_path)
        assert "ignore" in {choice.value for choice in choices if choice.key == "dataset.label_nodata"}
        assert {each.code for each in dataset.classes.classes} == named


def test_labels_of_one_class_are_refused(tmp_path: Path, rng: Rng) -> None:
    folder(tmp_path, rng, "abc", (1,))
    with pytest.raises(DatasetError, match="1 alone"):
        look(tmp_path)


def test_lists_that_name_absent_files_hold_out_what_is_there(tmp_path: Path, rng: Rng) -> None:
    folder(tmp_path, rng, [f"a_{i}" for i in range(7)])
    (tmp_path / "train_setlevel.txt").write_text("a_0\na_1\na_2\na_97\n")
    (tmp_path / "val_list.txt").write_text("a_3.tif,x\na_98.tif,x\n")
    (tmp_path / "holdout.txt").write_text("a_4\na_5\na_99\n\n")
    (tmp_path / "train_log.txt").write_text("epoch 1\n")
    choices = seen(tmp_path)
    assert choices["dataset.split.validation"].value == ["a_3"]
    assert choices["dataset.split.test"].value == ["a_4", "a_5"]
    for told in ("train_setlevel", "val_list", "holdout", "a_6"):
        assert told in choices["dataset.split.validation"].reason
    assert "train_log" not in choices["dataset.split.validation"].reason


def test_a_name_that_two_scenes_have_is_taken_with_its_folder(tmp_path: Path, rng: Rng) -> None:
    for city in ("north", "south"):
        folder(tmp_path / city, rng, ("1", "2"))
    (tmp_path / "val.txt").write_text("north/im/1.png\n2\n")
    assert seen(tmp_path)["dataset.split.validation"].value == ["north_1"]


def test_lists_that_leave_nothing_to_train_are_no_split(tmp_path: Path, rng: Rng) -> None:
    folder(tmp_path, rng, "abc")
    (tmp_path / "test.txt").write_text("a\nb\nc\n")
    assert not any("split" in key for key in seen(tmp_path))


@pytest.mark.parametrize("place", ["{}_{}", "{1}_{0}", "{}{}"])
def test_names_that_tell_the_split_are_the_split(tmp_path: Path, rng: Rng, place: str) -> None:
    folder(tmp_path, rng, [place.format(split, i) for i, split in enumerate(["train"] * 3 + ["val", "test"])])
    choices = seen(tmp_path)
    assert choices["dataset.split.validation"].value == [place.format("val", 3)]
    assert choices["dataset.split.test"].value == [place.format("test", 4)]


def test_names_of_which_some_tell_no_split_are_none(tmp_path: Path, rng: Rng) -> None:
    folder(tmp_path, rng, ("train_1", "test_1", "field_1"))
    assert not any("split" in key for key in seen(tmp_path))


def test_groups_go_by_the_names_of_the_sources_of_made_images(
    tmp_path: Path, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    for city in ("bonn", "koeln", "aachen"):
        for i in range(2):
            made.save(tmp_path / f"d/{city}/{i}_rgb.jp2", made.image(rng, size=(64, 64)))
            made.save(tmp_path / f"d/{city}/{i}_seg.tif", made.label([1, 2], (64, 64), i))
    monkeypatch.chdir(tmp_path)
    _, _, dataset = made.planned(Path("d"))
    infos = [raster_info(scene.image) for scene in dataset.scenes]
    groups = groups_of(dataset.root, dataset.scenes, infos, 8.0)
    assert groups.names == ("aachen", "bonn", "koeln")


def tile(root: Path, rng: Rng, i: int, properties: list[dict[str, Any]] | None) -> None:
    """Image `im/i.tif`, and `gt/i.geojson` with a square for each of the properties; None: no byte."""
    made.save(root / f"im/{i}.tif", made.image(rng), **made.place(i * made.SIZE[1]))
    (root / "gt").mkdir(exist_ok=True)
    left, top = made.LEFT + i * made.SIZE[1] * made.METRES, made.TOP
    features = []
    for k, each in enumerate(properties or []):
        x, y = left + 2 + 5 * k, top - 12
        ring = [[x, y], [x + 4, y], [x + 4, y + 9], [x, y + 9], [x, y]]
        shape = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "properties": each, "geometry": shape})
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::25833"}} if features else None
    text = json.dumps({"type": "FeatureCollection", "crs": crs, "features": features})
    (root / f"gt/{i}.geojson").write_text("" if properties is None else text)


SPACENET = [
    [
        {
            "OBJECTID": k,
            "FEAT_ID": 10 * i + k,
            "ImageId": f"img{i}",
            "QAStatus": "Released",
            "partial": k % 2,
            "part": 1.0,
        }
        for k in range(4)
    ]
    for i in range(3)
]
"""Attributes of tiles as SpaceNet has them: numbers, name of the image, state, flag, share."""


@pytest.mark.parametrize("properties", [SPACENET, [[{}] * 3, [{}] * 2]])
@pytest.mark.parametrize("empty", [[None], [[]], [None, []], []])
def test_polygons_of_tiles_without_classes_are_one_class_and_empty_tiles_background(
    tmp_path: Path, rng: Rng, properties: list[Any], empty: list[Any]
) -> None:
    pytest.importorskip("pyogrio")
    for i, each in enumerate([*empty, *properties]):
        tile(tmp_path, rng, i, each)
    choices, _, dataset = made.planned(tmp_path)
    by_key = {choice.key: choice for choice in choices}
    assert by_key["dataset.vector.attribute"].value is None
    assert dataset.classes.names == ["background", "foreground"]
    assert len(dataset.scenes) == len(empty) + len(properties)
    squares = [len(each or ()) for each in (*empty, *properties)]
    for scene, count in zip(dataset.scenes, squares, strict=True):
        with LabelRaster(scene.label, dataset.classes) as raster:
            ids = raster.ids()
        assert (ids == 1).sum() == count * 8 * 18  # squares of 4 m by 9 m at 0.5 m
        assert (ids == 0).sum() == ids.size - (ids == 1).sum()
    if SPACENET is properties:
        assert "OBJECTID" in by_key["dataset.vector.attribute"].other


@pytest.mark.parametrize("attribute", ["class", "nutzung"])
@pytest.mark.parametrize("empty", [True, False])
def test_polygons_of_tiles_with_few_words_have_classes(
    tmp_path: Path, rng: Rng, attribute: str, empty: bool
) -> None:
    pytest.importorskip("pyogrio")
    words = [["wood", "water"], ["wood", "road", "ignore"], ["water", "road"], ["road", "road", "wood"]]
    for i, each in enumerate(words):
        more = [{"a_class": len(word)} if attribute == "class" else {} for word in each]
        tile(tmp_path, rng, i, [{"fid_": k, attribute: word, **more[k]} for k, word in enumerate(each)])
    if empty:
        tile(tmp_path, rng, len(words), [])
    choices, _, dataset = made.planned(tmp_path)
    assert {choice.key: choice for choice in choices}["dataset.vector.attribute"].value == attribute
    assert dataset.classes.names == ["background"] * empty + ["road", "water", "wood"]
    assert len(dataset.scenes) == len(words) + empty
    label = dataset.scenes[0].label
    with LabelRaster(label, dataset.classes) as raster:
        assert (IGNORE in raster.ids()) != empty


def test_tiles_without_any_polygon_are_refused(tmp_path: Path, rng: Rng) -> None:
    pytest.importorskip("pyogrio")
    for i in range(3):
        tile(tmp_path, rng, i, [])
    with pytest.raises(DatasetError, match="polygons"):
        look(tmp_path)


@pytest.mark.parametrize(("outside", "right"), [("a", True), ("ignore", False)])
def test_no_attribute_is_for_one_class_beside_outside(outside: str, right: bool) -> None:
    vector = {"attribute": None, "outside": outside}
    files = {"root": ".", "images": "{name}.tif", "labels": "{name}.geojson"}
    dataset = {"kind": "folder", **files, "classes": [{"name": "a"}, {"name": "b"}], "vector": vector}
    with nullcontext() if right else pytest.raises(ConfigError, match=r"dataset\.vector\.attribute"):
        recipe_from({"name": "x", "dataset": dataset}, "made")


Shared = Callable[[str], Path]


def reasons(choices: tuple[Choice, ...]) -> dict[str, Choice]:
    return {choice.key: choice for choice in choices}


@pytest.mark.slow
def test_dubai(shared_data: Shared) -> None:
    choices, _, dataset = made.planned(shared_data("dubai"))
    assert (len(dataset.scenes), dataset.classes.encoding) == (45, "colours")
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
