"""Maps that were finished or computed in part are found again; one process at a time writes an output."""

import contextlib
import json
import os
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.base.errors import RasterError, SegmenterError
from segmenter.base.sealed import seal
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns
from segmenter.mapping.folder.journal import Journal, JournalEntry, input_facts
from segmenter.mapping.folder.partial import PartialMap
from segmenter.mapping.folder.state import OutputLocks
from tests.helpers.forbidden import small_files
from tests.helpers.refusals import refused

ENTRY = JournalEntry(
    "a", "/in/a.tif", {"bytes": 1}, {"model": "m"}, {"nodata": 255, "part": [0, 0, 9, 9]}, {}
)


def test_what_is_appended_is_found_by_others_and_the_last_counts(tmp_path: Path) -> None:
    journal, other = Journal(tmp_path / "maps"), Journal(tmp_path / "maps")
    assert journal.find("a") is None
    journal.append(ENTRY)
    assert other.find("a") is None
    other.refresh()
    assert other.find("a") == journal.find("a") == Journal(tmp_path / "maps").find("a") == ENTRY
    newer = replace(ENTRY, outputs={"a.tif": {"bytes": 3, "sha256": "x"}})
    other.append(newer)
    journal.refresh()
    assert journal.find("a") == newer
    assert (tmp_path / "maps" / ".journal.jsonl").read_text().count("\n") == 2
    (tmp_path / "maps" / ".journal.jsonl").unlink()
    Journal(tmp_path / "maps").append(replace(ENTRY, name="b"))
    journal.refresh()
    assert journal.find("b") is not None


def test_every_way_of_tearing_the_last_line_costs_only_that_line(tmp_path: Path) -> None:
    Journal(tmp_path).append(ENTRY)
    path = tmp_path / ".journal.jsonl"
    first = path.read_bytes()
    Journal(tmp_path).append(replace(ENTRY, name="b"))
    second = path.read_bytes()[len(first) :]
    for kept in range(len(second)):
        path.write_bytes(first + second[:kept])
        journal = Journal(tmp_path)
        assert journal.find("a") == ENTRY
        assert journal.find("b") is None
    for kept in (0, 1, len(second) - 1):
        path.write_bytes(first + second[:kept])
        Journal(tmp_path).append(replace(ENTRY, name="c"))
        journal = Journal(tmp_path)
        assert journal.find("a") == ENTRY
        assert journal.find("c") is not None
    path.write_bytes(b"\x00\xff{}\n[1]\n{}\n" + first)
    assert Journal(tmp_path).find("a") == ENTRY
    assert Journal(tmp_path).damaged == 3


