"""`dataset.labels` of polygons: `check`, the tile index and training's tiles see the same labels."""

import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
import yaml

from datasets import load_dataset
from datasets.commands import call as main
from datasets.made import MadeFilesError
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.reading import describe_recipe, recipe_from
from segmenter.config.recipe import Recipe, TilesConfig
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset
from segmenter.raster import LabelRaster
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers import made_folders as made
from tests.helpers.refusals import refused

Make = Callable[..., Path]
SIZE = (41, 53)
X, Y = 368000.0, 5808000.0


def box(col: float, row: float, cols: float, rows: float) -> Any:
    return shapely.box(X + col / 2, Y - (row + rows) / 2, X + (col + cols) / 2, Y - row / 2)


def write(path: Path, shapes: list[Any], values: list[str | None]) -> Path:
    raw = pytest.importorskip("pyogrio.raw")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    raw.write(path, shapely.to_wkb(np.array(shapes)), [np.array(values, object)], ["kind"], driver="GPKG",
              geometry_type="Polygon", crs="EPSG:25833")  # fmt: skip
    return path


@pytest.fixture
def scenes(make_geotiff: Make, tmp_path: Path, rng: np.random.Generator) -> Path:
    """Three images side by side."""
    for i, name in enumerate("abc"):
        where = rasterio.Affine(0.5, 0, X + i * SIZE[1] / 2, 0, -0.5, Y)
        make_geotiff(f"data/{name}.tif", rng.integers(1, 255, (*SIZE, 3), np.uint8), transform=where)
    return tmp_path / "data"


def recipe(root: Path, **changes: Any) -> Recipe:
    section: dict[str, Any] = {
        "kind": "folder",
        "root": str(root),
        "images": "{name}.tif",
        "labels": "all.gpkg",
        "vector": {"attribute": "kind"},
        "classes": [{"name": "water"}, {"name": "road"}],
        "split": {"validation": ["c"]},
    }
    return recipe_from({"name": "t", "dataset": {**section, **changes}}, "t")


ALL = [(0, 0, 40, 10), (40, 0, 100, 20), (0, 20, 53, 21)]
KINDS: list[str | None] = ["water", "road", "water"]


def truth() -> np.ndarray[Any, Any]:
    """Of the three images in a row."""
    ids = np.full((SIZE[0], 3 * SIZE[1]), IGNORE, np.uint8)
    ids[:10, :40], ids[:20, 40:140], ids[20:, :53] = 0, 1, 0
    return ids


def test_one_file_for_all_images_is_what_training_reads(scenes: Path, tmp_path: Path) -> None:
    write(scenes / "all.gpkg", [box(*each) for each in ALL], KINDS)
    dataset = load_dataset(recipe(scenes))
    assert [s.split for s in dataset.scenes] == ["train", "train", "validation"]
    assert f"labels: polygons of {scenes}/all.gpkg (EPSG:25833), rasterised on the" in dataset.notes[0]
    index = build_index(dataset, "train", TilesConfig(size=16, min_labelled=0), progress=False)
    expected = truth()
    store = SceneStore(dataset, index.scenes, 16, cache_folder(dataset))
    for i in range(len(index)):
        window, scene = index.window(i), int(index.scene_N[i])
        own = expected[:, scene * SIZE[1] : (scene + 1) * SIZE[1]][window.slices()]
        read = store.read_label(scene, window)[: own.shape[0], : own.shape[1]]
        np.testing.assert_array_equal(read, own)
        assert index.counts_NK[i].tolist() == [(own == k).sum() for k in range(2)]


@pytest.mark.parametrize(
    "numbers",
    [(1, 2), (0, 1), (1, 0), (1.0, 2.0), ("1", "2"), (5, 6)],
    ids=["from 1", "from 0", "swapped", "floats", "texts", "far"],
)
def test_a_number_means_a_class_by_its_code_alone(scenes: Path, numbers: tuple[Any, Any]) -> None:
    """Never by its place in the recipe; the error names the codes that would say what places said."""
    first, second = numbers
    _numbered(scenes / "all.gpkg", [first, second, first])
    with refused(MadeFilesError, fault="[{name: water, code: 0}, {name: road, code: 1}]"):
        load_dataset(recipe(scenes))
    expected = truth()
    coded = [{"name": "water", "code": int(first)}, {"name": "road", "code": int(second)}]
    values = {str(int(first)): "water", str(int(second)): "road"}
    named = [{"name": str(int(number))} for number in numbers]
    for changes in (
        {"classes": coded},
        {"vector": {"attribute": "kind", "values": values}},
        {"classes": named},
        {"classes": [coded[0], {"name": "road"}], "vector": {"attribute": "kind", "values": values}},
    ):
        found = _labels_as_ids(load_dataset(recipe(scenes, **changes)))
        np.testing.assert_array_equal(found, expected)


