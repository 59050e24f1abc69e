"""What is computed of a large raster survives its process, up to the last complete row band."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.geometry import Window
from segmenter.maps.spool import Spool
from segmenter.tiling import Columns

PART = Window(3, 5, 37, 23)
WINDOWS = [
    Window(3 + row, 5 + col, min(11, 37 - row), min(9, 23 - col))
    for row in range(0, 37, 11)
    for col in (0, 9, 18)
]
Arrays = dict[str, NDArray[Any]]


def contents(rng: np.random.Generator) -> list[tuple[Window, Arrays]]:
    found = []
    for window in WINDOWS:
        shape = (window.height, window.width)
        ids = rng.integers(0, 255, shape, np.uint8)
        found.append((window, {"ids": ids[:, ::-1], "probabilities": rng.random((*shape, 3), np.float32)}))
    return found


def filled(tmp_path: Path, entries: list[tuple[Window, Arrays]]) -> Spool:
    spool = Spool(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
    assert spool.recover() == 0
    for window, arrays in entries:
        spool.add(window, arrays)
    spool.close()
    return spool


def check(found: list[tuple[Window, Arrays]], entries: list[tuple[Window, Arrays]]) -> None:
    assert [window for window, _ in found] == [window for window, _ in entries]
    for (_, got), (_, expected) in zip(found, entries, strict=True):
        assert got.keys() == expected.keys()
        for name, array in got.items():
            np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("count", range(len(WINDOWS) + 1))
def test_complete_bands_come_back_in_order(tmp_path: Path, rng: np.random.Generator, count: int) -> None:
    entries = contents(rng)
    filled(tmp_path, entries[:count])
    spool = Spool(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
    bands = count // 3
    assert spool.recover() == spool.rows == min(11 * bands, 37)
    check(list(spool.replay()), entries[: 3 * bands])
    for window, arrays in entries[3 * bands :]:
        spool.add(window, arrays)
    spool.close()
    again = Spool(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
    assert again.recover() == 37
    check(list(again.replay()), entries)
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_behind_a_damage_is_believed(tmp_path: Path, rng: np.random.Generator) -> None:
    entries = contents(rng)
    spool = filled(tmp_path, entries)
    whole = spool.path.read_bytes()
    # Where each band ends, told from files that hold only so many bands.
    ends = []
    for bands in range(5):
        spool.path.unlink()
        filled(tmp_path, entries[: 3 * bands])
        ends.append(spool.path.stat().st_size)
    assert ends[-1] == len(whole)
    for place in [*rng.integers(ends[0], len(whole), 60), len(whole) - 1]:
        bands = sum(end <= place for end in ends[1:])
        damaged = bytearray(whole)
        damaged[place] ^= 0x15
        for data in (bytes(damaged), whole[:place]):
            spool.path.write_bytes(data)
            again = Spool(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
            assert again.recover() == 11 * bands
            check(list(again.replay()), entries[: 3 * bands])
            again.close()


def test_of_another_input_or_run_nothing_is_taken_up(tmp_path: Path, rng: np.random.Generator) -> None:
    entries = contents(rng)
    filled(tmp_path, entries)
    for key in ("other", "key"):
        with contextlib.closing(Spool(tmp_path / "a.tif", key, Columns(PART, 1 << 16))) as spool:
            assert spool.recover() == 0


def test_a_length_that_cannot_be_costs_no_memory(tmp_path: Path, rng: np.random.Generator) -> None:
    spool = filled(tmp_path, contents(rng)[:3])
    whole = spool.path.read_bytes()
    spool.path.write_bytes(whole.replace(b"[11, 9]", b"[11, 9999999999999]", 1))
    with contextlib.closing(Spool(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))) as again:
        assert again.recover() == 0
