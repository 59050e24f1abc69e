"""Can a map's windows be seen? A number that is 1 where they cannot, and well above without a halo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.seams import RADIUS, MadeScene, made_model, seams, seams_of
from segmenter.grid.geometry import Size
from segmenter.inference.blending import Blend
from segmenter.inference.predictor import Tiling

SIDE = Size(64, 64)


@pytest.fixture(scope="module")
def made_scene() -> MadeScene:
    return MadeScene(701, 907)


@pytest.mark.parametrize(
    "kind", ["exact", "hann", *(pytest.param(k, marks=pytest.mark.slow) for k in ("gaussian", "linear"))]
)
def test_window_borders_are_lines_like_others(made_scene: MadeScene, kind: Any) -> None:
    exact = kind == "exact"
    tiling = Tiling(SIDE, RADIUS if exact else 0, 1, 4, None if exact else Blend(50, kind))
    found = seams_of(made_scene, tiling, made_model())
    assert found.ratio <= 1.1
    assert found.high <= 1.1
    assert found.low <= 1


def test_without_a_halo_they_show(made_scene: MadeScene) -> None:
    assert seams_of(made_scene, Tiling(SIDE, 0, 1, 4), made_model()).low >= 2


def test_the_measure_counts_changes_across_lines() -> None:
    ids = np.zeros((100, 100), np.uint8)
    ids[50:] = 1  # one change across row 50, in all of its pixels
    ids[:, 30:] += 2
    ids[::7, 61:] = 5
    found = seams(ids, [50], [30, 0, 100])
    elsewhere = (found_changes(ids) - 2 * 100) / (2 * 99 - 2)
    assert found.ratio == pytest.approx(100 / elsewhere)


def found_changes(ids: np.ndarray) -> int:
    return int((ids[1:] != ids[:-1]).sum() + (ids[:, 1:] != ids[:, :-1]).sum())