def test_threads_append_whole_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    names = [f"{i}" for i in range(24)]
    threads = [threading.Thread(target=journal.append, args=[replace(ENTRY, name=name)]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = Journal(tmp_path)
    assert again.damaged == 0
    assert all(again.find(name) for name in names)


@pytest.mark.parametrize(
    ("record", "damaged"),
    [({"format": 9, "name": "a"}, 0), ({"format": 4, **asdict(ENTRY), "more": 1}, 1)],
    ids=["of another format", "of another shape"],
)
def test_an_entry_of_another_make_counts_as_none(tmp_path: Path, record: Any, damaged: int) -> None:
    Journal(tmp_path).append(replace(ENTRY, name="b"))
    with (tmp_path / ".journal.jsonl").open("a") as file:
        file.write(seal(json.dumps(record)) + "\n")
    journal = Journal(tmp_path)
    assert journal.find("a") is None
    assert journal.find("b") is not None
    assert journal.damaged == damaged


def test_a_link_in_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / ".journal.jsonl").symlink_to(tmp_path / "elsewhere")
    with refused(SegmenterError, where=".journal.jsonl", fault="cannot read"):
        Journal(tmp_path / "maps")
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_a_full_disk_is_an_error_and_costs_no_older_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(ENTRY)
    with small_files(300), pytest.raises(SegmenterError, match="cannot write"):
        journal.append(ENTRY)
    assert Journal(tmp_path).find("a") == ENTRY


@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 20, 5_000_000])
def test_an_input_that_was_written_is_another(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(bytes(size))
    before, times = input_facts(path, {"size": [1, 2]}), path.stat()
    assert input_facts(path, {"size": [1, 2]}) == before
    assert json.loads(json.dumps(before)) == before
    assert input_facts(path, {"size": [2, 1]}) != before
    (tmp_path / "a.tif.msk").write_bytes(b"mask")
    assert input_facts(path, {"size": [1, 2]}) != before
    (tmp_path / "a.tif.msk").unlink()
    for place in sorted({0, size // 2, size - 1}) if size else ():
        data = bytearray(size)
        data[place] = 1
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as `cp -p` does
        # Of large files 16 pieces are looked at, the first and the last bytes among them.
        looked_at = size < 2_000_000 or place != size // 2
        assert (input_facts(path, {"size": [1, 2]}) != before) == looked_at
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
        assert input_facts(path, {"size": [1, 2]}) != before


def test_maps_that_share_a_file_are_not_made_at_once(tmp_path: Path) -> None:
    """As a PNG and a GeoTIFF of one input, both with confidence."""
    one, two = ([tmp_path / name, tmp_path / "a.confidence.tif"] for name in ("a.png", "a.tif"))
    locks, others = OutputLocks(one), OutputLocks(two)
    locks.take()
    with refused(RasterError, where="a.confidence.tif", fault="another process"):
        others.take()
    OutputLocks([tmp_path / "a.tif"]).take()  # which the others gave back
    locks.release()
    locks.release()
    OutputLocks([tmp_path / "a.confidence.tif"]).take()


def test_an_option_that_an_older_journal_does_not_name_is_none() -> None:
    """Maps of before are kept, and so are the files beside them that are not asked for this time."""
    options = {"part": [0, 0, 9, 9], "format": "geotiff", "tta": "none"}
    old = JournalEntry("a", "a.tif", {}, {}, options, {})
    new = JournalEntry("a", "a.tif", {}, {}, {**options, "precision": None, "format": "png"}, {})
    other = JournalEntry("a", "a.tif", {}, {}, {**options, "precision": "mixed_float16"}, {})
    assert new.extends(old)
    assert not other.extends(old)
    assert not new.extends(other)
    assert other.difference(old) is None  # an older program's call does not know better
    assert old.difference(other) == "other options: precision was float32, is mixed_float16"


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


def test_nothing_behind_a_damage_is_believed(tmp_path: Path, rng: Any) -> None:
    entries = contents(rng)
    partial = filled(tmp_path, entries)
    whole = partial.path.read_bytes()
    # Where each band ends, told from files that hold only so many bands.
    ends = []
    for bands in range(5):
        partial.path.unlink()
        filled(tmp_path, entries[: 3 * bands])
        ends.append(partial.path.stat().st_size)
    assert ends[-1] == len(whole)
    for place in [*rng.integers(ends[0], len(whole), 60), len(whole) - 1]:
        bands = sum(end <= place for end in ends[1:])
        damaged = bytearray(whole)
        damaged[place] ^= 0x15
        for data in (bytes(damaged), whole[:place]):
            partial.path.write_bytes(data)
            again = PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))
            assert again.recover() == 11 * bands
            check(list(again.replay()), entries[: 3 * bands])
            again.close()


def test_a_partial_map_that_changes_while_it_is_read_is_an_error(tmp_path: Path, rng: Any) -> None:
    partial = filled(tmp_path, contents(rng))
    with contextlib.closing(PartialMap(tmp_path / "a.tif", "key", Columns(PART, 1 << 16))) as again:
        assert again.recover() == 37
        with partial.path.open("r+b") as file:
            file.seek(-9, 2)
            file.write(b"\x55" * 9)
        with refused(RasterError, where="partial", fault="changed while"):
            list(again.replay())
