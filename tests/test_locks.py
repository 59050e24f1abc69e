"""One process at a time, by the system's locks; without them work goes on, and says so."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.files import exclusive_lock
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns
from segmenter.mapping.folder.partial import PartialMap
from tests.helpers.child_predict import files, scene
from tests.helpers.maps import at_batch, counting

Make = Callable[..., Path]


def refuse_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)


def test_maps_are_made_where_there_are_no_locks(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    for name in "ab":
        scene(make_geotiff, f"in/{name}.tif", 40, 50)
    assert call("in", "--confidence", output="locked") == 0
    capsys.readouterr()
    refuse_locks(monkeypatch, errno.ENOLCK)
    assert call("in", "--confidence") == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: maps: its file system")
    assert said.count("\n") == 1
    assert files(tmp_path / "maps") == files(tmp_path / "locked")
    assert [p.name for p in (tmp_path / "maps").iterdir() if p.name.startswith(".")] == [".journal.jsonl"]


def test_what_another_fault_of_a_lock_says_is_no_matter_of_permission(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    refuse_locks(monkeypatch, errno.EIO)
    assert call(source) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: maps/a.tif: ")
    assert said.endswith(": Input/output error\n")
    assert not (tmp_path / "maps").exists() or list((tmp_path / "maps").iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_run_is_trained_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with exclusive_lock(tmp_path / "run") as warning:
        assert warning is None
    refuse_locks(monkeypatch, number)
    with exclusive_lock(tmp_path / "run") as warning:
        assert warning is not None
        assert f"run: its file system has no file locks ({os.strerror(number)})" in warning
    assert list((tmp_path / "run").iterdir()) == []


PART = Window(0, 0, 8, 5)


def test_without_locks_two_processes_never_write_into_one_partial_map(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """The second goes on with a copy; what the first adds meanwhile is not taken for the second's."""
    first, second = (PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16)) for _ in range(2))
    rows = [(Window(top, 0, 2, 5), {"ids": rng.integers(0, 9, (2, 5), np.uint8)}) for top in (0, 2, 4, 6)]
    first.recover()
    first.add(*rows[0])
    second.part_from_others()
    assert second.recover() == 2
    second.add(*rows[1])
    first.add(Window(2, 0, 2, 5), {"ids": np.full((2, 5), 77, np.uint8)})
    first.close()
    second.close()
    third = PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
    assert third.recover() == 4
    assert all((got[1]["ids"] == row[1]["ids"]).all() for got, row in zip(third.replay(), rows, strict=False))
    third.remove()
    assert list(tmp_path.iterdir()) == []


def test_without_locks_a_stopped_raster_goes_on(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    source = scene(make_geotiff, "in/a.tif", 700, 50)
    assert call(source, "--batch", 1, "--window-size", 64, output="whole") == 0
    refuse_locks(monkeypatch, errno.ENOSYS)
    stopped, rest = at_batch(12, KeyboardInterrupt()), counting()
    assert call(source, "--batch", 1, "--window-size", 64, predictor=stopped) == 130
    assert (tmp_path / "maps" / ".a.tif.partial").exists()
    assert call(source, "--batch", 1, "--window-size", 64, predictor=rest) == 0
    assert len(rest.batches) < len(stopped.batches) + 6
    assert files(tmp_path / "maps") == files(tmp_path / "whole")
