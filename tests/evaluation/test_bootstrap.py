"""Interval of mIoU by bootstrap over scenes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.evaluation.bootstrap import LEAST_SCENES, miou_interval
from segmenter.evaluation.scores import ConfusionMatrix, Protocol, Scores
from segmenter.grid.labels import ClassMap

Make = Callable[..., ClassMap]


@pytest.fixture
def scored(make_classes: Make) -> Callable[[NDArray[np.int64]], Scores]:
    """`scored(matrix)`: scores of a (3, 3) confusion matrix."""
    classes = make_classes(3)
    protocol = Protocol(tuple(classes.names), "full", "test", "none")

    def scored(matrix: NDArray[np.int64]) -> Scores:
        counts = np.column_stack([matrix, np.zeros(3, np.int64)])
        return ConfusionMatrix(classes, counts).scores(protocol)

    return scored


def scenes(rng: np.random.Generator, count: int) -> list[NDArray[np.int64]]:
    """Confusion matrices of scenes that differ in difficulty; few have the third class."""
    found = []
    for right in rng.beta(8, 3, count):
        shares = rng.dirichlet((4, 3, 0.5))
        rest = (1 - right) / 2
        found.append(rng.poisson(1e4 * shares[:, None] * (np.eye(3) * (right - rest) + rest)))
    return found


def test_it_holds_the_miou_and_narrows_with_the_scenes(scored: Callable[..., Scores]) -> None:
    rng = np.random.default_rng(1)
    widths = []
    for count in (LEAST_SCENES, 160):
        each = scenes(rng, count)
        low, high = miou_interval([scored(one) for one in each]) or (2.0, 2.0)
        assert low < scored(sum(each)).miou < high
        widths.append(high - low)
    assert 0.15 < widths[1] / widths[0] < 0.4  # about 1 / √16


def test_nine_in_ten_intervals_hold_the_miou_of_very_many_scenes(scored: Callable[..., Scores]) -> None:
    rng = np.random.default_rng(2)
    truth = scored(sum(scenes(rng, 20_000))).miou
    intervals = [miou_interval([scored(one) for one in scenes(rng, 40)]) or (2.0, 2.0) for _ in range(200)]
    assert np.mean([low <= truth <= high for low, high in intervals]) > 0.88


def test_few_scenes_have_none_and_the_same_scores_give_the_same(scored: Callable[..., Scores]) -> None:
    each = [scored(one) for one in scenes(np.random.default_rng(3), LEAST_SCENES)]
    empty = scored(np.zeros((3, 3), np.int64))
    assert miou_interval([*each[:-1], empty]) is None
    assert miou_interval([*each, empty]) == miou_interval(each)
    assert miou_interval([each[0]] * LEAST_SCENES) == pytest.approx((each[0].miou, each[0].miou))
