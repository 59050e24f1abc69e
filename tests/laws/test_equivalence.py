"""Law 2, equivalence: steps on R replicas equal steps on one device, in float64.

One factor at a time; each row also runs the naive variant that it guards against, and shows that the test
would see it. The fast rows hold every mechanism on a shallow U-Net and two replicas; all rows, also on four,
and pairs of factors, are slow.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from segmenter.config.recipe import LossConfig
from tests.helpers.laboratory import (
    BATCH,
    KINDS,
    LIMIT,
    SUM,
    WEIGHTS,
    difference,
    only,
)
from tests.helpers.naive import ROWS, SEEN, Guarded, Naive, NaiveLaboratory

pytestmark = pytest.mark.timeout(900)  # compiling takes a minute
FAST = {
    name: replace(ROWS[name], depth=1)
    for name in (
        "class weights per pixel",
        "these per pixel, with weights",
        "5 of 8 images, sum of all",
        "1 image",
    )
}
FROZEN = {
    "frozen encoder": Guarded(lopsided=True, depth=1, paced=True),
    "frozen encoder clipped by norm": Guarded(lopsided=True, clip="norm", naive="clip", depth=1, paced=True),
}
CLIPPED = "frozen encoder clipped by norm"


@pytest.fixture(scope="module")
def laboratory(tensorflow: ModuleType) -> NaiveLaboratory:
    return NaiveLaboratory(FAST)


@pytest.fixture(scope="module")
def every_row(tensorflow: ModuleType) -> NaiveLaboratory:
    return NaiveLaboratory(ROWS | FROZEN)


def check(laboratory: NaiveLaboratory, name: str, replicas: int) -> None:
    assert {k: d for k, d in laboratory.differences(name, replicas).items() if not d <= LIMIT} == {}
    many, one = (laboratory.exact(name, r)["held"][0] for r in (replicas, 1))
    assert np.array_equal(many, one)
    assert max(laboratory.naive(name, 2).values()) > SEEN


@pytest.mark.parametrize("name", FAST)
def test_equivalence(laboratory: NaiveLaboratory, name: str) -> None:
    check(laboratory, name, 2)


@pytest.mark.slow
def test_a_clipped_step_of_a_frozen_encoder_is_another(every_row: NaiveLaboratory) -> None:
    clipped, free = every_row.exact(CLIPPED, 1), every_row.exact("frozen encoder", 1)
    assert difference(clipped, free, "loss") == 0
    assert difference(clipped, free, "gradients") > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replicas"), list(itertools.product([*ROWS, *FROZEN], (2, 4))))
def test_equivalence_of_every_row(every_row: NaiveLaboratory, name: str, replicas: int) -> None:
    check(every_row, name, replicas)


PAIRED = [
    ("cross_entropy", "per_image", "none", 0.0),
    ("cross_entropy", "per_pixel", WEIGHTS, 0.1),
    ("focal", "per_image", WEIGHTS, 0.0),
    ("focal", "per_pixel", "none", 0.1),
    ("sum", "per_image", "none", 0.1),
    ("sum", "per_pixel", WEIGHTS, 0.0),
]
"""Each normalisation, weighting and smoothing beside each loss per pixel and beside each other."""


def losses() -> Iterator[tuple[str, LossConfig]]:
    """Every loss of regions, and pairs of the options of those per pixel."""
    for region in ("dice", "jaccard", "tversky", "lovasz"):
        yield region, only(region)
    pixel = {"cross_entropy": only("cross_entropy"), "focal": only("focal"), "sum": SUM}
    for name, mean, weights, smoothing in PAIRED:
        changes = {"normalisation": mean, "class_weights": weights, "label_smoothing": smoothing}
        yield f"{name} {mean}, smoothing {smoothing}", pixel[name].model_copy(update=changes)


def paired_rows(clip: str) -> dict[str, Guarded]:
    """Every loss, with every batch where nothing is clipped; what is clipped is the sum of any gradients."""
    batches = [(True, 5)] if clip else itertools.product((False, True), (BATCH, 5, 1))
    rows = {}
    for (name, loss), (lopsided, images) in itertools.product(losses(), list(batches)):
        row = Guarded(loss, lopsided, images, clip, naive=guarded_against(loss, lopsided, images, clip))
        rows[f"{name}, {'lopsided' if lopsided else 'even'}, {images} images"] = row
    return rows


def guarded_against(loss: LossConfig, lopsided: bool, images: int, clip: str) -> Naive:
    """A mistake that shows in this row: some are none where all replicas have as much to say."""
    overlaps = loss.dice or loss.jaccard or loss.tversky
    uneven_weights = loss.normalisation == "per_pixel" and loss.class_weights != "none"
    if clip and images > 1:
        return "clip"
    if lopsided or images < BATCH or overlaps or uneven_weights:
        return "means"
    return "norm"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("clip", ["", "norm", "value"])
def test_equivalence_of_pairs(tensorflow: ModuleType, clip: str) -> None:
    rows = paired_rows(clip)
    laboratory = NaiveLaboratory(rows)
    found = {name: laboratory.differences(name, 4) for name in rows}
    assert {case: d for case, d in found.items() if not all(d[k] <= LIMIT for k in KINDS)} == {}
    naive = {name: laboratory.naive(name, 2) for name in rows}
    assert {case: d for case, d in naive.items() if not max(d.values()) > SEEN} == {}
