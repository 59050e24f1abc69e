"""Law 12, *a figure says what its design allows*: intervals of mIoU hold, or are not given."""

import numpy as np
import pytest

from segmenter.evaluation.bootstrap import miou_interval
from segmenter.evaluation.intervals import Interval
from segmenter.evaluation.scores import ConfusionMatrix
from studies.group_intervals import CLASSES, NAMES, PROTOCOL, coverage, matrices, scenes_of, truth_of


@pytest.fixture(scope="module", autouse=True)
def fewer_draws() -> None:
    """Percentiles of 400 draws: a little rougher, and five times as fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segmenter.evaluation.bootstrap._DRAWS", 400)
        yield


@pytest.mark.parametrize(("places", "chips"), [(3, 20), (4, 10), (8, 5), (20, 2)])
@pytest.mark.parametrize("kind", [pytest.param("equal", marks=pytest.mark.slow), "half"])
def test_intervals_over_groups_hold_the_miou_of_the_region(kind: str, places: int, chips: int) -> None:
    """Between 90 and 99 % of 250 draws, where 95 % are promised: 3.6 standard errors on both sides."""
    share, holds, _, _ = coverage(kind, places, chips, 250)
    assert share > 0.7
    assert 0.9 <= holds <= 0.99


def test_intervals_over_the_chips_of_three_places_would_not() -> None:
    """The test above can fail: with chips as units the interval holds the truth in a third of the draws."""
    rng, truth, held = np.random.default_rng(3), truth_of("equal", 3, 2), []
    for _ in range(60):
        scenes = scenes_of(matrices(rng, np.ones(3), 20, 3))
        for scene in scenes:
            scene.group = None
        low, high = miou_interval(scenes, PROTOCOL).bounds
        held.append(low <= truth <= high)
    assert np.mean(held) < 0.6


@pytest.mark.parametrize(
    ("places", "sizes", "holding", "given"),
    [
        (2, [1, 1], 2, False),
        (3, [1, 1, 1], 3, True),
        (3, [2, 1, 1], 3, True),
        (8, [63, 1, 1, 1, 1, 1, 1, 1], 8, False),
        (8, [7, 1, 1, 1, 1, 1, 1, 1], 8, True),
        (8, [1] * 8, 1, False),
        (8, [1] * 8, 2, False),
        (8, [1] * 8, 5, True),
        (40, [1] * 40, 1, False),
    ],
)
def test_there_is_none_where_groups_or_a_class_lie_in_two_groups_at_most(
    places: int, sizes: list[float], holding: int, given: bool
) -> None:
    rng = np.random.default_rng(places)
    # Alike shares of classes, so that the sizes alone decide.
    counts = np.repeat(matrices(rng, np.ones(1), 2, 1), places, axis=0) * np.array(sizes)[:, None, None, None]
    counts = (counts * rng.uniform(0.95, 1.05, counts.shape)).astype(np.int64)
    counts[holding:, :, -1], counts[holding:, :, :, 3] = 0, 0
    interval = miou_interval(scenes_of(counts), PROTOCOL)
    assert (interval.count, interval.groups, interval.side) == (places, True, None)
    assert (interval.bounds is not None) == given
    if given:
        low, high = interval.bounds
        total = ConfusionMatrix(NAMES, counts.sum(axis=(0, 1))).scores(PROTOCOL).miou
        assert 0 <= low < total < high <= 1
    elif holding < places:
        assert interval.reason.startswith(f"class {CLASSES[-1]} ")
    assert Interval.from_dict(interval.to_dict(), len(counts)) == interval


def test_fewer_than_ten_groups_have_student_s_t_by_leaving_one_out() -> None:
    """By hand: t of two degrees of freedom, and the error of three mIoUs without one group each."""
    one = matrices(np.random.default_rng(5), np.ones(1), 2, 1)
    spread = np.zeros_like(one)
    spread[..., 0, 0], spread[..., 0, 1] = 300, -300
    counts = np.concatenate([one, one + spread, one - spread])
    low, high = miou_interval(scenes_of(counts), PROTOCOL).bounds

    def miou(*places: int) -> float:
        return ConfusionMatrix(NAMES, counts[[*places]].sum(axis=(0, 1))).scores(PROTOCOL).miou

    left = np.array([miou(1, 2), miou(0, 2), miou(0, 1)])
    error = np.sqrt(2 / 3 * ((left - left.mean()) ** 2).sum())
    assert (low, high) == pytest.approx(
        (miou(0, 1, 2) - 4.30265 * error, miou(0, 1, 2) + 4.30265 * error), abs=1e-4
    )


def test_scenes_of_no_group_are_places_of_their_own_and_say_so() -> None:
    scenes = scenes_of(matrices(np.random.default_rng(6), np.ones(12), 1, 12))
    grouped = miou_interval(scenes, PROTOCOL)
    for scene in scenes:
        scene.group = None
    alone = miou_interval(scenes, PROTOCOL)
    assert grouped == alone
    assert "each taken for a place of its own" in str(alone)
