"""Estimators: the papers' worked examples, sums over the points, simulated samples, unequal pixels."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.extras.accuracy.estimators import Estimates, Figure, Sample, estimates

OLOFSSON = np.array([[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]])
"""Table 8 of Olofsson et al. 2014: deforestation, forest gain, stable forest, stable non-forest."""
PIXELS = (200_000, 150_000, 3_200_000, 6_450_000)
HECTARES = 0.09
STEHMAN = (
    ("A" * 10 + "B" * 10 + "C" * 10 + "D" * 10),
    ("AAAAAAABBB" + "ABBBBBBBBB" + "BBCCCCCCBB" + "DDDDDDDDDD"),
    ("AAAAACBABC" + "ABBBBBAABB" + "CCCCCDDBBA" + "DDDDDDDCCB"),
)
"""Table 2 of Stehman 2014: stratum, map class and reference class of 40 points."""


def sample(
    stratum: Any, mapped: Any, reference: Any, areas: Sequence[float], *, classes: int = 4, **more: Any
) -> Sample:
    arrays = [np.asarray(each, np.intp) for each in (stratum, mapped, reference)]
    size = more.pop("size", np.ones(len(arrays[0])))
    return Sample(
        classes=tuple("abcdefgh"[:classes]),
        strata=tuple(map(str, range(len(areas)))),
        area_H=np.asarray(areas, np.float64),
        pixels_H=None if (pixels := more.get("pixels")) is None else np.asarray(pixels),
        stratum_N=arrays[0],
        mapped_N=arrays[1],
        reference_N=arrays[2],
        size_N=np.asarray(size, np.float64),
        mapped_area_K=np.full(classes, np.nan),
    )


def of_matrix(counts: NDArray[Any], areas: Sequence[float]) -> Sample:
    """A sample whose strata are the map's classes."""
    mapped, reference = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(counts.shape))
    return sample(mapped, mapped, reference, areas, classes=len(counts))


def halves(figures: Sequence[Figure], digits: int) -> list[float]:
    return [round(each.half, digits) for each in figures]


def values(figures: Sequence[Figure], digits: int) -> list[float]:
    return [round(each.value, digits) for each in figures]


def test_the_example_of_olofsson_2014_to_the_printed_digit() -> None:
    """Tables 8 and 9 and section 5.2, but for two half-widths that contradict the paper's equation 7."""
    found = estimates(of_matrix(OLOFSSON, PIXELS))
    assert found.matrix_KK.round(4).tolist() == [
        [0.0176, 0, 0.0013, 0.0011],
        [0, 0.0110, 0.0016, 0.0024],
        [0.0019, 0, 0.2967, 0.0213],
        [0.0040, 0.0020, 0.0179, 0.6212],
    ]
    assert values(found.shares, 4) == [0.0235, 0.0130, 0.3175, 0.6460]
    assert values(found.users, 2) == [0.88, 0.73, 0.93, 0.96]
    assert halves(found.users, 2) == [0.07, 0.10, 0.04, 0.02]
    assert values(found.producers, 2) == [0.75, 0.85, 0.93, 0.96]
    assert halves(found.producers, 2)[::2] == [0.21, 0.03]
    assert (round(found.overall.value, 2), round(found.overall.half, 2)) == (0.95, 0.02)
    areas = found.areas(HECTARES)
    assert values(areas, 0) == [21_158, 11_686, 285_770, 581_386]
    assert halves(areas, 0) == [6_158, 3_756, 15_510, 16_282]
    assert values(found.areas(), 0)[0] == 235_086
    assert halves(found.areas(), 0)[0] == 68_418


def test_the_example_of_stehman_2014_to_the_printed_digit() -> None:
    columns = [["ABCD".index(letter) for letter in column] for column in STEHMAN]
    sizes = [40_000, 30_000, 20_000, 10_000]
    found = estimates(sample(*columns, sizes, pixels=sizes))
    assert (round(found.overall.value, 2), round(found.overall.se, 3)) == (0.63, 0.085)
    a, b, c = found.shares[0], 1, found.shares[2]
    assert (round(a.value, 2), round(a.se, 3)) == (0.35, 0.082)
    assert (round(c.value, 2), round(c.se, 3)) == (0.20, 0.064)
    assert (round(found.users[b].value, 3), round(found.users[b].se, 3)) == (0.574, 0.125)
    assert (round(found.producers[b].value, 3), round(found.producers[b].se, 3)) == (0.794, 0.117)
    assert round(float(found.matrix_KK[1, 2]), 2) == 0.08


