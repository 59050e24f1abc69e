"""Index and statistics beside the data: damaged in any way they are made anew, and give no other result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from segmenter.tiles import index_cache as cache
from segmenter.tiles import statistics
from segmenter.tiles.index_cache import Entries, SceneTiles, load_entries, save_entries
from segmenter.tiles.statistics import BandStatistics
from tests.helpers.made_runs import flipped, rewritten

# ------------------------------------------------------------------------------------ the tile index


@pytest.fixture
def entries(rng: np.random.Generator) -> Entries:
    def tiles(count: int) -> SceneTiles:
        row, col = (rng.integers(-9, 99, count).astype(np.int32) for _ in range(2))
        return SceneTiles(row, col, rng.integers(0, 9**5, (count, 3)))

    return {
        ("a.tif", "b.tif"): (("1f", "2a"), tiles(5)),
        ("wäld/c.tif", "d.tif"): (("5", "6"), tiles(0)),
        ("e.tif", "e.tif"): (("9", "9"), tiles(3)),
    }


def plain(entries: Entries) -> Any:
    def values(tiles: SceneTiles) -> list[Any]:
        return [tiles.row_N.tolist(), tiles.col_N.tolist(), tiles.counts_NK.tolist()]

    return [(files, keys, values(tiles)) for files, (keys, tiles) in entries.items()]


def test_no_flipped_bit_of_an_index_gives_other_tiles(
    tmp_path: Path, entries: Entries, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiles.parquet"
    save_entries(path, entries, 3)
    assert plain(load_entries(path, 3)) == plain(entries)
    whole, rebuilt = path.read_bytes(), 0
    for content in flipped(whole, 19):
        path.write_bytes(content)
        found = load_entries(path, 3)
        assert found == {} or plain(found) == plain(entries)
        rebuilt += found == {}
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == rebuilt > 8 * len(whole) / 19 / 2
    assert all(line.startswith(f"{path}: damaged, it is built anew (") and len(line) < 500 for line in lines)


SAID: list[Callable[[dict[bytes, bytes]], Any]] = [
    lambda said: said.clear(),
    lambda said: said.pop(b"sha256"),
    lambda said: said.update({b"format": b"1"}),
    lambda said: said.update({b"scenes": b"[1]"}),
    lambda said: said.update({b"scenes": b"[" * 10**5}),
    lambda said: said.update({b"scenes": said[b"scenes"].replace(b"e.tif", b"f.tif")}),
]


@pytest.mark.parametrize("change", SAID, ids=range(len(SAID)))
@pytest.mark.parametrize("checked", [False, True])
def test_an_index_that_says_nothing_or_else_of_itself_is_none(
    tmp_path: Path, entries: Entries, monkeypatch: Any, change: Callable[[Any], Any], checked: bool
) -> None:
    path = tmp_path / "tiles.parquet"
    save_entries(path, entries, 3)
    table = pq.read_table(path)
    said = dict(table.schema.metadata)
    change(said)
    pq.write_table(table.replace_schema_metadata(said or None), path)
    if not checked and b"sha256" in said:  # what if the checksum fitted?
        monkeypatch.setattr(cache, "_checksum", lambda *_: said[b"sha256"])
    found = load_entries(path, 3)
    assert found == {} or (not checked and ("f.tif", "f.tif") in found)


# -------------------------------------------------------------------------------- band statistics

FOUND = BandStatistics(
    *(np.array([1.5, 2.0]), np.array([0.25, 3]), 7, "uint16", np.array([0.0, 1]), np.array([9.0, 8])),
    np.array([0.2, 2.5]),
)


def values(found: BandStatistics) -> list[Any]:
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in astuple(found)]


def test_no_flipped_bit_of_the_statistics_gives_other_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bands.json"
    statistics._save(path, FOUND)
    whole, rebuilt = path.read_bytes(), 0
    for content in flipped(whole):
        path.write_bytes(content)
        found = statistics._load(path)
        assert found is None or values(found) == values(FOUND)
        rebuilt += found is None
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == rebuilt > 0.97 * 8 * len(whole)
    assert all(line.startswith(f"{path}: damaged, it is taken anew (") for line in lines)


@pytest.mark.parametrize("version", [1, 2, 4, None])
def test_statistics_of_another_format_are_none(tmp_path: Path, version: int | None) -> None:
    path = tmp_path / "bands.json"
    statistics._save(path, FOUND)
    rewritten(path, format=version)
    assert statistics._load(path) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 10**5, b'{"mean": [0], "std": [1]}'])
def test_what_are_no_statistics_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bands.json"
    path.write_bytes(content)
    assert statistics._load(path) is None


def test_statistics_without_a_checksum_are_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "bands.json"
    statistics._save(path, FOUND)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({key: data[key] for key in data if key != "crc"}))
    assert statistics._load(path) is None
