"""Scores by scale: each stratum's are those of its scenes, together they are the total's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from segmenter.evaluation.by_gsd import GsdConfusions, gsd_facts, gsd_table
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.labels import ClassMap

METRES = (0.1, 0.1001, 0.5, None, 2.0)


@pytest.fixture
def confusions(make_classes: Callable[..., ClassMap], rng: np.random.Generator) -> list[ConfusionMatrix]:
    found = []
    for _ in METRES:
        one = ConfusionMatrix(make_classes(3))
        one.add(*rng.integers(0, 3, (2, 301)).astype(np.uint8))
        found.append(one)
    return found


def collected(confusions: Sequence[ConfusionMatrix], metres: Sequence[float | None]) -> GsdConfusions:
    scales = GsdConfusions(confusions[0].classes)
    for number, (m, confusion) in enumerate(zip(metres, confusions, strict=True)):
        scales.add(f"s{number}", m, confusion)
    return scales


def protocol(names: Sequence[str]) -> Protocol:
    return Protocol(("a", "b", "c"), "full", "test", scenes=tuple(names))


def test_each_stratum_has_the_scores_of_its_scenes(confusions: list[ConfusionMatrix]) -> None:
    found = collected(confusions, METRES).scores(protocol)
    assert list(found) == ["0.088–0.18 m", "0.35–0.71 m", "1.4–2.8 m", "unknown scale"]
    for scores, members in zip(found.values(), ((0, 1), (2,), (4,), (3,)), strict=True):
        total = sum(confusions[i].matrix for i in members)
        np.testing.assert_array_equal(scores.matrix, total)
        hits, union = np.diag(total), total.sum(axis=0) + total.sum(axis=1) - np.diag(total)
        assert scores.miou == pytest.approx((hits / union).mean(), rel=1e-12)
        assert scores.protocol.scenes == tuple(f"s{i}" for i in members)
    facts = gsd_facts(found)["per_scale"]
    assert [entry["scenes"] for entry in facts.values()] == [2, 1, 1, 1]
    assert facts["1.4–2.8 m"]["miou"] == found["1.4–2.8 m"].miou
    assert [line.split("   ")[0].strip() for line in gsd_table(found).splitlines()[1:]] == list(found)


def test_the_recipe_s_strata_go_before_octaves(confusions: list[ConfusionMatrix]) -> None:
    found = collected(confusions, METRES).scores(protocol, (0.3,))
    assert list(found) == ["0.1–0.3 m", "0.3–2 m", "unknown scale"]


@pytest.mark.parametrize("metres", [(0.5,) * 5, (None,) * 5, (0.5, 0.5, None, 0.49, 0.51)])
def test_scenes_of_one_scale_have_no_such_scores(
    confusions: list[ConfusionMatrix], metres: tuple[float | None, ...]
) -> None:
    assert collected(confusions, metres).scores(protocol) == {}
    assert gsd_facts({}) == {}