def covered(found: Estimates, truth: dict[str, float]) -> dict[str, bool]:
    figures = {"overall": found.overall, "share": found.shares[1], "users": found.users[1]}
    figures |= {"producers": found.producers[1]}
    return {name: abs(each.value - truth[name]) <= each.half for name, each in figures.items()}


def coverage(
    sizes_HN: list[NDArray[Any]], classes_HN: list[tuple[Any, Any]], points: list[int]
) -> list[float]:
    """Share of 2,000 samples without replacement whose intervals hold the population's figures."""
    rng = np.random.default_rng(2014)
    size = np.concatenate(sizes_HN)
    mapped, reference = (np.concatenate([pair[i] for pair in classes_HN]) for i in (0, 1))
    right = (mapped == 1) & (reference == 1)
    truth = {
        "overall": size[mapped == reference].sum() / size.sum(),
        "share": size[reference == 1].sum() / size.sum(),
        "users": size[right].sum() / size[mapped == 1].sum(),
        "producers": size[right].sum() / size[reference == 1].sum(),
    }
    held: list[dict[str, bool]] = []
    areas, pixels = [float(each.sum()) for each in sizes_HN], [len(each) for each in sizes_HN]
    for _ in range(2000):
        drawn = [rng.choice(count, n, replace=False) for count, n in zip(pixels, points, strict=True)]
        columns = [
            np.concatenate([pair[i][d] for pair, d in zip(classes_HN, drawn, strict=True)]) for i in (0, 1)
        ]
        weight = np.concatenate([each[d] for each, d in zip(sizes_HN, drawn, strict=True)])
        one = sample(
            np.repeat(np.arange(len(points)), points), *columns, areas, classes=3, pixels=pixels, size=weight
        )
        held.append(covered(estimates(one), truth))
    return [float(np.mean([each[name] for each in held])) for name in truth]


def population(rng: np.random.Generator, counts: Sequence[int], *, nested: bool) -> list[tuple[Any, Any]]:
    """Mapped and reference classes of the pixels of three strata: classes of the map, or across them."""
    pairs = []
    for h, count in enumerate(counts):
        mapped = np.full(count, h) if nested else rng.choice(3, count, p=np.roll([0.6, 0.3, 0.1], h))
        reference = np.where(rng.random(count) < 0.75, mapped, rng.integers(0, 3, count))
        pairs.append((mapped, reference))
    return pairs


@pytest.mark.parametrize("nested", [True, False], ids=["strata are classes", "strata are not"])
@pytest.mark.parametrize("even", [True, False], ids=["pixels alike", "pixels unequal"])
def test_intervals_cover_93_to_97_percent_of_2000_samples(nested: bool, even: bool) -> None:
    rng = np.random.default_rng(11)
    counts = (30_011, 9_001, 1_203)
    sizes = [np.ones(count) if even else rng.uniform(0.4, 1.6, count) for count in counts]
    shares = coverage(sizes, population(rng, counts, nested=nested), [211, 120, 101])
    assert all(0.93 <= share <= 0.97 for share in shares), shares


def test_a_known_area_and_a_census_have_no_error_and_figures_without_points_are_undefined() -> None:
    """All points of a stratum have one class, so its area is exact, although its pixels differ in size."""
    size = np.array([1.0, 2.0, 3.0, 5.0, 1.0, 7.0])
    one = sample(
        [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [40.0, 60.0], classes=2, size=size
    )
    found = estimates(one)
    assert [each.value for each in found.areas()] == pytest.approx([40, 60], abs=1e-12)
    assert [each.se for each in (*found.shares, found.overall)] == [0, 0, 0]

    found = estimates(sample([0, 0, 1], [0, 1, 1], [0, 0, 1], [2.0, 1.0], pixels=[2, 1], classes=3))
    assert found.overall.value == pytest.approx(2 / 3)
    assert found.overall.se == 0
    assert math.isnan(found.users[2].value)
    assert math.isnan(found.producers[2].se)
    assert found.shares[2].value == 0
