"""Packs: the same bits as from the files; nothing is written twice, and limits hold."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasets.__main__ import main
from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import RasterSpec, write_raster
from segmenter.tiles.cache.folder import PackFolder
from segmenter.tiles.index_cache import cache_folder
from tests.helpers.packed_scenes import SIZES, contents, equal, made_dataset, pack_all, packs, store_of


@pytest.fixture
def dataset(
    tmp_path: Path, make_png: Callable[..., Path], make_classes: Callable[..., ClassMap], rng: Any
) -> Dataset:
    return made_dataset(tmp_path, make_png, make_classes(3), rng)


# -------------------------------------------------------------------------------- the same bits


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_window_is_the_same_from_files_and_packs(
    tmp_path_factory: Any, make_classes: Callable[..., ClassMap], data: st.DataObject
) -> None:
    """Odd sizes, types, nodata, codes, palettes and colours, no label, smaller than a tile, both codecs."""
    root = tmp_path_factory.mktemp("made")
    height, width, bands = (data.draw(st.integers(1, most)) for most in (300, 300, 4))
    dtype = data.draw(st.sampled_from(["uint8", "uint16", "int16", "float32"]))
    nodata = data.draw(st.sampled_from([None, 0.0, 7.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    image = rng.integers(0, 12, (height, width, bands)).astype(dtype)
    image[: height // 3] = 7
    if dtype == "float32":
        image[rng.random((height, width)) < 0.1] = np.nan
    write_raster(root / "i.tif", image, RasterSpec(nodata=nodata))
    label = rng.integers(0, 3, (height, width)).astype(np.uint8)
    form = data.draw(st.sampled_from(["codes", "palette", "colours", "none"]))
    classes = make_classes(3, "codes" if form in ("codes", "none") else "colours")
    if form == "palette":
        write_raster(root / "l.tif", label, RasterSpec(colour_table=classes.palette()[:3]))
    elif form != "none":
        write_raster(root / "l.tif", label if form == "codes" else classes.palette()[label])
    scene = Scene("s", root / "i.tif", None if form == "none" else root / "l.tif", "s", "train")
    dataset = Dataset("made", root, (scene,), classes)
    in_place = store_of(dataset, 4096)
    assert "packed" not in os.listdir(cache_folder(dataset))
    codec = data.draw(st.sampled_from(["none", "lz4"]))
    pack_all(replace(dataset, cache_codec=codec))
    packed = store_of(dataset, 4096)
    assert list(packed._packed) == [(0, "image"), (0, "label")][: 1 + (form != "none")]
    for _ in range(4):
        row, col = data.draw(st.integers(-40, height)), data.draw(st.integers(-40, width))
        window = Window(row, col, data.draw(st.integers(1, 310)), data.draw(st.integers(1, 310)))
        assert equal(list(in_place.read(0, window)), list(packed.read(0, window)))
        assert equal([in_place.read_label(0, window)], [packed.read_label(0, window)])


def test_another_process_reads_the_same_from_a_pickled_store(dataset: Dataset) -> None:
    store = store_of(dataset)
    other, window = pickle.loads(pickle.dumps(store)), Window(3, 5, 120, 130)
    for scene in range(len(dataset.scenes)):
        assert equal(list(store.read(scene, window)), list(other.read(scene, window)))


def test_many_scenes_go_into_few_files_and_another_start_writes_nothing(dataset: Dataset) -> None:
    scenes = [replace(one, name=f"{n}") for n in range(40) for one in dataset.scenes[2:]]
    many = replace(dataset, scenes=tuple(scenes))
    pack_all(many)
    assert len(packs(many)) <= 2 * min(16, os.cpu_count() or 1)
    before = {path: path.stat().st_ino for path in packs(many)}
    store_of(many)
    assert pack_all(many).startswith("all 40 training scenes are packed already, in ")
    assert {path: path.stat().st_ino for path in packs(many)} == before


def test_lz4_shrinks_class_maps_and_is_asked_for_once(dataset: Dataset, capsys: Any) -> None:
    pack_all(dataset)
    plain = {kind: sum(path.stat().st_size for path in packs(dataset, kind)) for kind in ("image", "label")}
    small = replace(dataset, cache_codec="lz4")
    said = pack_all(small)
    assert "at most" in said
    assert "removed packs whose scenes are all in newer ones: 0.6 MiB" in capsys.readouterr().out
    label = sum(path.stat().st_size for path in packs(small, "label"))
    assert label < 0.3 * plain["label"]
    assert pack_all(small).startswith("all 3")
    assert equal(contents(dataset), contents(small))


# -------------------------------------------------------------------------------- what is kept


def test_another_class_map_keeps_the_images(dataset: Dataset, make_classes: Callable[..., ClassMap]) -> None:
    store_of(dataset)
    images = {path: path.stat().st_ino for path in packs(dataset, "image")}
    labels = packs(dataset, "label")
    known = dataset.classes.classes
    renamed = tuple(replace(one, name=f"new {one.name}", colour=(1, one.code, 3)) for one in known)
    store_of(replace(dataset, classes=ClassMap(renamed)))  # names and colours change no id
    assert packs(dataset, "label") == labels
    ignoring = replace(dataset, classes=ClassMap(known[1:], ignored=(0,)))
    store = store_of(ignoring)
    assert {path: path.stat().st_ino for path in packs(dataset, "image")} == images
    assert set(packs(dataset, "label")) > set(labels)
    before = packs(dataset, "label")
    store_of(replace(ignoring, classes=ClassMap(known[1:], ignored=(0, 9))))  # 9 would be refused before
    assert set(packs(dataset, "label")) > set(before)
    ids = store.read_label(0, Window(0, 0, *SIZES[0]))
    assert set(np.unique(ids)) == {0, 1, 255}


def test_a_changed_file_is_decoded_anew(dataset: Dataset, make_geotiff: Callable[..., Path]) -> None:
    """By its time alone: the size stays."""
    pixels = np.zeros((40, 33, 3), np.uint8)
    path = make_geotiff("i2.tif", pixels)
    scenes = (*dataset.scenes[:2], replace(dataset.scenes[2], image=path))
    dataset = replace(dataset, scenes=scenes)
    before, size = contents(dataset), path.stat().st_size
    make_geotiff("i2.tif", pixels + 9)
    os.utime(path, (1, 1))
    assert path.stat().st_size == size
    after = contents(dataset)
    assert equal(before[:6], after[:6])
    assert (after[6] == 9).all()


def test_packs_go_by_last_use_and_never_one_in_use(dataset: Dataset, tmp_path: Path) -> None:
    there = replace(dataset, cache=tmp_path / "all", root=tmp_path)
    shared = [replace(there, scenes=(one,)) for one in (dataset.scenes[1], dataset.scenes[0])]
    in_use, unused = store_of(shared[0]), packs(shared[0])
    other = replace(shared[1], root=tmp_path / "..")  # another dataset below the same cache
    store_of(other)
    old = packs(other)
    for path, used in [*((path, 1) for path in unused), *((path, 2) for path in old)]:
        os.utime(path, (used, used))
    needed = sum(path.stat().st_size for path in unused + old) // 2**10 * 2**10
    small = replace(shared[1], cache_bytes=needed + 2**10)
    store_of(small)  # needs as much as `other`, whose store is gone
    assert [path for path in old if path.exists()] == []
    assert all(path.exists() for path in unused)
    window = Window(0, 0, *SIZES[1])
    assert equal(list(in_use.read(0, window)), list(store_of(shared[0]).read(0, window)))
    with pytest.raises(
        DatasetError,
        match=r"decoding takes 0\.1 MiB, dataset\.cache_limit is 0\.0 MiB, of which .* in use; raise",
    ):
        store_of(replace(shared[0], cache_bytes=1000, scenes=dataset.scenes[:1], bands=(2,)))


def test_a_pack_that_is_removed_while_it_is_looked_for_is_made_anew(
    dataset: Dataset, monkeypatch: Any
) -> None:
    before, hold, calls = contents(dataset), PackFolder.hold, []

    def removing(folder: PackFolder, found: Any) -> bool:
        if not calls:
            calls.append([path.unlink() for path in packs(dataset, "label")])
        return hold(folder, found)

    monkeypatch.setattr(PackFolder, "hold", removing)
    assert equal(before, contents(dataset))


# -------------------------------------------------------------------------------- the command


def test_the_command_says_size_place_and_ratio_and_training_uses_it(dataset: Dataset, capsys: Any) -> None:
    tile = 4096  # so large that all is cheap
    store_of(dataset, tile)
    assert capsys.readouterr().out == ""
    lines = pack_all(dataset).splitlines()
    place = cache_folder(dataset) / "packed"
    assert lines[0].startswith("packing images of 3 and labels of 3 of 3 scenes: 0.6 MiB, in ")
    assert f"in {place}; dataset.cache names another folder" in lines[0]
    written = sum(path.stat().st_size for path in packs(dataset))
    assert lines[1].startswith(f"packed: {written / 2**20:.1f} MiB in {len(packs(dataset))} files, ")
    store_of(dataset, tile)
    assert capsys.readouterr().out.startswith("images of 3 and labels of 3 of 3 scenes are read from packs: ")


def test_the_command_refuses_labels_that_do_not_fit(dataset: Dataset, make_png: Callable[..., Path]) -> None:
    make_png("l2.png", np.zeros((40, 34), np.uint8))
    with pytest.raises(DatasetError, match=r"l2\.png: expected 33×40 pixels as its image .* has, got 34×40"):
        pack_all(dataset)
    with pytest.raises(DatasetError, match="expected scenes to train on, the split leaves none"):
        pack_all(replace(dataset, scenes=()))


def test_the_recipe_says_where_how_much_and_how(dataset: Dataset, tmp_path: Path, capsys: Any) -> None:
    recipe = tmp_path / "r.yaml"
    classes = ", ".join(f"{{name: {name}, code: {code}}}" for code, name in enumerate("abc"))
    files = "images: 'i{n}.png', labels: 'l{n}.png'"
    recipe.write_text(f"dataset: {{kind: folder, root: {tmp_path}, {files}, classes: [{classes}]}}\n")
    with pytest.raises(DatasetError, match=r"takes 0\.6 MiB, dataset\.cache_limit is 0\.1 MiB; raise it"):
        main(["pack", str(recipe), "--set", "dataset.cache_limit=0.0001"])
    place = tmp_path / "elsewhere"
    options = [f"dataset.cache={place}", "dataset.cache_limit=1", "dataset.cache_compression=lz4"]
    assert main(["pack", str(recipe), *(f"--set={one}" for one in options)]) == 0
    assert f"at most 0.6 MiB, in {place}" in capsys.readouterr().out
    assert len(list(place.glob("*/packed/*.pack"))) >= 2


def test_packs_that_are_gone_or_others_by_now_are_not_held(tmp_path: Path, monkeypatch: Any) -> None:
    gone: Any = SimpleNamespace(path=tmp_path / "gone.pack")
    assert not PackFolder(tmp_path).hold([gone])
    assert PackFolder(tmp_path).hold([])
    (tmp_path / "a.pack").touch()
    there: Any = SimpleNamespace(path=tmp_path / "a.pack")
    assert PackFolder(tmp_path).hold([there])
    monkeypatch.setattr("segmenter.tiles.cache.folder._same", lambda handle, path: False)
    assert not PackFolder(tmp_path).hold([there])
