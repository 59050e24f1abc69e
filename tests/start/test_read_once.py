"""Each file is read once for all rules: those of the folder, the split, the tile index and the check."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.check import CheckReport, check_dataset
from datasets.contents import Contents
from datasets.start.choice import nest_choices
from datasets.start.draft import Draft
from datasets.start.look import look
from segmenter.config.reading import recipe_from
from segmenter.raster import opening
from segmenter.tiles.index import TileIndex
from tests.helpers import made_folders as made

PAIRS, LOOKED_AT = 24, 12
"""Files of each kind, and those of them that are looked at before, for what they are."""


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Pairs that were written long ago: a change of them would show."""
    for i in range(PAIRS):
        size = made.SIZE[0] + i, made.SIZE[1]
        for kind, array in (("im", made.image(rng, size=size)), ("gt", made.label([1, 2, 5], size, i))):
            path = made.save(tmp_path / f"{kind}/s{i}.tif", array, **made.place(200 * i))
            os.utime(path, (1_000_000_000, 1_000_000_000))
    return tmp_path


def planned(folder: Path, contents: Contents | None) -> tuple[TileIndex, CheckReport]:
    choices = look(folder, None, contents)
    draft = Draft(choices, "made", None, (), contents or Contents())
    assert draft.groups.count == PAIRS
    assert len(draft.samples) == PAIRS
    dataset = load_dataset(recipe_from({"name": "made", **nest_choices(choices)}, "made"))
    return draft.index, check_dataset(dataset, progress=False, contents=contents)


def test_each_file_is_opened_once_but_for_the_first_look(folder: Path, monkeypatch: Any) -> None:
    opened, before = Counter[Path](), opening._open_dataset

    def counting(path: Path, *rest: Any) -> Any:
        opened[path] += 1
        return before(path, *rest)

    monkeypatch.setattr(opening, "_open_dataset", counting)
    planned(folder, Contents())
    for kind in ("im", "gt"):
        times = Counter(opened[path] for path in (folder / kind).iterdir())
        assert times[1] >= PAIRS - LOOKED_AT, times
        assert not times[0]


def test_what_was_read_before_changes_nothing(folder: Path) -> None:
    together, report = planned(folder, Contents())
    for cached in (folder / ".tile-index").iterdir():
        cached.unlink()
    apart, again = planned(folder, None)
    assert together.fingerprint() == apart.fingerprint()
    assert report.to_dict() == again.to_dict()
    assert report.text() == again.text()
