"""Coverage of the interval of mIoU over groups of scenes, on made confusion matrices.

    python -m studies.group_intervals [--draws 2000]

Chips of a place err together: a place moves the share of right pixels by 7 points, a class in a place by 5 more,
a chip by 2. Places differ in their classes (Dirichlet). The truth is the mIoU of 200,000 places. Each design is
drawn `--draws` times; intervals are `miou_interval`'s, and where it gives none, those that it withholds.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.bootstrap import _left_out_bounds, _units, _weights, miou_interval
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.labels import ClassMap, LandCoverClass

CLASSES = ("a", "b", "c", "d")
SHARES = np.array([0.4, 0.3, 0.2, 0.1])
RIGHT, PLACE, CLASS, CHIP = 0.78, 0.07, 0.05, 0.02
PIXELS, EVEN, TRUTH = 40_000, 32.0, 200_000
DESIGNS = ((40, 1), (20, 2), (10, 4), (8, 5), (4, 10), (3, 20), (2, 20))
KINDS = ("equal", "half", "lognormal", "nine tenths", "in three", "in two", "in one")
NAMES = ClassMap(tuple(LandCoverClass(name, (i, i, i), i) for i, name in enumerate(CLASSES)))
PROTOCOL = Protocol(CLASSES, "full", "test")


def sizes(kind: str, places: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the (P,) relative pixels of the places of a design."""
    size_P = np.exp(rng.normal(size=places)) if kind == "lognormal" else np.ones(places)
    if kind in ("half", "nine tenths"):
        size_P[0] = (places - 1) * {"half": 1, "nine tenths": 9}[kind]
    return size_P


def holders(kind: str, places: int) -> int:
    """Return how many places hold the last class."""
    return {"in three": 3, "in two": 2, "in one": 1}.get(kind, places)


def matrices(
    rng: np.random.Generator, size_P: NDArray[np.float64], chips: int, holding: int
) -> NDArray[np.int64]:
    """Return the (P, chips, K, K + 1) counts of the chips of places."""
    places = len(size_P)
    share_PK = rng.dirichlet(EVEN * SHARES, places)
    share_PK[holding:, -1] = 0
    share_PK /= share_PK.sum(axis=1, keepdims=True)
    shape = (places, chips, len(CLASSES))
    right = RIGHT + rng.normal(0, PLACE, (places, 1, 1)) + rng.normal(0, CLASS, (places, 1, len(CLASSES)))
    right = np.clip(right + rng.normal(0, CHIP, (places, chips, 1)), 0.02, 0.98)
    truth = np.broadcast_to((PIXELS * size_P / size_P.mean() / chips)[:, None, None] * share_PK[:, None], shape)
    wrong = share_PK[:, None] * (1 - np.eye(len(CLASSES)))
    wrong /= wrong.sum(axis=2, keepdims=True)
    counts = np.zeros((*shape, len(CLASSES) + 1))
    counts[..., :-1] = (truth * (1 - right))[..., None] * wrong[:, None]
    diagonal = np.arange(len(CLASSES))
    counts[..., diagonal, diagonal] = truth * right
    return np.rint(counts).astype(np.int64)


@functools.cache
def truth_of(kind: str, places: int, chips: int) -> float:
    """Return the mIoU of very many places, of which as many as in the design hold the last class."""
    rng, total = np.random.default_rng(1), np.zeros((len(CLASSES), len(CLASSES) + 1), np.int64)
    holding = round(TRUTH // 10 * holders(kind, places) / places)
    for _ in range(10):
        total += matrices(rng, np.ones(TRUTH // 10), chips, holding).sum(axis=(0, 1))
    return float(ConfusionMatrix(NAMES, total).scores(PROTOCOL).miou)


def scenes_of(counts: NDArray[np.int64]) -> list[ConfusionMatrix]:
    """Return a matrix for each chip, with its place as group."""
    places, chips = counts.shape[:2]
    return [
        ConfusionMatrix(NAMES, counts[place, chip], group=f"place {place}")
        for place in range(places)
        for chip in range(chips)
    ]


def withheld(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Return the bounds that would come without the rule on classes and groups."""
    units = _units(counts.sum(axis=1), range(len(CLASSES)))
    return _left_out_bounds(units, _weights(units))


def coverage(kind: str, places: int, chips: int, draws: int) -> tuple[float, float, float, float]:
    """Return the share of draws with an interval, its coverage and mean width, and that of the others."""
    rng, truth = np.random.default_rng(places), truth_of(kind, places, min(chips, 2))
    given, others, widths = list[bool](), list[bool](), list[float]()
    for _ in range(draws):
        counts = matrices(rng, sizes(kind, places, rng), chips, holders(kind, places))
        found = miou_interval(scenes_of(counts), PROTOCOL)
        assert found is not None, "groups have an interval, or a reason"
        low, high = found.bounds or withheld(counts)
        (given if found.bounds else others).append(low <= truth <= high)
        widths += [100 * (high - low)] if found.bounds else []
    mean = (lambda values: float(np.mean(values)) if values else float("nan"))
    return len(given) / draws, mean(given), mean(widths), mean(others)


def line(kind: str, places: int, chips: int, draws: int) -> str:
    """Return a line of the table."""
    share, holds, width, others = coverage(kind, places, chips, draws)
    cells = [kind, f"{places} × {chips}", f"{share:.0%}"]
    cells += [f"{holds:.1%}" if share else "–", f"{width:.1f}" if share else "–"]
    cells += ["–" if share == 1 else f"{others:.1%}"]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    given = parser.parse_args(arguments)
    print("| groups | places × chips | with an interval | holds the truth | points of mIoU | withheld would |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind in given.kinds:
        for places, chips in DESIGNS:
            if holders(kind, places) <= places:
                print(line(kind, places, chips, given.draws), flush=True)


if __name__ == "__main__":
    main()
