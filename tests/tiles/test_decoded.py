"""Decoded copies: what is read is what was decoded, whatever the damage; nothing half-written stays."""

from __future__ import annotations

import json
import resource
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.errors import DatasetError, OutputError, RasterError
from segmenter.geometry import Size
from segmenter.tiles import decoded
from segmenter.tiles.decoded import BLOCK_ROWS, DecodedScene, sweep
from tests.helpers.made_runs import flipped, rewritten

HEIGHT, WIDTH = 2 * BLOCK_ROWS + 41, 7
NAME = "0123456789abcdef01234567"


class Made(DecodedScene):
    """A scene of random pixels, that counts how often it is decoded."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(1)
        self.image = rng.integers(0, 60000, (HEIGHT, WIDTH, 2), np.uint16)
        self.valid = rng.random((HEIGHT, WIDTH)) < 0.9
        self.label = rng.integers(0, 5, (HEIGHT, WIDTH), np.uint8)
        self.decodings = 0
        super().__init__(folder, Size(HEIGHT, WIDTH), self._bands)

    def _bands(self) -> Iterator[decoded.Rows]:
        self.decodings += 1
        for row in range(0, HEIGHT, BLOCK_ROWS):
            part = slice(row, row + BLOCK_ROWS)
            yield self.image[part], self.valid[part], self.label[part]

    def check(self) -> None:
        for array, expected in zip(self.rows(0, HEIGHT), (self.image, self.valid, self.label), strict=True):
            np.testing.assert_array_equal(array, expected, strict=True)


@pytest.fixture
def copy(tmp_path: Path) -> Made:
    scene = Made(tmp_path / "decoded" / NAME)
    assert not scene.exists
    scene.write()
    return scene


def opened_anew(copy: Made) -> Made:
    return Made(copy.folder)


def test_a_copy_is_what_was_decoded_and_is_decoded_once(copy: Made) -> None:
    copy.check()
    again = opened_anew(copy)
    assert again.exists
    again.write()  # as another training would that began at the same time
    again.check()
    assert (copy.decodings, again.decodings) == (1, 1)
    assert [path.name for path in copy.folder.parent.iterdir()] == [NAME]
    np.testing.assert_array_equal(np.load(copy.folder / "image.npy"), copy.image)


@pytest.mark.parametrize("name", ["image.npy", "valid.npy", "label.npy"])
def test_no_flipped_bit_of_an_array_reaches_the_training(copy: Made, name: str) -> None:
    file, renewed = copy.folder / name, 0
    whole = file.read_bytes()
    for content in flipped(whole, 8 * len(whole) // 61):
        file.write_bytes(content)
        again = opened_anew(copy)
        again.check()
        renewed += again.decodings
        assert file.read_bytes() == whole or not again.decodings  # in the header, which nobody reads
    assert renewed > 40


def test_no_flipped_bit_of_what_a_copy_says_of_itself_matters(copy: Made) -> None:
    file, refused = copy.folder / "copy.json", 0
    whole = file.read_bytes()
    for content in flipped(whole, 5):
        file.write_bytes(content)
        refused += not copy.exists
    assert refused > 0.97 * 8 * len(whole) / 5
    opened_anew(copy).check()


DAMAGES: list[Callable[[Path], Any]] = [
    lambda folder: (folder / "image.npy").write_bytes((folder / "image.npy").read_bytes()[:-1]),
    lambda folder: (folder / "image.npy").write_bytes(b""),
    lambda folder: (folder / "label.npy").unlink(),
    lambda folder: (folder / "valid.npy").write_bytes(bytes((folder / "valid.npy").stat().st_size)),
    lambda folder: (folder / "copy.json").unlink(),
    lambda folder: rewritten(folder / "copy.json", format=1),
    lambda folder: (folder / "copy.json").write_bytes(b"[" * 10**5),
    lambda folder: rewritten(folder / "copy.json", format=3),
    lambda folder: rewritten(folder / "copy.json", image__shape=[1 << 60, 1 << 60, 1 << 60]),
    lambda folder: rewritten(folder / "copy.json", image__shape=[HEIGHT, WIDTH, 2, 1]),
    lambda folder: rewritten(folder / "copy.json", label__dtype="|b1"),
    lambda folder: rewritten(folder / "copy.json", label__crc=[1]),
    lambda folder: rewritten(folder / "copy.json", rows=0),
    lambda folder: [path.unlink() for path in folder.iterdir()],
    lambda folder: shutil.rmtree(folder),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_or_older_copy_is_made_anew(copy: Made, damage: Callable[[Path], Any], capsys: Any) -> None:
    whole = {path.name: path.read_bytes() for path in copy.folder.iterdir()}
    damage(copy.folder)
    again = opened_anew(copy)
    again.check()
    assert again.decodings == 1
    assert capsys.readouterr().err == f"{copy.folder}: a damaged copy, the scene is decoded anew\n"
    assert {path.name: path.read_bytes() for path in copy.folder.iterdir()} == whole
    assert [path.name for path in copy.folder.parent.iterdir()] == [NAME]


def test_rows_are_checked_once_and_only_where_they_are_read(copy: Made, monkeypatch: Any) -> None:
    checked: list[int] = []
    crc32 = zlib.crc32

    def counting(data: Any) -> int:
        checked.append(len(data))
        return crc32(data)

    monkeypatch.setattr(decoded.zlib, "crc32", counting)
    again = opened_anew(copy)
    facts_alone = len(checked)
    assert again.exists
    again.rows(BLOCK_ROWS + 1, BLOCK_ROWS + 9)
    rows = [length for length in checked[facts_alone:] if length in (BLOCK_ROWS, 41)]
    assert rows == [BLOCK_ROWS] * 3  # of image, validity and label
    again.rows(0, HEIGHT)
    again.rows(0, HEIGHT)
    rows = [length for length in checked[facts_alone:] if length in (BLOCK_ROWS, 41)]
    assert sorted(rows) == [41] * 3 + [BLOCK_ROWS] * 6


def test_many_threads_that_meet_a_damage_decode_once(copy: Made) -> None:
    file = copy.folder / "image.npy"
    file.write_bytes(file.read_bytes()[:-50] + bytes(50))
    again, failed = opened_anew(copy), []

    def read() -> None:
        try:
            again.check()
        except AssertionError as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failed, again.decodings) == ([], 1)


def test_a_disk_that_damages_what_is_written_is_an_error(copy: Made, monkeypatch: Any) -> None:
    monkeypatch.setattr(decoded._Opened, "is_whole", lambda *_: False)
    with pytest.raises(DatasetError, match=r"damaged again right after it was decoded; is the disk failing"):
        copy.rows(0, 1)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    scene = Made(tmp_path / "decoded" / NAME)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEIGHT * WIDTH, hard))
    try:
        with pytest.raises(OutputError, match=r"cannot write it: File too large; is the disk full") as caught:
            scene.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 1
    assert list(scene.folder.parent.iterdir()) == []
    scene.check()


def test_a_scene_that_changes_while_it_is_decoded_or_cannot_be_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "decoded" / NAME
    made = Made(folder)

    def cut() -> Iterator[decoded.Rows]:
        yield next(made._bands())

    def broken() -> Iterator[decoded.Rows]:
        yield next(made._bands())
        raise RasterError("x.tif: damaged")

    for bands, message in ((cut, "changed while it was decoded"), (broken, "x.tif: damaged")):
        with pytest.raises((DatasetError, RasterError), match=message):
            DecodedScene(folder, Size(HEIGHT, WIDTH), bands).write()
        assert list(folder.parent.iterdir()) == []


def test_what_killed_processes_left_is_swept_but_nothing_of_a_living_one(copy: Made) -> None:
    left = copy.folder.parent / f".{NAME}.abc_12"
    left.mkdir()
    (left / "image.npy").write_bytes(bytes(100))
    (copy.folder.parent / ".mine").mkdir()
    with decoded._unswept(copy.folder.parent), decoded._unswept(copy.folder.parent):
        assert sweep(copy.folder.parent) == 0
    assert left.is_dir()
    assert sweep(copy.folder.parent) == 1
    assert sorted(path.name for path in copy.folder.parent.iterdir()) == [".mine", NAME]
    assert sweep(copy.folder.parent / "none") == 0
    copy.check()


def test_a_copy_is_not_swept_while_it_is_written(tmp_path: Path) -> None:
    made = Made(tmp_path / "decoded" / NAME)

    def bands() -> Iterator[decoded.Rows]:
        for parts in made._bands():
            assert sweep(made.folder.parent) == 0
            yield parts

    DecodedScene(made.folder, Size(HEIGHT, WIDTH), bands).write()
    made.check()
    assert json.loads((made.folder / "copy.json").read_text())["format"] == 2
