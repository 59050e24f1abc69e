"""Targets among the files in an output folder of predict.py: its journal, and finished windows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from fuzz.target import Facts, digest
from segmenter.extras.written_map import WrittenMap
from segmenter.grid.geometry import Window
from segmenter.grid.windows import Columns
from segmenter.mapping.folder.journal import Journal, JournalEntry, damage, file_facts
from segmenter.mapping.folder.partial import PartialMap
from segmenter.mapping.outputs.codes import CODES, VALUES
from segmenter.raster import RasterSpec, write_raster

_NAMES = ("a", "b", "c")
_PART = Window(3, 5, 64, 48)
_SETTINGS = {"memory": "3GB"}


def make_journal(folder: Path) -> None:
    """Of three maps, which lie beside it."""
    journal = Journal(folder)
    journal.settle(_SETTINGS, {"tile": 64, "batch": 4})
    for name in _NAMES:
        (folder / f"{name}.tif").write_bytes(name.encode() * 100)
        outputs = {f"{name}.tif": file_facts(folder / f"{name}.tif")}
        facts = {"file": f"{name}.tif", "bytes": 7, "mtime_ns": 8, "sample": "9", "header": "0"}
        options = {"tile": 64, "part": [0, 0, 9, 9], "outputs": ["map"], "nodata": 255}
        run = {"name": "run", "checksum": "0123"}
        journal.append(JournalEntry(name, f"in/{name}.tif", facts, run, options, outputs))


def read_journal(file: Path) -> Facts:
    """What a call finds finished: entries whose outputs are as they say."""
    journal = Journal(file.parent)
    facts = [digest("settings", journal.settings(_SETTINGS))] if journal.settings(_SETTINGS) else []
    for name in _NAMES:
        entry = journal.find(name)
        if entry is not None and damage(file.parent, entry, entry.outputs) is None:
            entry.difference(entry)
            entry.extends(entry)
            facts.append(digest(asdict(entry)))
    journal.append(JournalEntry("d", "in/d.tif", {}, {}, {}, {}))
    if Journal(file.parent).find("d") is None:
        raise AssertionError("an entry that was added is not found")
    return facts


def make_partial(folder: Path) -> None:
    """Of a part of a raster, in rows of three windows, with three outputs."""
    partial = _partial(folder)
    partial.recover()
    rng = np.random.default_rng(3)
    for row in range(_PART.row, _PART.row_stop, 16):
        for col in range(_PART.col, _PART.col_stop, 16):
            partial.add(
                Window(row, col, 16, 16),
                {
                    "ids": rng.integers(0, 7, (16, 16), np.uint8),
                    "confidence": rng.integers(0, 255, (16, 16), np.uint8),
                    "probabilities": rng.random((16, 16, 2)).astype(np.float16),
                },
            )
    partial.close()


def _partial(folder: Path) -> PartialMap:
    return PartialMap(folder / "a.tif", "key", Columns(_PART, 64))


def read_partial(file: Path) -> Facts:
    """The windows that are not computed again."""
    partial = _partial(file.parent)
    try:
        partial.recover()
        found = [digest(w, *(v for pair in arrays.items() for v in pair)) for w, arrays in partial.replay()]
    finally:
        partial.close()
    return found


def make_map(folder: Path) -> None:
    """With codes of 16 bits, in metadata that say so."""
    values = np.random.default_rng(4).choice(np.array([10, 300, 65535], np.uint16), (37, 53))
    names = {f"CLASS_{i}": name for i, name in enumerate(("water", "road"))}
    tags = {**names, "CODE_0": "10", "CODE_1": "300", VALUES: CODES}
    write_raster(folder / "map.tif", values, RasterSpec(nodata=65535, tags=tags))


def read_map(file: Path) -> Facts:
    """Its classes and ids, as polygons are made of them."""
    with WrittenMap(file) as found:
        size = found.info.size
        rows = min(size.height, 100)
        ids, _ = found.read(Window(0, 0, rows, min(size.width, 100)))
        return [digest(found.classes), digest(ids)]
