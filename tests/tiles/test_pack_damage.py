"""Packs: whatever the damage, what is read is what was decoded; nothing half-written counts."""

from __future__ import annotations

import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import DatasetError, LabelError, OutputError
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.tiles.cache import file as pack_file
from segmenter.tiles.cache import folder as pack_folder
from segmenter.tiles.cache import keys as packing
from segmenter.tiles.cache.folder import PackFolder
from segmenter.tiles.index_cache import cache_folder
from tests.helpers.made_runs import flipped
from tests.helpers.packed_scenes import SIZES, contents, equal, made_dataset, packs, store_of


@pytest.fixture
def dataset(
    tmp_path: Path, make_png: Callable[..., Path], make_classes: Callable[..., ClassMap], rng: Any
) -> Dataset:
    return made_dataset(tmp_path, make_png, make_classes(3), rng)


def test_no_flipped_bit_of_a_pack_reaches_the_training(dataset: Dataset, capsys: Any) -> None:
    few = replace(dataset, scenes=dataset.scenes[2:])
    whole, told = contents(few), 0
    for path in packs(few):
        content = path.read_bytes()
        for changed in flipped(content, 8 * len(content) // 61):
            for other in packs(few):
                if other.name.partition("-")[0] == path.name.partition("-")[0]:
                    other.unlink()
            path.write_bytes(changed)
            assert equal(whole, contents(few))
            told += capsys.readouterr().err.count("decoded anew")
        path.write_bytes(content)
    assert told > 110  # all but the gaps that nobody reads


@pytest.mark.parametrize("content", [b"", b"x" * 40, b"[" * 10**5, None])
def test_what_is_no_pack_goes_and_its_scenes_are_decoded_anew(
    dataset: Dataset, content: bytes | None, capsys: Any
) -> None:
    whole = contents(dataset)
    path = packs(dataset, "image")[0]
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    assert equal(whole, contents(dataset))
    assert (
        "1 of the packs damaged, or of another format: their scenes are decoded anew"
        in capsys.readouterr().err
    )
    assert not path.exists()


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))


def test_chunks_are_checked_once_and_only_where_they_are_read(dataset: Dataset, monkeypatch: Any) -> None:
    store, checked, crc32 = store_of(dataset), [], zlib.crc32

    def counting(data: Any, *rest: int) -> int:
        checked.append(len(data))
        return crc32(data, *rest)

    monkeypatch.setattr(pack_file.zlib, "crc32", counting)
    store.read(0, Window(1, 1, 20, 20))
    chunks = [size for size in checked if size >= 128 * 128]
    assert chunks == [128 * 128 * 3, 128 * 128]  # of the image and the label
    store.read(0, Window(0, 0, 60, 60))
    assert [size for size in checked if size >= 128 * 128] == chunks


def test_many_threads_that_meet_a_damage_decode_once(dataset: Dataset, capsys: Any) -> None:
    few, failed = replace(dataset, scenes=dataset.scenes[:1]), []
    whole = contents(few)
    damage(packs(few, "image")[0])
    store = store_of(few)

    def read() -> None:
        if not equal(whole, list(store.read(0, Window(0, 0, *SIZES[0])))):
            failed.append(1)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = capsys.readouterr().err
    assert failed == []
    assert told.count("chunk 0 is damaged, the scene s0 is decoded anew") == 1
    assert len(packs(few, "image")) == 2
    assert equal(whole, contents(few))  # the newer one counts from now on
    assert capsys.readouterr().err == ""


def test_a_disk_that_damages_what_is_written_is_an_error(dataset: Dataset, monkeypatch: Any) -> None:
    store = store_of(dataset)
    monkeypatch.setattr(pack_file.zlib, "crc32", lambda data, *_: 1)
    with pytest.raises(DatasetError, match=r"damaged again right after it was decoded; is the disk failing"):
        store.read(0, Window(0, 0, 9, 9))


# -------------------------------------------------------------------------------- half-written


def test_a_full_disk_is_one_line_and_leaves_nothing(dataset: Dataset) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OutputError, match=r"cannot write it: File too large; is the disk full") as caught:
            store_of(dataset)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 1
    assert all(path.suffix == ".pack" for path in (cache_folder(dataset) / "packed").iterdir())
    assert len(contents(dataset)) == 9


