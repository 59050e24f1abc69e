"""Packs: the bits of the files, whatever the damage; nothing half-written counts, limits hold."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasets.commands import call as main
from segmenter.base.errors import DatasetError, LabelError, OutputError, SegmenterError
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import RasterSpec, write_raster
from segmenter.tiles.cache import file as pack_file
from segmenter.tiles.cache import folder as pack_folder
from segmenter.tiles.cache import folder as packing
from segmenter.tiles.cache.folder import CacheFolder
from segmenter.tiles.index import cache_folder
from tests.helpers.forbidden import small_files
from tests.helpers.made_runs import flipped
from tests.helpers.packed_scenes import SIZES, contents, equal, made_dataset, pack_all, packs, store_of
from tests.helpers.refusals import refused


@pytest.fixture
def dataset(
    tmp_path: Path, make_png: Callable[..., Path], make_classes: Callable[..., ClassMap], rng: Any
) -> Dataset:
    return made_dataset(tmp_path, make_png, make_classes(3), rng)


def test_no_flipped_bit_of_a_pack_reaches_the_training(dataset: Dataset, capsys: Any) -> None:
    """A pack that is found damaged at the start is made anew; later it is an error that names the file."""
    few = replace(dataset, scenes=dataset.scenes[2:])
    whole, told, faults = contents(few), 0, set[tuple[bool, str | None]]()
    for path in packs(few):
        content = path.read_bytes()
        for changed in flipped(content, 8 * len(content) // 31):
            for other in packs(few):
                if other.name.partition("-")[0] == path.name.partition("-")[0]:
                    other.unlink()
            path.write_bytes(changed)
            try:
                read = contents(few)
            except DatasetError as error:
                faults.add((error.where == str(path), error.fault))
                told += 1
            else:
                assert equal(whole, read)
                told += capsys.readouterr().err.count("decoded anew")
        path.write_bytes(content)
    assert told > 55  # all but the gaps that nobody reads
    assert faults == {(True, "chunk 0 is damaged"), (True, "its table is damaged")}


def test_a_disk_that_damages_what_is_written_is_an_error(dataset: Dataset, monkeypatch: Any) -> None:
    store = store_of(dataset)
    monkeypatch.setattr(pack_file.zlib, "crc32", lambda data, *_: 1)
    with refused(DatasetError, fault="is damaged"):
        store.read(0, Window(0, 0, 9, 9))


def test_a_full_disk_is_one_line_and_leaves_nothing(dataset: Dataset) -> None:
    with small_files(20_000), pytest.raises(OutputError, match="cannot write") as caught:
        store_of(dataset)
    assert caught.value.exit_code == 1
    assert all(path.suffix == ".pack" for path in (cache_folder(dataset) / "packed").iterdir())
    assert len(contents(dataset)) == 9


def test_too_little_space_is_told_before_anything_is_written(dataset: Dataset, monkeypatch: Any) -> None:
    monkeypatch.setattr(pack_folder.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with refused(OutputError, fault="takes 0.6 MiB, 0.0"):
        store_of(dataset)
    assert packs(dataset) == []


def test_a_scene_that_cannot_be_decoded_leaves_the_others_and_nothing_half_written(
    dataset: Dataset, make_png: Callable[..., Path]
) -> None:
    make_png("l1.png", np.full(SIZES[1], 77, np.uint8))
    with refused(LabelError, where="l1.png", fault="codes"):
        store_of(dataset)
    assert [path for path in (cache_folder(dataset) / "packed").iterdir() if path.name.startswith(".")] == []
    make_png("l1.png", np.ones(SIZES[1], np.uint8))
    kept = packs(dataset)
    assert (contents(dataset)[5] == 1).all()
    assert set(kept) <= set(packs(dataset))


def test_a_scene_that_changes_while_it_is_decoded_is_told(dataset: Dataset, monkeypatch: Any) -> None:
    rows_of = packing.rows_of
    monkeypatch.setattr(packing, "rows_of", lambda *args: [(x[:9], v) for x, v in rows_of(*args)][:1])
    with refused(DatasetError, fault="changed while", remedy="start again"):
        store_of(dataset)
    assert packs(dataset) == []


def test_one_process_is_killed_while_several_pack_and_the_others_are_whole(
    dataset: Dataset,
) -> None:
    begun = dataset.root / "begun"
    code = (
        "import sys, pickle, time\nfrom pathlib import Path\n"
        "from segmenter.tiles.cache import folder as packing\n"
        "rows_of, begun = packing.rows_of, Path(sys.argv[1])\n"
        "def slow(*args):\n"
        "    for rows in rows_of(*args):\n"
        "        yield rows\n"
        "        begun.touch(); time.sleep(600)\n"
        "packing.rows_of = slow\n"
        "from segmenter.tiles.store import SceneStore; from segmenter.tiles.index import cache_folder\n"
        "dataset = pickle.loads(Path(sys.argv[2]).read_bytes())\n"
        "SceneStore(dataset, dataset.scenes, 16, cache_folder(dataset), progress=False)\n"
    )
    (dataset.root / "dataset").write_bytes(pickle.dumps(dataset))
    process = subprocess.Popen([sys.executable, "-c", code, str(begun), str(dataset.root / "dataset")])
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.05)
    whole = contents(dataset)  # beside it
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = cache_folder(dataset) / "packed"
    left = [path for path in folder.iterdir() if path.name.endswith(".part")]
    assert left
    cache = CacheFolder(cache_folder(dataset))
    with cache.writing(), cache.writing():  # of a living process nothing is swept
        assert cache.remove_unfinished() == 0
    assert all(path.exists() for path in left)
    kept = packs(dataset)
    assert equal(whole, contents(dataset))
    assert sorted(folder.iterdir()) == kept


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_window_is_the_same_from_files_and_packs(
    tmp_path_factory: Any, make_classes: Callable[..., ClassMap], data: st.DataObject
) -> None:
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
    with refused(DatasetError, fault="cache_limit is 0.0 MiB"):
        store_of(replace(shared[0], cache_bytes=1000, scenes=dataset.scenes[:1], bands=(2,)))


def test_a_pack_that_is_removed_while_it_is_looked_for_is_made_anew(
    dataset: Dataset, monkeypatch: Any
) -> None:
    before, hold, calls = contents(dataset), CacheFolder.hold, []

    def removing(folder: CacheFolder, found: Any) -> bool:
        if not calls:
            calls.append([path.unlink() for path in packs(dataset, "label")])
        return hold(folder, found)

    monkeypatch.setattr(CacheFolder, "hold", removing)
    assert equal(before, contents(dataset))


def test_the_recipe_says_where_how_much_and_how(dataset: Dataset, tmp_path: Path, capsys: Any) -> None:
    recipe = tmp_path / "r.yaml"
    classes = ", ".join(f"{{name: {name}, code: {code}}}" for code, name in enumerate("abc"))
    files = "images: 'i{n}.png', labels: 'l{n}.png'"
    recipe.write_text(f"dataset: {{kind: folder, root: {tmp_path}, {files}, classes: [{classes}]}}\n")
    with refused(DatasetError, fault="0.6 MiB, dataset.cache_limit is 0.1"):
        main(["pack", str(recipe), "--set", "dataset.cache_limit=0.0001"])
    place = tmp_path / "elsewhere"
    options = [f"dataset.cache={place}", "dataset.cache_limit=1", "dataset.cache_compression=lz4"]
    assert main(["pack", str(recipe), *(f"--set={one}" for one in options)]) == 0
    assert f"at most 0.6 MiB, in {place}" in capsys.readouterr().out
    with refused(SegmenterError, where="dataset.cache", fault="write to /dev/null/x"):
        cache_folder(replace(dataset, cache=Path("/dev/null/x")))
    assert len(list(place.glob("*/packed/*.pack"))) >= 2
