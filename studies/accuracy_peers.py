"""Estimates beside satscout and lulc-validation on 1,000 random tables each.

    pip install satscout==0.1.0 && pip install --no-deps lulc-validation==0.0.4 && pip install pandas
    python -m studies.accuracy_peers

satscout has Olofsson et al. 2014 (strata are the map's classes, no factor for finite strata); lulc-validation
has Stehman 2014 (strata may be others, with that factor). Prints the largest difference of each figure.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from segmenter.extras.accuracy.estimators import Estimate, PointSample, estimates

_TABLES = 1000


def main() -> None:
    """Compare all figures with their standard errors."""
    rng = np.random.default_rng(37)
    for name, compare in (("satscout", _beside_satscout), ("lulc-validation", _beside_lulc_validation)):
        worst: dict[str, float] = {}
        for _ in range(_TABLES):
            for figure, ours, theirs in compare(rng):
                difference = abs(ours - theirs)
                if not difference <= worst.get(figure, 0.0):  # also NaN
                    worst[figure] = difference
        print(f"{name}, {_TABLES} tables: " + ", ".join(f"{key} {value:.1e}" for key, value in worst.items()))


def _sample(rng: Generator, strata: int, classes: int, *, alike: bool) -> PointSample:
    """Return a random sample of 2 to 60 points a stratum; `alike`: strata are the mapped classes."""
    points_H = rng.integers(2, 61, strata)
    stratum_N = np.repeat(np.arange(strata), points_H)
    mapped_N = stratum_N if alike else rng.integers(0, classes, len(stratum_N))
    right_N = rng.random(len(stratum_N)) < rng.uniform(0.3, 0.95)
    reference_N = np.where(right_N, mapped_N, rng.integers(0, classes, len(stratum_N)))
    pixels_H = rng.integers(100, 1_000_000, strata)
    names = tuple(map(str, range(classes)))
    return PointSample(
        names, tuple(map(str, range(strata))), pixels_H.astype(float), None if alike else pixels_H,
        stratum_N, mapped_N, reference_N, np.ones(len(stratum_N)), np.full(classes, np.nan),
    )  # fmt: skip


def _both(name: str, ours: Estimate, value: float, error: float):
    yield name, ours.value, value
    yield f"error of {name}", ours.se, error


def _beside_satscout(rng: Generator):
    from satscout.olofsson import assess

    count = int(rng.integers(2, 9))
    sample = _sample(rng, count, count, alike=True)
    ours = estimates(sample)
    theirs = assess(ours.counts_KK.tolist(), sample.area_H.tolist())
    yield from _both("overall", ours.overall, theirs.overall_accuracy, theirs.overall_se)
    for k in range(count):
        yield from _both("share", ours.shares[k], theirs.area_proportions[k], theirs.area_proportions_se[k])
        yield from _both("user's", ours.users[k], theirs.users[k], theirs.users_se[k])
        if theirs.producers[k] is not None:
            yield from _both("producer's", ours.producers[k], theirs.producers[k], theirs.producers_se[k])


def _beside_lulc_validation(rng: Generator):
    import pandas as pd
    from lulc_validation.lulc_val import StratVal

    strata, classes = int(rng.integers(2, 6)), int(rng.integers(2, 6))
    sample = _sample(rng, strata, classes, alike=False)
    ours = estimates(sample)
    columns = {"stratum": sample.stratum_N, "reference": sample.reference_N, "mapped": sample.mapped_N}
    every = set(range(classes))
    if set(sample.reference_N.tolist()) != every or set(sample.mapped_N.tolist()) != every:
        return  # it divides by zero
    theirs = StratVal(
        list(range(strata)), list(range(classes)), sample.pixels_H.tolist(), pd.DataFrame(columns),
        "stratum", "reference", "mapped",
    )  # fmt: skip
    yield from _both("overall", ours.overall, theirs.accuracy(), theirs.accuracy_se())
    users, producers = theirs.users_accuracy(), theirs.producers_accuracy()
    users_error, producers_error = theirs.users_accuracy_se(), theirs.producers_accuracy_se()
    for k in range(classes):
        name = str(k)
        yield from _both("user's", ours.users[k], users[name], users_error[name])
        yield from _both("producer's", ours.producers[k], producers[name], producers_error[name])


if __name__ == "__main__":
    main()
