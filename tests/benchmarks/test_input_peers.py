"""The comparison of inputs: every arm applies the same transforms, and what was not measured says why."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import input_peers, input_peers_common, input_peers_ours
from segmenter.config.reading import recipe_from
from segmenter.tiles.transforms import stages_of


@pytest.mark.parametrize("case", input_peers_common.CASES)
def test_our_recipe_asks_for_the_transforms_of_the_peers(case: str) -> None:
    """By name, parameters and probability; and none is drawn together with another."""
    data = input_peers_ours.recipe(Path("tiles"), case, 16, packed=False)
    augmentation = recipe_from(data, "benchmark").augmentation
    stages = [stage.compose for stage in stages_of(augmentation) if stage.compose is not None]
    ours = [one.to_dict()["transform"] for compose in stages for one in compose.transforms]
    theirs = [one.to_dict()["transform"] for one in input_peers_common.transforms(case).transforms]
    assert ours == theirs
    assert len(stages) == len(ours) == (1 if case == "flips" else 4)


def options(**changed: object) -> Namespace:
    base = {"peer_python": None, "batch": 2, "batches": 1, "workers": 1, "repeats": 3, "cases": ["all"]}
    return Namespace(**{**base, **changed})


def test_an_arm_that_cannot_be_measured_says_why_in_its_row() -> None:
    results = input_peers.Results()
    fast, slow = (next(a for a in input_peers.ARMS if a.name == name) for name in ("packed", "cv2"))
    for milliseconds in (1.0, 3.0, 1.5):
        results.measured["all", fast.title].append({"ms_processor": milliseconds, "tiles_per_second": 700})
    input_peers._measure(slow, "all", Path("nowhere"), options(), results)
    results.missing |= {arm.title: "not there" for arm in input_peers.ARMS if arm not in (fast, slow)}
    head, _, *rows = [line for line in input_peers._page(results, options(), "") if line.startswith("| ")]
    assert "ms of processor a tile" in head
    assert rows[0] == "| this project, packed | 1.50 | 1.00 … 3.00 |  | 700 | 700 … 700 |"
    assert f"| {slow.title} | not measured: no --peer-python |  |  |  |  |" in rows
    assert len(rows) == len(input_peers.ARMS)


def test_a_peer_that_fails_is_named_with_its_last_line(tmp_path: Path) -> None:
    results = input_peers.Results()
    arm = next(a for a in input_peers.ARMS if a.name == "cv2" and a.peer)
    input_peers._measure(arm, "all", tmp_path, options(peer_python=sys.executable), results)
    assert "torch" in results.missing[arm.title]
    assert not results.measured
