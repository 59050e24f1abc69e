"""Cached files: whole or made anew, never removed while in use, also beside programs of earlier versions."""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from segmenter.base.keyed_folder import KeyedFolder, read_sealed
from segmenter.base.sealed import seal


@contextmanager
def locked(path: Path, kind: int) -> Iterator[None]:
    """The file locked as another program does it, whatever its version."""
    handle = os.open(path, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(handle, kind)
    yield
    os.close(handle)


def numbers(path: Path) -> dict[str, int]:
    return dict(json.loads(read_sealed(path)))


@pytest.fixture
def folder(tmp_path: Path) -> KeyedFolder:
    return KeyedFolder(tmp_path / "cache")


def names(folder: KeyedFolder) -> list[str]:
    return sorted(path.name for path in folder.path.parent.rglob("*"))


def test_a_file_is_whole_or_made_anew(folder: KeyedFolder, capsys: Any) -> None:
    assert folder.load("a", numbers) is None
    folder.save("a", b"into no folder")
    assert "not cached" in capsys.readouterr().err
    with folder.writing():
        folder.save("a", seal('{"x": 1}').encode())
    assert folder.load("a", numbers) == {"x": 1}
    content = (folder.path / "a").read_bytes()
    for damaged in (b"", content[:-3], content.replace(b"1", b"2", 1), b"[1]", b"\xff"):
        (folder.path / "a").write_bytes(damaged)
        assert folder.load("a", numbers) is None
        said = capsys.readouterr().err
        assert str(folder.path / "a") in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("own", [True, False])
def test_a_file_in_use_is_not_removed(folder: KeyedFolder, own: bool) -> None:
    with folder.writing():
        folder.save("a", b"x")
    other, path = KeyedFolder(folder.path), folder.path / "a"
    if own:
        assert other.hold(["a"])
        assert other.hold(["a"])
        assert not folder.remove(path)
        other.release()
    else:
        with locked(path, fcntl.LOCK_SH):
            assert not folder.remove(path)
    assert path.read_bytes() == b"x"
    assert folder.remove(path)
    assert folder.remove(path)  # it is gone
    assert not other.hold(["a"])
    assert names(folder) == ["cache"]


def test_what_a_killed_process_left_goes_once_nobody_writes(folder: KeyedFolder) -> None:
    with folder.writing(), folder.writing():
        (folder.path / "left").touch()
        (folder.path / "whole").touch()
        assert folder.sweep("left".__eq__) == 0
    with locked(folder.path.parent / ".cache.lock", fcntl.LOCK_SH):  # as an earlier version writes
        assert folder.sweep("left".__eq__) == 0
    assert folder.sweep("left".__eq__) == 1
    assert names(folder) == ["cache", "whole"]


def test_without_locks_nothing_is_removed(folder: KeyedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with folder.writing():
        folder.save("a", b"x")
        folder.save("left", b"x")
    assert folder.hold(["a"])
    assert not folder.remove(folder.path / "a")
    assert folder.sweep("left".__eq__) == 0
    assert names(folder) == ["a", "cache", "left"]
