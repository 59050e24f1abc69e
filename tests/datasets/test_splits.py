"""Splits: the nearest number to a share, parts of one place together, entries that match nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datasets import load_dataset
from datasets.files import held_out
from segmenter.base.errors import DatasetError
from segmenter.config.reading import recipe_from
from segmenter.grid.scenes import Dataset

CODES: dict[str, Any] = {
    "images": "{tile}/{part}.jpg",
    "labels": "{tile}/{part}.png",
    "classes": [{"name": "a", "code": 1}, {"name": "b", "code": 7}],
}


def load(root: Path, **settings: Any) -> Dataset:
    dataset = {"kind": "folder", "root": str(root), **settings}
    return load_dataset(recipe_from({"name": "t", "dataset": dataset}, "t"))


def touch(root: Path, images: list[str]) -> Path:
    """Empty files: a loader reads no pixel."""
    for name in [*images, *(image.replace(".jpg", ".png") for image in images)]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def tiled(root: Path) -> Path:
    return touch(root, [f"t{tile}/p{part}.jpg" for tile in range(3) for part in range(2)])


@pytest.mark.parametrize(("count", "share"), [(2, 1e-9), (6, 0.2), (7, 0.5), (16, 0.2), (45, 0.99), (3, 0.9)])
def test_what_is_held_out_is_the_nearest_number_to_the_share(count: int, share: float) -> None:
    for seed in range(20):
        chosen = held_out([f"{seed}_{i}" for i in range(count)], share)
        assert 1 <= len(set(chosen)) == len(chosen) < count
        assert abs(len(chosen) - share * count) <= 0.5 or len(chosen) in (1, count - 1)


def test_what_is_held_out_hardly_changes_when_names_are_added() -> None:
    names = [f"scene{i}" for i in range(500)]
    before, after = set(held_out(names, 0.2)), set(held_out([*names, "new"], 0.2)) - {"new"}
    assert (len(before), len(before ^ after) <= 1) == (100, True)
    assert before == set(held_out(reversed(names), 0.2))
    assert (held_out(["only"], 0.9), held_out([], 0.5)) == ((), ())


@pytest.mark.parametrize(
    ("images", "files"),
    [
        ("{tile}/images/{part}.jpg", ["{t}/images/{p}.jpg"]),
        ("{tile}_{part}.jpg", ["a_{t}_{p}.jpg"]),
        ("img/**/{tile}-{part}.jpg", ["img/x/{t}-{p}.jpg", "img/{t}-z{p}.jpg"]),
        ("{day}/{tile}({part}).jpg", ["d/{t}({p}).jpg"]),
    ],
)
def test_parts_of_one_place_on_both_sides_are_said_with_what_keeps_them_together(
    tmp_path: Path, images: str, files: list[str]
) -> None:
    paths = [file.format(t=f"t{t}", p=p) for file in files for t in range(4) for p in range(3)]
    touch(tmp_path, paths)
    patterns = {"images": images, "labels": images.replace(".jpg", ".png"), "classes": CODES["classes"]}
    torn = load(tmp_path, **patterns, split={"validation_share": 0.3})
    (note,) = torn.notes
    assert "of one {tile} lie on both sides" in note
    group = note.partition("dataset.split.group: '")[2].partition("'")[0]
    whole = load(tmp_path, **patterns, split={"validation_share": 0.3, "group": group})
    assert whole.notes == ()
    assert len({scene.group for scene in whole.scenes}) == 4
    assert {scene.group.removeprefix("a_") for scene in whole.of("validation")} < {"t0", "t1", "t2", "t3"}


@pytest.mark.parametrize(
    "split", [{}, {"validation": ["t1_*"]}, {"validation_share": 0.3, "group": "(t[0-9])"}]
)
def test_a_split_that_keeps_parts_together_is_not_remarked_on(tmp_path: Path, split: dict[str, Any]) -> None:
    assert load(tiled(tmp_path), **CODES, split=split).notes == ()


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        ("t1", r"did you mean 't1\*' \(2 scenes\)\?"),
        ("1_p", r"'\*1_p\*'"),
        ("t2_p2", "did you mean t2_p[01]"),
    ],
)
def test_an_entry_of_the_split_that_matches_nothing_says_what_would(
    tmp_path: Path, entry: str, meant: str
) -> None:
    with pytest.raises(DatasetError, match=meant):
        load(tiled(tmp_path), **CODES, split={"validation": [entry]})
