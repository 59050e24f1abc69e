"""What is computed of a large raster survives its process, up to the last complete row band."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns
from segmenter.mapping.folder.partial import PartialMap
from tests.helpers.refusals import refused

PART = Window(3, 5, 37, 23)
WINDOWS = [
    Window(3 + row, 5 + col, min(11, 37 - row), min(9, 23 - col))
    for row in range(0, 37, 11)
    for col in (0, 9, 18)
]
Arrays = dict[str, NDArray[Any]]


def contents(rng: Any) -> list[tuple[Window, Arrays]]:
    found = []
    for window in WINDOWS:
        shape = (window.height, window.width)
        ids = rng.integers(0, 255, shape, np.uint8)
        found.append((window, {"ids": ids[:, ::-1], "probabilities": rng.random((*shape, 3), np.float32)}))
    return found


def filled(tmp_path: Path, entries: list[tuple[Window, Arrays]]) -> PartialMap:
    partial = PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
    assert partial.recover() == 0
    for window, arrays in entries:
        partial.add(window, arrays)
    partial.close()
    return partial


def check(found: list[tuple[Window, Arrays]], entries: list[tuple[Window, Arrays]]) -> None:
    assert [window for window, _ in found] == [window for window, _ in entries]
    for (_, got), (_, expected) in zip(found, entries, strict=True):
        assert got.keys() == expected.keys()
        for name, array in got.items():
            np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("count", range(len(WINDOWS) + 1))
def test_complete_bands_come_back_in_order(tmp_path: Path, rng: Any, count: int) -> None:
    entries = contents(rng)
    filled(tmp_path, entries[:count])
    partial = PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
    bands = count // 3
    assert partial.recover() == partial.rows == min(11 * bands, 37)
    check(list(partial.replay()), entries[: 3 * bands])
    for window, arrays in entries[3 * bands :]:
        partial.add(window, arrays)
    partial.close()
    again = PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
    assert again.recover() == 37
    check(list(again.replay()), entries)
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_of_another_input_or_run_nothing_is_taken_up(tmp_path: Path, rng: Any) -> None:
    entries = contents(rng)
    filled(tmp_path, entries)
    for key in ("other", "key"):  # the first begins it anew
        with contextlib.closing(PartialMap(tmp_path / "a.tif", key, Columns(PART, 1 << 16))) as partial:
            assert partial.recover() == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Window(14, 14, 11, 9), Window(14, 5, 11, 9)),
        (Window(14, 14, 11, 9), Window(25, 14, 11, 9)),
        (Window(14, 23, 11, 5), Window(14, 23, 10, 5)),
    ],
)
def test_a_window_that_does_not_follow_the_one_before_it_ends_what_is_believed(
    tmp_path: Path, rng: Any, old: Window, new: Window
) -> None:
    entries = contents(rng)
    for i, (window, arrays) in enumerate(entries):
        if window == old:
            entries[i] = new, {name: array[: new.height] for name, array in arrays.items()}
    filled(tmp_path, entries)
    with contextlib.closing(PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))) as again:
        assert again.recover() == 11


def test_a_partial_map_that_changes_while_it_is_read_is_an_error(tmp_path: Path, rng: Any) -> None:
    partial = filled(tmp_path, contents(rng))
    with contextlib.closing(PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))) as again:
        assert again.recover() == 37
        with partial.path.open("r+b") as file:
            file.seek(-9, 2)
            file.write(b"\x55" * 9)
        with refused(RasterError, where="partial", fault="changed while"):
            list(again.replay())


def test_a_partial_map_of_another_format_is_begun_anew(tmp_path: Path, rng: Any) -> None:
    partial = filled(tmp_path, contents(rng)[:3])
    whole = partial.path.read_bytes()
    assert whole.startswith(b'{"partial": 2,')
    for version in (b"1", b"3"):
        partial.path.write_bytes(whole.replace(b"2", version, 1))
        with contextlib.closing(PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))) as again:
            assert again.recover() == 0