def test_too_little_space_is_told_before_anything_is_written(dataset: Dataset, monkeypatch: Any) -> None:
    monkeypatch.setattr(pack_folder.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(
        OutputError, match=r"decoding takes 0\.6 MiB, 0\.0 MiB are free; free some, name another"
    ):
        store_of(dataset)
    assert packs(dataset) == []


def test_a_scene_that_cannot_be_decoded_leaves_the_others_and_nothing_half_written(
    dataset: Dataset, make_png: Callable[..., Path]
) -> None:
    make_png("l1.png", np.full(SIZES[1], 77, np.uint8))
    with pytest.raises(LabelError, match=r"l1\.png: codes that the class map does not know: 77"):
        store_of(dataset)
    assert [path for path in (cache_folder(dataset) / "packed").iterdir() if path.name.startswith(".")] == []
    make_png("l1.png", np.ones(SIZES[1], np.uint8))
    kept = packs(dataset)
    assert (contents(dataset)[5] == 1).all()
    assert set(kept) <= set(packs(dataset))


def test_a_scene_that_changes_while_it_is_decoded_is_told(dataset: Dataset, monkeypatch: Any) -> None:
    rows_of = packing.rows_of
    monkeypatch.setattr(packing, "rows_of", lambda *args: [(x[:9], v) for x, v in rows_of(*args)][:1])
    with pytest.raises(DatasetError, match="the scene has changed while it was decoded; start again"):
        store_of(dataset)
    assert packs(dataset) == []


def test_what_killed_processes_left_is_swept_but_nothing_of_a_living_one(
    dataset: Dataset, capsys: Any
) -> None:
    store_of(dataset)
    folder = PackFolder(cache_folder(dataset))
    left = folder.path / f".{packs(dataset)[0].name}.part"
    left.write_bytes(bytes(100))
    (folder.path / ".mine").mkdir()
    with folder.writing(), folder.writing():
        assert folder.sweep() == 0
    assert left.is_file()
    store_of(dataset)
    assert "half-written packs that killed processes left, removed: 1" in capsys.readouterr().err
    assert not left.exists()
    assert folder.sweep() == 0


def test_one_process_is_killed_while_several_pack_and_the_others_are_whole(
    dataset: Dataset,
) -> None:
    """A real kill, between two strips of a scene that another process packs as well."""
    begun = dataset.root / "begun"
    code = (
        "import sys, pickle, time\nfrom pathlib import Path\n"
        "from segmenter.tiles.cache import keys as packing\n"
        "rows_of, begun = packing.rows_of, Path(sys.argv[1])\n"
        "def slow(*args):\n"
        "    for rows in rows_of(*args):\n"
        "        yield rows\n"
        "        begun.touch(); time.sleep(600)\n"
        "packing.rows_of = slow\n"
        "from segmenter.tiles.store import SceneStore; from segmenter.tiles.index_cache import cache_folder\n"
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
    assert [path for path in folder.iterdir() if path.name.endswith(".part")] != []
    kept = packs(dataset)
    assert equal(whole, contents(dataset))
    assert sorted(folder.iterdir()) == kept


def test_after_an_error_no_scene_that_is_being_decoded_is_waited_for(
    dataset: Dataset, monkeypatch: Any
) -> None:
    """A scene that would never end is given up at its next strip."""
    rows_of, begun = packing.rows_of, threading.Event()

    def rows(dataset: Dataset, scene: Scene, kind: pack_file.Kind) -> Iterator[pack_file.Rows]:
        if scene.name == "s0":
            begun.wait()
            raise LabelError("s0 is damaged")
        while True:
            yield from rows_of(dataset, dataset.scenes[1], kind)
            begun.set()

    monkeypatch.setattr(packing, "rows_of", rows)
    monkeypatch.setattr(packing.os, "cpu_count", lambda: 2)  # one thread waits for the other
    with pytest.raises(LabelError, match="s0 is damaged"):
        store_of(dataset)
    assert not any(path.name.startswith(".") for path in (cache_folder(dataset) / "packed").iterdir())
