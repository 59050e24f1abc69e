"""Habits of published data sets: lists of absent files, polygons by tile, grey colours, nodata tags."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.published import POTSDAM
from datasets.start.choice import Choice
from datasets.start.groups import groups_of
from datasets.start.look import look
from segmenter.base.errors import ConfigError, DatasetError, RasterError
from segmenter.config.reading import recipe_from
from segmenter.grid.labels import IGNORE
from segmenter.raster import LabelRaster, raster_info
from tests.helpers import made_folders as made

Rng = np.random.Generator
ISPRS = {i: each.colour for i, each in enumerate(POTSDAM.classes)}
DEEPGLOBE = {
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


# --------------------------------------------------------------------------------------- names of classes


@pytest.mark.parametrize(("colours", "name"), [(ISPRS, "car"), (DEEPGLOBE, "urban land")])
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
    ("file", "lines", "names"),
    [
        ("test.txt", ["grass", "road", "water"], 0),
        ("train_list.txt", [f"M-{i}-d_{i}" for i in range(5)], 0),
        ("tiles.txt", ["s1", "s2", "s3", "t4"], 0),
        ("authors.txt", [f"name{i}" for i in range(20)], 0),
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
    assert label is not None
    with LabelRaster(label, dataset.classes) as raster:
        assert (dataset.classes.codes()[raster.ids()] == drawn[0]).all()


def test_grey_colours_that_a_list_names_are_colours(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/{i}.png", made.image(rng))
        made.save(tmp_path / f"gt/{i}.png", made.painted(made.label([0, 1], shift=i), {1: (255, 255, 255)}))
    (tmp_path / "class_dict.csv").write_text("name,r,g,b\nland,0,0,0\nroad,255,255,255\n")
    choices = seen(tmp_path)
    assert (names_of(choices), choices["dataset.encoding"].value) == (["land", "road"], "colours")


@pytest.mark.parametrize(("values", "tag"), [((0, 1), 0), ((0, 1, 2), 0), ((3, 7), 7)])
def test_a_nodata_tag_where_images_have_data_is_a_class(
    tmp_path: Path, rng: Rng, values: tuple[int, ...], tag: int
) -> None:
    folder(tmp_path, rng, "abc", values)
    for path in (tmp_path / "gt").iterdir():
        with LabelRaster(path) as raster:
            made.save(path.with_suffix(".tif"), raster.stored()[0], nodata=tag)
        path.unlink()
    choices, _, dataset = made.planned(tmp_path)
    by_key = {choice.key: choice for choice in choices}
    assert by_key["dataset.label_nodata"].value == "class"
    assert [each.code for each in dataset.classes.classes] == list(values)


def test_a_nodata_tag_where_images_are_empty_counts_nowhere(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        light, drawn = made.image(rng), made.label([1, 2, 3], shift=i)
        light[:, :20], drawn[:, :20] = 0, 0
        made.save(tmp_path / f"im/{i}.tif", light)
        made.save(tmp_path / f"gt/{i}.tif", drawn, nodata=0)
    choices = seen(tmp_path)
    assert len(names_of(choices)) == 3
    assert choices["dataset.ignore"].value == [0]
    assert "dataset.label_nodata" not in choices


def test_labels_of_one_class_are_refused(tmp_path: Path, rng: Rng) -> None:
    folder(tmp_path, rng, "abc", (1,))
    with pytest.raises(DatasetError, match="1 alone"):
        look(tmp_path)


def test_labels_of_four_bands_of_16_bits_are_refused_by_what_they_are(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        made.save(tmp_path / f"s2/{i}.tif", made.image(rng, 6, dtype="uint16"))
        made.save(tmp_path / f"lc/{i}.tif", np.repeat(made.label([1, 2, 300], shift=i)[..., None], 4, 2))
    with pytest.raises(RasterError, match=r"4 of uint16.*-b"):
        look(tmp_path, tmp_path / "lc")


# --------------------------------------------------------------------------------------- published splits


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


def test_folders_named_after_splits_among_other_words_are_the_split(tmp_path: Path, rng: Rng) -> None:
    for part in ("training_data", "validation_data", "test_data"):
        folder(tmp_path / part, rng, ("a1", "b2"))
    dataset = made.planned(tmp_path)[2]
    assert {scene.name.partition("_")[0]: scene.split for scene in dataset.scenes} == {
        "training": "train",
        "validation": "validation",
        "test": "test",
    }


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


# --------------------------------------------------------------------------------------- polygons by tile


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
        assert scene.label is not None
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
    words = [["wood", "water"], ["wood", "road"], ["water", "road"], ["road", "road", "wood"]]
    for i, each in enumerate(words):
        tile(tmp_path, rng, i, [{"fid_": k, attribute: word} for k, word in enumerate(each)])
    if empty:
        tile(tmp_path, rng, len(words), [])
    choices, _, dataset = made.planned(tmp_path)
    assert {choice.key: choice for choice in choices}["dataset.vector.attribute"].value == attribute
    assert dataset.classes.names == ["background"] * empty + ["road", "water", "wood"]
    assert len(dataset.scenes) == len(words) + empty
    label = dataset.scenes[0].label
    assert label is not None
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
