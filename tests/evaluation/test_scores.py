"""Scores against their definitions pixel by pixel, whole and by scale; protocols are never mixed."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from datasets.published import POTSDAM
from segmenter.base.errors import ConfigError, ScoreError
from segmenter.evaluation.by_gsd import GsdConfusions, gsd_facts, gsd_table
from segmenter.evaluation.protocol import of_one_rule
from segmenter.evaluation.scores import MEANS, PROTOCOLS, ConfusionMatrix, Protocol, Scores, check_name
from segmenter.grid.labels import IGNORE, ClassMap, LandCoverClass
from tests.helpers.refusals import refused

FOUR = ClassMap(tuple(LandCoverClass(name, (i, i, i), i) for i, name in enumerate("abcd")))
PLAIN = Protocol(tuple("abcd"), "full", "test", scenes=("s1",))
ids = st.sampled_from([0, 1, 2, 3, IGNORE])
pairs = arrays.arrays(np.uint8, st.tuples(st.just(2), st.integers(1, 60)), elements=ids)


def _scores(truth: object, predicted: object, protocol: Protocol = PLAIN, classes: ClassMap = FOUR) -> Scores:
    confusion = ConfusionMatrix(classes)
    confusion.add(np.array(truth, np.uint8), np.array(predicted, np.uint8))
    return confusion.scores(protocol)


def _same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-12)


def _divide(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _mean(values: list[float]) -> float:
    there = [value for value in values if not math.isnan(value)]
    return _divide(sum(there), len(there))


@given(pairs)
def test_scores_are_what_sets_of_pixels_say(pair: np.ndarray) -> None:
    labelled = pair[0] != IGNORE
    truth, predicted = (array[labelled & (pair[1] != IGNORE)].tolist() for array in pair)
    scores = _scores(*pair)
    assert (scores.pixels, scores.without_data) == (len(truth), labelled.sum() - len(truth))
    assert _same(scores.completeness, _divide(len(truth), labelled.sum()))
    total, iou, f1, chance = len(truth), [], [], 0.0
    for k in range(4):
        is_k = {i for i, value in enumerate(truth) if value == k}
        said_k = {i for i, value in enumerate(predicted) if value == k}
        iou.append(_divide(len(is_k & said_k), len(is_k | said_k)))
        f1.append(_divide(2 * len(is_k & said_k), len(is_k) + len(said_k)))
        chance += _divide(len(is_k) * len(said_k), total**2)
        assert _same(scores.iou[k], iou[k])
        assert _same(scores.f1[k], f1[k])
        assert _same(scores.precision[k], _divide(len(is_k & said_k), len(said_k)))
        assert _same(scores.recall[k], _divide(len(is_k & said_k), len(is_k)))
    oa = _divide(sum(t == p for t, p in zip(truth, predicted, strict=True)), total)
    weighted = [truth.count(k) * iou[k] for k in range(4) if truth.count(k)]
    assert _same(scores.oa, oa)
    assert _same(scores.miou, _mean(iou))
    assert _same(scores.mf1, _mean(f1))
    assert _same(scores.fwiou, _divide(sum(weighted), total))
    assert _same(scores.kappa, _divide(oa - chance, 1 - chance)) or abs(1 - chance) < 1e-12


def test_what_is_in_neither_truth_nor_prediction_is_left_out_of_the_means() -> None:
    scores = _scores([0, 0, 1, 1], [0, 0, 1, 0])
    assert np.isnan(scores.iou[2:]).all()
    assert scores.miou == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert "in neither truth nor prediction, not in the means: c, d" in scores.table()

    scores = _scores([IGNORE], [1])
    assert all(math.isnan(getattr(scores, key)) for key in MEANS)
    assert scores.to_dict()["miou"] is None
    assert "mIoU –" in scores.table()


def test_pixels_without_data_count_nowhere_but_in_the_completeness_of_counted_classes() -> None:
    scores = _scores([0, 0, 1, 1, IGNORE, IGNORE], [0, IGNORE, 1, 1, IGNORE, 0])
    assert scores.missed.tolist() == [0, 0, 0, 0]
    assert scores.recall.tolist()[:2] == [1.0, 1.0]
    assert (scores.oa, scores.miou, scores.pixels, scores.completeness) == (1.0, 1.0, 3, 0.75)
    assert "completeness 75.00" in scores.table()
    assert "1 more are labelled, but without image data" in scores.table()

    protocol = Protocol(("a", "b"), "full", "test")
    scores = _scores([0, 0, 1, 3, 3], [0, IGNORE, 2, IGNORE, 3], protocol)
    assert (scores.without_data, scores.missed.tolist()) == (1, [0, 1])
    assert scores.completeness == pytest.approx(2 / 3)


def _of_before(data: dict[str, Any], missed: list[int]) -> dict[str, Any]:
    """Scores as the version wrote them that took pixels without data for misses."""
    protocol = {key: value for key, value in data["protocol"].items() if key != "without_data"}
    kept = {key: value for key, value in data.items() if key not in ("without_data", "completeness")}
    return {**kept, "protocol": protocol, "missed": missed}


def test_scores_of_before_stay_readable_and_are_not_put_beside_new_ones() -> None:
    new = _scores([0, 0, 1, 1], [0, IGNORE, 1, 1])
    old = Scores.from_dict(_of_before(new.to_dict(), [1, 0, 0, 0]))
    assert (old.oa, old.miou, old.pixels) == (0.75, 0.75, 4)
    assert math.isnan(old.completeness)
    assert "without data missed" in str(old.protocol)
    assert "1 pixels without image data, or" in old.table()
    assert Scores.from_dict(old.to_dict()).to_dict() == old.to_dict()
    assert new.protocol.differences(old.protocol) == ["without_data: left out and missed"]

    step, old, new = {"step": 1, "loss": 2.0}, {"step": 1, "miou": 0.5}, {"step": 2, "miou": 0.6}
    new["completeness"] = None
    assert of_one_rule([step, old]) == [step, old]
    assert of_one_rule([step, old, step, new]) == [step, step, new]


@given(pairs, st.integers(0, 60))
def test_chunks_add_up_to_the_whole(pair: np.ndarray, cut: int) -> None:
    whole, first, second = (ConfusionMatrix(FOUR) for _ in range(3))
    whole.add(*pair)
    first.add(*pair[:, :cut])
    second.add(*pair[:, cut:])
    first.merge(second)
    assert np.array_equal(first.matrix, whole.matrix)
    assert np.array_equal(first.without_data, whole.without_data)
    assert whole.pixels == (pair != IGNORE).all(axis=0).sum()


def test_counting_is_right_across_inner_chunks(rng: np.random.Generator) -> None:
    truth = rng.integers(0, 4, (1511, 2003)).astype(np.uint8)
    predicted = rng.integers(0, 4, truth.shape).astype(np.uint8)
    truth, predicted = truth.T, predicted.T  # arrays need not be contiguous
    confusion = ConfusionMatrix(FOUR)
    confusion.add(truth, predicted)
    expected = [[int(((truth == i) & (predicted == j)).sum()) for j in range(4)] for i in range(4)]
    assert confusion.matrix.tolist() == expected


@pytest.mark.parametrize(
    ("truth", "predicted", "message"),
    [
        ([[4]], [[0]], r"0 … 3 or 255, got \[4\]"),
        ([[0]], [[254]], r"truth, \[254\] predicted"),
        ([[0, 1]], [[0]], r"\(1, 2\) of uint8 and \(1, 1\)"),
    ],
)
def test_what_is_no_class_id_is_a_defect(truth: object, predicted: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _scores(truth, predicted)


def test_matrices_of_different_classes_are_not_added(make_classes: Callable[..., ClassMap]) -> None:
    with pytest.raises(ScoreError, match="different classes"):
        ConfusionMatrix(FOUR).merge(ConfusionMatrix(make_classes(3)))


def _potsdam() -> ClassMap:
    names = PROTOCOLS["potsdam-6"].classes
    return ClassMap(tuple(LandCoverClass(name, (i, i, i), i) for i, name in enumerate(names)))


def test_published_protocols_name_potsdams_own_classes() -> None:
    assert PROTOCOLS["potsdam-6"].classes == tuple(POTSDAM.names)
    assert PROTOCOLS["potsdam-5"].classes == tuple(POTSDAM.names[:5])
    assert {protocol.labels for protocol in PROTOCOLS.values()} == {"eroded"}


def test_potsdam_5_leaves_clutter_out_and_counts_it_as_a_miss_where_predicted(
    rng: np.random.Generator,
) -> None:
    truth = [0, 0, 0, 1, 5, 5, 5]
    predicted = [0, 0, 5, 1, 5, 0, 1]
    five, six = (
        _scores(truth, predicted, Protocol.published(name, labels="eroded", split="test"), _potsdam())
        for name in ("potsdam-5", "potsdam-6")
    )
    assert five.pixels == 4
    assert five.missed.tolist() == [1, 0, 0, 0, 0]
    # Neither of the clutter pixels called surface or building is a false alarm: they are not in the truth.
    assert five.iou.tolist()[:2] == [2 / 3, 1.0]
    assert five.miou == pytest.approx((2 / 3 + 1) / 2)
    assert six.iou.tolist()[:2] == [2 / 4, 1 / 2]
    assert six.iou[5] == 1 / 4

    truth, predicted = rng.integers(0, 5, (2, 101, 203)).astype(np.uint8)
    protocol = Protocol.published("potsdam-5", labels="eroded", split="test")
    five = ClassMap(_potsdam().classes[:5])
    alike = [_scores(truth, predicted, protocol, classes) for classes in (five, _potsdam())]
    assert alike[0].to_dict() == alike[1].to_dict()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Protocol.published("potsdam-7", labels="eroded", split="test"), "known: potsdam-6"),
        (lambda: Protocol.published("potsdam-5", labels="full", split="test"), "eroded labels"),
        (lambda: Protocol((), "full", "test"), "got"),
        (lambda: Protocol(("a", "a"), "full", "test"), "'a', 'a'"),
        (lambda: _scores([0], [0], Protocol(("x",), "full", "test")), "'x', .*only a, b, c, d"),
    ],
)
def test_a_protocol_that_does_not_fit_is_refused(build: Callable[[], object], said: str) -> None:
    with pytest.raises(ScoreError, match=said):
        build()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Protocol(tuple("abc"), "full", "test", scenes=("s1",)), "classes: [a, b, c, d] and [a, b, c]"),
        (Protocol(tuple("abcd"), "eroded", "test", scenes=("s1",)), "labels: full and eroded"),
        (Protocol(tuple("abcd"), "full", "validation", scenes=("s1",)), "split: test and validation"),
        (Protocol(tuple("abcd"), "full", "test", "d4", ("s1",)), "tta: none and d4"),
        (Protocol(tuple("abcd"), "full", "test", scenes=("s2",)), "scenes: [s1] and [s2]"),
    ],
)
def test_what_differs_between_protocols_is_named(other: Protocol, message: str) -> None:
    (found,) = PLAIN.differences(other)
    assert found == message


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("loss", {"expected": "validation (miou"}),
        ("miou:water", {"expected": "validation"}),
        ("iou:roof", {"expected": "dataset (land"}),
    ],
)
def test_a_score_that_nothing_has_is_refused(name: str, fields: dict[str, object]) -> None:
    with refused(ConfigError, **fields):
        check_name(name, ["land", "water"], "r")
    check_name("iou:water", ["land", "water"], "r")


def test_the_order_of_classes_is_no_difference() -> None:
    assert PLAIN.differences(Protocol(("d", "c", "b", "a"), "full", "test", scenes=("s1",))) == []


@given(pairs)
def test_json_gives_back_the_same_scores(pair: np.ndarray) -> None:
    data = _scores(*pair).to_dict()
    text = json.dumps(data, allow_nan=False)
    assert Scores.from_dict(json.loads(text)).to_dict() == data
    assert set(MEANS) <= set(data)
    assert all(value is None or type(value) is float for value in (*data["iou"].values(), data["miou"]))


def test_the_file_is_whole_carries_its_protocol_and_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text("old")
    _scores([0, 1, 1], [0, 1, 0]).write(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    protocol = {"classes": [*"abcd"], "labels": "full", "split": "test", "tta": "none", "scenes": ["s1"]}
    assert data["protocol"] == {**protocol, "name": "", "without_data": "left out"}
    assert data["iou"] == {"a": 0.5, "b": 0.5, "c": None, "d": None}
    assert [file.name for file in tmp_path.iterdir()] == ["scores.json"]
    assert Scores.from_dict(data).to_dict() == {key: data[key] for key in data if key != "format"}
    with pytest.raises(ScoreError, match="format 1, got 2"):
        Scores.from_dict({**data, "format": 2})


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


def test_each_stratum_has_the_scores_of_its_scenes_the_recipe_s_before_octaves(
    confusions: list[ConfusionMatrix],
) -> None:
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

    found = collected(confusions, METRES).scores(protocol, (0.3,))
    assert list(found) == ["0.1–0.3 m", "0.3–2 m", "unknown scale"]


@pytest.mark.parametrize("metres", [(0.5,) * 5, (None,) * 5, (0.5, 0.5, None, 0.49, 0.51)])
def test_scenes_of_one_scale_have_no_such_scores(
    confusions: list[ConfusionMatrix], metres: tuple[float | None, ...]
) -> None:
    assert collected(confusions, metres).scores(protocol) == {}
    assert gsd_facts({}) == {}
