"""Masks of one class each are read as one label: the codes of the classes, the last on top."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from datasets import load_dataset
from datasets.made import MadeFilesError
from segmenter.api.layouts import layout_of
from segmenter.base.errors import ConfigError, DatasetError, LabelError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset
from segmenter.mapping.request.truth import labels_by_pattern
from segmenter.raster import LabelRaster
from segmenter.raster.masks import UNLABELLED, Masks
from tests.helpers import made_folders as made
from tests.helpers.refusals import refused

Rng = np.random.Generator
NAMES = ("water", "deep_water", "road")
_VALUES: dict[str, tuple[Any, ...]] = {
    "uint8": (1, 255),
    "uint16": (7,),
    "int16": (-1, 3),
    "float32": (0.5, 1.0),
    "bool": (1,),
}


def recipe(root: Path, **changes: Any) -> Recipe:
    classes = [{"name": "rest", "code": 0}, *({"name": name, "code": i} for i, name in enumerate(NAMES, 1))]
    section = {"kind": "folder", "root": str(root), "images": "{name}.tif", "labels": "{name}_{class}.tif"}
    section |= {"encoding": "masks", "classes": classes, **changes}
    return recipe_from({"name": "t", "dataset": section}, "t")


def ids_of(dataset: Dataset, name: str) -> NDArray[np.uint8]:
    (path,) = [scene.label for scene in dataset.scenes if scene.name == name]
    assert path is not None
    with LabelRaster(path, dataset.classes) as label:
        return label.ids()


def scene(root: Path, rng: Rng, name: str, masks: dict[str, NDArray[Any]], **options: Any) -> None:
    size = next(iter(masks.values())).shape
    made.save(root / f"{name}.tif", made.image(rng, size=(size[0], size[1])))
    for word, mask in masks.items():
        made.save(root / f"{name}_{word}.tif", mask, **options)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(1, 601), st.integers(1, 41)),
    st.sampled_from(sorted(_VALUES)),
    st.booleans(),
    st.booleans(),
)
def test_windows_are_the_masks_one_over_the_other(
    tmp_path: Path, seed: int, size: tuple[int, int], kind: str, bands: bool, void: bool
) -> None:
    rng = np.random.default_rng(seed)
    set_KHW = rng.random((3, *size)) < 0.4
    set_KHW[:, 0, 0] = True  # GDAL writes some blocks of single bits that begin with 0 as empty
    on = rng.choice(_VALUES[kind], 1 if bands else 3)
    masks = [np.where(layer, value, 0) for layer, value in zip(set_KHW, np.resize(on, 3), strict=True)]
    dtype, options = ("uint8" if kind == "bool" else kind), dict[str, Any]()
    void_KHW = (rng.random((3, *size)) < 0.1) & void & (kind != "bool")
    if kind == "bool":
        options["NBITS"] = 1
    elif void:  # of a value that no mask has
        options["nodata"] = 9
        masks = [np.where(layer, 9, mask) for layer, mask in zip(void_KHW, masks, strict=True)]
        set_KHW &= ~void_KHW
    masks = [mask.astype(dtype) for mask in masks]
    there = [k for k in range(3) if bands or k == 2 or rng.random() < 0.7]
    paths = [tmp_path / f"{k}.tif" for k in there]
    if bands:
        made.save(tmp_path / "all.tif", np.stack(masks, axis=2), **options)
    for path, k in zip(paths, there, strict=True):
        made.save(path, masks[k], **options)
    expected = np.zeros(size, np.uint16)
    for k in there:
        expected[set_KHW[k]] = k + 1
    expected[void_KHW[there].any(axis=0)] = UNLABELLED
    files = (
        [(0, tmp_path / "all.tif")]
        if bands
        else [(k + 1, path) for k, path in zip(there, paths, strict=True)]
    )
    with Masks(files) as opened:
        assert (np.concatenate([codes for _, codes in opened.strips()]) == expected).all()
        assert opened.several == int((set_KHW[there].sum(axis=0) > 1).sum())
        row, col = (int(rng.integers(side)) for side in size)
        window = Window(row, col, size[0] - row, size[1] - col)
        assert (opened.read(window) == expected[row:, col:]).all()


def test_a_scene_has_what_masks_are_there_and_the_longer_word_is_the_class(tmp_path: Path, rng: Rng) -> None:
    layers = [made.label([0, 255], shift=i).astype(np.uint8) for i in range(3)]
    scene(tmp_path, rng, "a", dict(zip(NAMES, layers, strict=True)), **made.place())
    scene(tmp_path, rng, "b_1", {"deep_water": layers[0]}, **made.place(83))
    dataset = load_dataset(recipe(tmp_path))
    assert [scene.name for scene in dataset.scenes] == ["a", "b_1"]
    assert "2 masks are not there" in " ".join(dataset.notes)
    assert (
        ids_of(dataset, "a") == np.where(layers[2], 3, np.where(layers[1], 2, np.where(layers[0], 1, 0)))
    ).all()
    assert (ids_of(dataset, "b_1") == np.where(layers[0], 2, 0)).all()
    # The order of the classes is the order in which they lie.
    turned = [{"name": name, "code": 3 - i} for i, name in enumerate(reversed(NAMES))]
    dataset = load_dataset(recipe(tmp_path, classes=[*turned, {"name": "rest", "code": 0}]))
    assert dataset.classes.names == ["road", "deep_water", "water", "rest"]
    wanted = np.where(layers[0], 2, np.where(layers[1], 1, np.where(layers[2], 0, 3)))
    assert (ids_of(dataset, "a") == wanted).all()


def test_a_changed_moved_or_removed_mask_makes_the_label_anew(tmp_path: Path, rng: Rng) -> None:
    first, second = (made.label([0, 1], shift=i).astype(np.uint8) for i in range(2))
    for i, name in enumerate(("water", "road")):
        made.save(tmp_path / f"{name}/a.png", (first, second)[i])
    made.save(tmp_path / "im/a.png", made.image(rng))
    classes = [{"name": "rest", "code": 0}, {"name": "water", "code": 1}, {"name": "road", "code": 2}]
    asked = recipe(tmp_path, images="im/{name}.png", labels="{class}/{name}.png", classes=classes)
    assert (ids_of(load_dataset(asked), "a") == np.where(second, 2, first)).all()
    made.save(tmp_path / "road/a.png", second[::-1])
    os.utime(tmp_path / "road/a.png", ns=(1, 1))
    assert (ids_of(load_dataset(asked), "a") == np.where(second[::-1], 2, first)).all()
    (tmp_path / "road/a.png").unlink()
    assert (ids_of(load_dataset(asked), "a") == first).all()
    (tmp_path / "water/a.png").rename(tmp_path / "road/a.png")  # of the same name, size and time
    assert (ids_of(load_dataset(asked), "a") == 2 * first).all()


def test_names_of_classes_may_begin_alike_and_no_mask_is_lost_in_silence(tmp_path: Path, rng: Rng) -> None:
    layer = made.label([0, 1]).astype(np.uint8)
    made.save(tmp_path / "im/a.tif", made.image(rng))
    for name in ("gt/sea_a.tif", "gt/sea_deep_a.tif", "gt/Sea_b.tif"):
        made.save(tmp_path / name, layer)
    classes = [{"name": "rest", "code": 0}, {"name": "sea", "code": 1}, {"name": "sea_deep", "code": 2}]
    asked: dict[str, Any] = {"images": "im/{name}.tif", "labels": "gt/{class}_{name}.tif", "classes": classes}
    dataset = load_dataset(recipe(tmp_path, **asked))
    assert (ids_of(dataset, "a") == 2 * layer).all()
    assert [path.name for path, _ in dataset.unused] == ["Sea_b.tif"]
    made.save(tmp_path / "gt/rest_a.tif", layer)  # pixels in no mask would be its own
    with refused(DatasetError, where="gt/rest_a.tif"):
        load_dataset(recipe(tmp_path, **asked))


def test_pixels_in_no_mask_need_a_class_or_are_ignored(tmp_path: Path, rng: Rng) -> None:
    layers = np.stack([made.label([0, 1, 0], shift=i) == 1 for i in range(3)], axis=2).astype(np.uint8)
    made.save(tmp_path / "im/a.tif", made.image(rng))
    made.save(tmp_path / "gt/a.tif", layers[..., :2].astype(np.int16))
    asked: dict[str, Any] = {"images": "im/{name}.tif", "labels": "gt/{name}.tif"}
    asked["classes"] = [{"name": "one", "code": 1}, {"name": "two", "code": 2}]
    with pytest.raises(MadeFilesError, match="0 where no mask is set"):
        load_dataset(recipe(tmp_path, **asked))
    ids = ids_of(load_dataset(recipe(tmp_path, **asked, ignore=[0])), "a")
    assert (ids == np.select([layers[..., 1] == 1, layers[..., 0] == 1], [1, 0], IGNORE)).all()


@pytest.mark.parametrize("how", ["nodata", "nan", "mask", "bands", "nodata 0", "alpha"])
def test_pixels_without_data_in_a_mask_have_no_label_unless_it_is_not_set_there(
    tmp_path: Path, rng: Rng, how: str
) -> None:
    water, road = (made.label([0, 1, 0], shift=i).astype(np.float32) for i in range(2))
    none = np.zeros(made.SIZE, np.bool_)
    none[:20] = True
    expected, asked = np.where(road, 2, water), dict[str, Any]()
    if how in ("nodata 0", "alpha"):
        alpha = np.dstack([255 * road] * 4).astype(np.uint8)
        layers, options = (water, road if how == "nodata 0" else alpha), {"nodata": 0}
        options = options if how == "nodata 0" else {"alpha": True}
    else:
        expected[none] = IGNORE
        value = {"nodata": 9, "nan": np.nan, "mask": 0, "bands": 9}[how]
        layers = tuple(np.where(none, value, each).astype(np.float32) for each in (water, road))
        options = {"masks": ~none} if how == "mask" else {} if how == "nan" else {"nodata": 9}
    made.save(tmp_path / "im/a.tif", made.image(rng))
    made.save(tmp_path / "gt/water/a.tif", layers[0], **({} if how == "alpha" else options))
    made.save(tmp_path / "gt/road/a.tif", layers[1], **options)
    classes = [{"name": "rest", "code": 0}, {"name": "water", "code": 1}, {"name": "road", "code": 2}]
    if how == "bands":
        made.save(tmp_path / "gt/a.tif", np.dstack(layers), **options)
        asked["labels"] = "gt/{name}.tif"
    asked = {"images": "im/{name}.tif", "labels": "gt/{class}/{name}.tif", "classes": classes} | asked
    assert (ids_of(load_dataset(recipe(tmp_path, **asked)), "a") == expected).all()


def test_files_that_are_no_masks_of_one_scene_are_refused_in_one_line(tmp_path: Path, rng: Rng) -> None:
    right = made.label([0, 1]).astype(np.uint8)
    scene(tmp_path, rng, "a", {"water": right, "deep_water": right, "road": 3 * right + right[::-1]})
    with (
        refused(LabelError, where=tmp_path / "a_road.tif", got="1 and 4"),
        Masks([(1, tmp_path / "a_road.tif")]) as m,
    ):
        m.read(Window(0, 0, *made.SIZE))
    with pytest.raises(MadeFilesError, match="a_road"):
        load_dataset(recipe(tmp_path))
    made.save(tmp_path / "a_road.tif", right[:-1])
    with pytest.raises(MadeFilesError, match="another size"):
        load_dataset(recipe(tmp_path))
    with pytest.raises(ConfigError, match="also is for codes"):
        recipe(tmp_path, classes=[{"name": "water", "code": 1, "also": "2-3"}])
    with pytest.raises(ConfigError, match="masks is for label rasters"):
        recipe(tmp_path, labels="{name}.gpkg")


def test_a_fault_of_masks_that_several_dates_share_is_one_of_each(tmp_path: Path, rng: Rng) -> None:
    for name in "ab":
        for date in (20200101, 20210202, 20220303):
            made.save(tmp_path / f"im/{name}_{date}.tif", made.image(rng))
        for word in NAMES:
            made.save(tmp_path / f"gt/{word}/{name}.tif", made.label([0, 1]).astype(np.uint8))
    damaged = tmp_path / "gt/road/a.tif"
    damaged.write_bytes(damaged.read_bytes()[:-3000])
    with refused(MadeFilesError) as raised:
        load_dataset(recipe(tmp_path, images="im/{name}_{date}.tif", labels="gt/{class}/{name}.tif"))
    assert len(raised.value.faults) == 3
    assert all(name.startswith("a") for name in raised.value.faults)


def test_black_and_white_pictures_and_palettes_are_masks(tmp_path: Path, rng: Rng) -> None:
    layer = made.label([0, 1]).astype(np.uint8)
    scene(tmp_path, rng, "a", {"water": np.repeat(255 * layer[..., None], 3, axis=2)})
    made.save(tmp_path / "a_road.tif", layer[::-1], {0: (255, 255, 255), 1: (9, 9, 9)})
    dataset = load_dataset(recipe(tmp_path))
    assert (ids_of(dataset, "a") == np.where(layer[::-1], 3, layer)).all()
    with rasterio.open(dataset.scenes[0].label) as file:
        assert file.tags()["CODE_3"] == "road"


def test_masks_named_by_a_call_are_those_of_the_recipe(
    tmp_path: Path, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layers = [made.label([0, 255], shift=i).astype(np.uint8) for i in range(2)]
    scene(tmp_path, rng, "a", dict(zip(NAMES, [*layers, layers[0]], strict=True)))
    made.save(tmp_path / "gt/a.tif", np.stack(layers, axis=2))
    one_hot = [{"name": "rest", "code": 0}, {"name": "one", "code": 1}, {"name": "two", "code": 2}]
    for pattern, lost, changes in (
        ("{name}_{class}.tif", "none", {}),
        ("{name}_{class}.tif", "a_road.tif", {}),  # a scene without a mask lacks that class
        ("gt/{name}.tif", "none", {"labels": "gt/{name}.tif", "classes": one_hot, "unlabelled": "skip"}),
    ):
        (tmp_path / lost).unlink(missing_ok=True)
        asked = recipe(tmp_path, **changes)
        dataset, image = load_dataset(asked), tmp_path / "a.tif"
        call: Any = SimpleNamespace(drivers=(), label_kind=None, split_name=None)
        run: Any = SimpleNamespace(classes=dataset.classes, labels="full")
        layout = layout_of(asked.dataset)
        truth = labels_by_pattern(call, f"{tmp_path}/{pattern}", layout, {image: image}, run)
        with LabelRaster(truth.label(image), truth.classes) as label:
            assert (label.ids() == ids_of(dataset, "a")).all()
    (tmp_path / "gt/a.tif").unlink()
    with refused(DatasetError, where="a.tif"):
        labels_by_pattern(call, f"{tmp_path}/{pattern}", layout, {image: image}, run).label(image)