def test_of_classes_with_and_without_codes_only_those_with_them_have_numbers(scenes: Path) -> None:
    """A made-up code is none of a written one either."""
    classes = [{"name": "road"}, {"name": "water", "code": 0}, {"name": "roof", "also": "2-4"}]
    _numbered(scenes / "all.gpkg", [0, 0, 0])
    dataset = load_dataset(recipe(scenes, classes=classes))
    assert len({each.code for each in dataset.classes.classes}) == 3
    assert set(np.unique(_labels_as_ids(dataset))) == {1, IGNORE}
    for number in (1, 2, 3):
        _numbered(scenes / "all.gpkg", [0, number, 0])
        with refused(MadeFilesError, fault="{name: water, code: 0}"):
            load_dataset(recipe(scenes, classes=classes))


@pytest.mark.parametrize("values", [[1, 2, 3], [0, 1, 2], [7, 40, 100]])
def test_numbers_of_polygons_are_planned_by_what_they_say_not_by_their_place(
    tmp_path: Path, rng: np.random.Generator, values: list[int]
) -> None:
    raw = pytest.importorskip("pyogrio.raw")
    for i in range(3):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng), **made.place(i * made.SIZE[1]))
    left, top = made.LEFT, made.TOP
    shapes = [shapely.box(left + x, top - 20, left + x + 8, top - 2) for x in range(0, 120, 10)]
    options = {"driver": "GPKG", "geometry_type": "Polygon", "crs": "EPSG:25833"}
    column = np.array(values * 4, np.int32)
    raw.write(tmp_path / "areas.gpkg", shapely.to_wkb(np.array(shapes)), [column], ["class"], **options)
    _, _, dataset = made.planned(tmp_path)
    assert dataset.classes.names == [str(value) for value in sorted(values, key=str)]
    with LabelRaster(dataset.scenes[0].label, dataset.classes) as label:
        row = label.ids()[10]
    names = [dataset.classes.names[id_] for id_ in row[row != IGNORE]]
    assert [name for name, _ in itertools.groupby(names)][:3] == [str(value) for value in values]


def _numbered(path: Path, values: list[Any]) -> None:
    """Write the polygons with values of their own type: whole numbers, floats or texts."""
    raw = pytest.importorskip("pyogrio.raw")
    path.unlink(missing_ok=True)
    column = np.array(values, object if isinstance(values[0], str) else None)
    shapes = shapely.to_wkb(np.array([box(*each) for each in ALL]))
    raw.write(path, shapes, [column], ["kind"], driver="GPKG", geometry_type="Polygon", crs="EPSG:25833")


def _labels_as_ids(dataset: Dataset) -> np.ndarray[Any, Any]:
    """Return the labels of all images in a row."""
    rows = []
    for scene in dataset.scenes:
        assert scene.label is not None
        with LabelRaster(scene.label, dataset.classes) as label:
            rows.append(label.ids())
    return np.concatenate(rows, axis=1)


def test_a_label_is_made_once_and_anew_when_polygons_change(
    scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(scenes / "all.gpkg", [box(*each) for each in ALL], KINDS)
    first = _labels(load_dataset(recipe(scenes)))
    assert _labels(load_dataset(recipe(scenes))) == first
    other = {"attribute": "kind", "outside": "road"}
    assert _labels(load_dataset(recipe(scenes, vector=other))).keys() == first.keys()
    write(path, [box(*each) for each in ALL], ["road", "road", "water"])
    os.utime(path, ns=(1, 1))
    again = load_dataset(recipe(scenes))
    assert set(_labels(again)["a"]) != set(first["a"])
    folder = cache_folder(again) / "labels"
    old = [p for p in folder.iterdir() if p.name.startswith("a-")]
    assert len(old) == 3  # a training may be at work with the older ones
    later = time.time() + 40 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    write(path, [box(*each) for each in ALL], KINDS)
    (folder / f".a.tif.tmp-{2**22 + 1}").touch()
    os.utime(folder / f".a.tif.tmp-{2**22 + 1}", ns=(1, 1))
    load_dataset(recipe(scenes))
    assert len([p for p in folder.iterdir() if p.name.startswith("a-")]) == 2  # and that of another rule
    assert not list(folder.glob(".*"))


def _labels(dataset: Dataset) -> dict[str, tuple[str, int]]:
    return {s.name: (str(s.label), s.label.stat().st_mtime_ns) for s in dataset.scenes if s.label is not None}


def test_a_file_for_each_image(scenes: Path) -> None:
    for name in "abc":
        write(scenes / f"labels/{name}.gpkg", [box(*each) for each in ALL], KINDS)
    dataset = load_dataset(recipe(scenes, labels="labels/{name}.gpkg"))
    index = build_index(dataset, "train", TilesConfig(size=16, min_labelled=0), progress=False)
    assert index.counts_NK.sum() > 0
    write(scenes / "labels/b.gpkg", [box(0, 500, 9, 9)], ["road"])
    with refused(MadeFilesError, fault="b.gpkg: expected polygons"):
        load_dataset(recipe(scenes, labels="labels/{name}.gpkg"))
    (scenes / "labels/b.gpkg").unlink()
    with refused(DatasetError, fault="1 of 3 image"):
        load_dataset(recipe(scenes, labels="labels/{name}.gpkg"))


def test_images_without_a_polygon_are_refused_skipped_or_of_a_class(scenes: Path) -> None:
    write(scenes / "all.gpkg", [box(*ALL[0]), box(*ALL[1])], ["water", None])
    write(scenes / "first.gpkg", [box(*ALL[0])], ["water"])
    assert len(load_dataset(recipe(scenes)).scenes) == 3  # null says that it is to be ignored
    with refused(DatasetError, where="dataset.labels", fault="2 of 3 images"):
        load_dataset(recipe(scenes, labels="first.gpkg"))
    dataset = load_dataset(recipe(scenes, labels="first.gpkg", unlabelled="skip"))
    assert [scene.name for scene in dataset.scenes] == ["a"]
    assert [path.name for path, why in dataset.unused if "without a label" in why] == ["b.tif", "c.tif"]
    rule = {"attribute": "kind", "outside": "road"}
    outside = load_dataset(recipe(scenes, labels="first.gpkg", vector=rule))
    index = build_index(outside, "validation", TilesConfig(size=16), progress=False)
    assert index.counts_NK.sum(axis=0)[0] == 0
    assert index.counts_NK.sum() > 0


def test_check_counts_and_shows_every_fault(
    scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(scenes / "all.gpkg", [box(*each) for each in ALL], ["water", "lake", "water"])
    config = tmp_path / "r.yaml"
    config.write_text(yaml.safe_dump(recipe(scenes).model_dump(mode="json")))
    assert main(["check", str(config)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("label: 1\n  ")  # the same of three images
    assert "all.gpkg: feature 2: kind is 'lake', which names no class" in said
    assert main(["check", str(config), "--set", "dataset.vector.values={lake: water}"]) == 1
    said = capsys.readouterr().out
    assert "class: 1\n  road: no pixel in any scene" in said
    assert main(["check", str(config), "--set", "dataset.vector.values={lake: road}"]) == 0
    said = capsys.readouterr().out
    expected = truth()
    rows = [line.split() for line in said.splitlines() if line.startswith(("water", "road"))]
    assert [int(row[1].replace(",", "")) for row in rows] == [int((expected == k).sum()) for k in range(2)]


def test_a_recipe_is_read_and_explained(scenes: Path) -> None:
    text = describe_recipe(recipe(scenes))
    assert "attribute: kind  # attribute that holds a polygon's class" in text
    vector = {"attribute": "n", "values": {1: "water", "9": "ignore"}, "order": ["road"]}
    numbers = recipe(scenes, vector=vector)
    assert numbers.dataset.vector.values == {"1": "water", "9": "ignore"}  # type: ignore[union-attr]
    for changes, line in (
        ({"vector": {"order": ["lake"]}}, r"vector\.order: .* got lake"),
        ({"vector": {"order": ["road", "road"]}}, "got road twice"),
        ({"vector": {"outside": "sea"}}, r"vector\.outside: .* got sea"),
        ({"vector": {"values": {"a": "sea"}}}, r"vector\.values: .* got sea"),
        ({"classes": [{"name": "ignore"}]}, r"dataset\.classes"),
        ({"encoding": "colours"}, r"dataset\.encoding"),
        ({"labels": "{name}.tif.png"}, r"dataset\.vector: is for labels that are polygons"),
    ):
        with pytest.raises(ConfigError, match=line):
            recipe(scenes, **changes)


def test_without_the_extra_one_line_says_so(scenes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(scenes / "all.gpkg", [box(*each) for each in ALL], KINDS)
    for name in [name for name in sys.modules if name.startswith("segmenter.extras.vectors.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "shapely", None)
    with pytest.raises(DatasetError, match="make vectors"):
        load_dataset(recipe(scenes))
