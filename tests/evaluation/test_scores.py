"""Scores, boundary IoU and object F1 against their definitions pixel by pixel; protocols are never mixed."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy import ndimage

from datasets.published import POTSDAM
from segmenter.base.errors import ConfigError, ScoreError
from segmenter.evaluation.by_gsd import GsdConfusions, gsd_facts, gsd_table
from segmenter.evaluation.protocol import of_one_rule
from segmenter.evaluation.scores import (
    MEANS,
    MODEL,
    PROTOCOLS,
    ConfusionMatrix,
    Protocol,
    Scores,
    check_name,
)
from segmenter.evaluation.shapes import Shapes
from segmenter.evaluation.tallies import FURTHER, FurtherScores, count_map
from segmenter.grid.geometry import Size, Window
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
    table = _scores([0, 0, 1, 1], [0, 0, 1, 0]).table()
    assert "in neither truth nor prediction, not in the means: c, d" in table

    scores = _scores([IGNORE], [1])
    assert all(math.isnan(getattr(scores, key)) for key in MEANS)
    assert "mIoU –" in scores.table()


def test_pixels_without_data_count_nowhere_but_in_the_completeness_of_counted_classes() -> None:
    scores = _scores([0, 0, 1, 1, IGNORE, IGNORE], [0, IGNORE, 1, 1, IGNORE, 0])
    assert scores.missed.tolist() == [0, 0, 0, 0]
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
        (lambda: ConfusionMatrix(FOUR).merge(ConfusionMatrix(_potsdam())), "different classes"),
    ],
)
def test_what_does_not_fit_is_refused(build: Callable[[], object], said: str) -> None:
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
        (replace(PLAIN, calibration="temperature"), "calibration: none and temperature"),
        (replace(PLAIN, calibration="none, temperature"), "calibration: none and none, temperature"),
    ],
)
def test_what_differs_between_protocols_is_named(other: Protocol, message: str) -> None:
    (found,) = PLAIN.differences(other)
    assert found == message
    assert PLAIN.differences(Protocol(("d", "c", "b", "a"), "full", "test", scenes=("s1",))) == []


def test_earlier_scores_of_maps_may_be_calibrated_and_those_of_validations_are_not() -> None:
    """So a score of before the field stays comparable with those of its kind alone."""
    data = _scores([0, 1, 1], [0, 1, 0]).to_dict()
    for name in ("calibration", "fitted_on"):
        del data["protocol"][name]
    assert Scores.from_dict(data).protocol.differences(PLAIN) == []
    of_maps = Scores.from_dict({**data, MODEL: "0" * 64}).protocol
    assert of_maps.differences(PLAIN) == ["calibration: unknown and none"]
    fitted = replace(PLAIN, calibration="temperature and bias", fitted_on="other scenes")
    assert of_maps.differences(fitted)
    assert of_maps.differences(of_maps)  # one may be calibrated, the other not
    assert fitted.differences(replace(fitted, fitted_on="these scenes"))


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
    assert data["protocol"] == {
        **protocol,
        "name": "",
        "without_data": "left out",
        "calibration": "none",
        "fitted_on": "",
    }
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


NAMES = ("water", "land", "road", "other")
Ids = NDArray[np.uint8]


def blobs(rng: Any, height: int, width: int, smooth: float) -> Ids:
    """Return ids of the classes in areas of some size; few of the last one."""
    layers = [ndimage.gaussian_filter(rng.normal(size=(height, width)), smooth) for _ in NAMES]
    return np.argmax(layers, axis=0).astype(np.uint8)


def counted(truth: Ids, ids: Ids, names: tuple[str, ...], width: int, strip_pixels: int) -> Shapes:
    rows = []

    def read(window: Window) -> tuple[Ids, Ids]:
        rows.append(window.height)
        return truth[window.slices()], ids[window.slices()]

    found = Shapes(NAMES, width)
    left_out = [id_ for id_, name in enumerate(NAMES) if name not in names]
    count_map(found, read, Size(*truth.shape), left_out, strip_pixels)
    assert max(rows) <= max(1, strip_pixels // truth.shape[1]) + 2 * width  # memory is bounded by the strip
    return found


def whole(truth: Ids, ids: Ids, names: tuple[str, ...], width: int) -> tuple[list[Any], list[Any]]:
    """Return both counts by their definitions: distances, and every pair of objects."""
    left_out = ~np.isin(truth, [NAMES.index(name) for name in names]) | (ids == IGNORE)
    both = [np.where(left_out, IGNORE, each) for each in (truth, ids)]
    boundary, objects = [], []
    for k in range(len(NAMES)):
        near, found = [], []
        for each in both:
            other = (each != k) & (each != IGNORE)
            apart = ndimage.distance_transform_cdt(~other, "chessboard") if other.any() else other + 99
            near.append((each == k) & (apart <= width))
            labels, count = ndimage.label(each == k)
            found.append([labels == number for number in range(1, count + 1)])
        matches = sum((one & two).sum() / (one | two).sum() > 0.5 for one in found[0] for two in found[1])
        boundary.append([near[0].sum(), near[1].sum(), (near[0] & near[1]).sum()])
        objects.append([len(found[0]), len(found[1]), matches])
    return boundary, objects


@pytest.mark.parametrize(
    ("names", "width", "erode"),
    [(NAMES, 1, 0), (NAMES, 4, 0), (NAMES[:3], 2, 0), (NAMES[:3], 9, 3)],
    ids=["thin", "wide", "class left out", "eroded, class left out"],
)
def test_strips_give_the_counts_of_whole_arrays(names: tuple[str, ...], width: int, erode: int) -> None:
    rng = np.random.default_rng(width)
    truth = blobs(rng, 61, 47, 3)
    ids = np.where(rng.random(truth.shape) < 0.03, blobs(rng, 61, 47, 1), np.roll(truth, (1, 2), (0, 1)))
    ids = ids.astype(np.uint8)
    if erode:
        reach = (2 * erode + 1,) * 2
        truth[ndimage.maximum_filter(truth, reach) != ndimage.minimum_filter(truth, reach)] = IGNORE
    truth[20:33, 5:9], ids[40:, :11], ids[:9, 30:] = IGNORE, IGNORE, IGNORE
    boundary, objects = whole(truth, ids, names, width)
    assert np.array(objects)[:3].all()  # each class that counts has objects, and matches
    for strip_pixels in (1, 47 * 3, 47 * 17, 47 * 61):
        found = counted(truth, ids, names, width, strip_pixels)
        assert found.boundary_K3.tolist() == boundary
        assert found.objects_K3.tolist() == objects


def test_speckle_and_rings_match_across_strips() -> None:
    """Objects that close in one strip while their partners go on, and nested ones."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        truth = rng.integers(0, 2, (13, 11)).astype(np.uint8)
        truth[2:11, 2:9], truth[4:9, 4:7] = 2, 3
        ids = np.where(rng.random(truth.shape) < 0.1, rng.integers(0, 4, truth.shape), truth).astype(np.uint8)
        boundary, objects = whole(truth, ids, NAMES, 1)
        for strip_pixels in (1, 22, 55):
            found = counted(truth, ids, NAMES, 1, strip_pixels)
            assert (found.boundary_K3.tolist(), found.objects_K3.tolist()) == (boundary, objects)


def test_absent_classes_and_labels_without_a_boundary_are_in_no_mean() -> None:
    truth = np.zeros((9, 15), np.uint8)
    truth[:, 8:] = 1
    facts = counted(truth, truth, NAMES, 2, 30).facts(Protocol(NAMES, "full", "test"))
    assert facts["boundary"]["iou"] == {"water": 1, "land": 1, "road": None, "other": None}
    assert (facts["boundary"]["miou"], facts["boundary"]["within_pixels"]) == (1, 2)
    assert facts["objects"]["f1"]["water"] == facts["objects"]["mf1"] == 1
    assert str(facts["objects"]["matched"]["water"]) == "1"

    truth = np.zeros((9, 15), np.uint8)
    eroded = np.where(np.abs(np.arange(15) - 7) < 4, IGNORE, np.arange(15) > 7).astype(np.uint8)
    truth[:] = eroded
    ids = np.where(np.arange(15)[None] + np.zeros((9, 1)) > 12, 0, truth).astype(np.uint8)
    facts = counted(truth, ids, NAMES, 2, 30).facts(Protocol(NAMES, "full", "test"))
    assert set(facts["boundary"]["iou"].values()) == {facts["boundary"]["miou"]} == {None}


def test_predict_scores_shapes_of_new_and_of_finished_maps(
    tmp_path: Path, make_geotiff: Callable[..., Path], call: Callable[..., int], capsys: Any
) -> None:
    rng = np.random.default_rng(3)
    for name in "ab":
        make_geotiff(f"in/{name}.tif", rng.integers(1, 255, (41, 53, 3), np.uint8))
        make_geotiff(f"truth/{name}.tif", blobs(rng, 41, 53, 2))
    found = []
    more: tuple[dict[str, Any], ...] = ({}, {"predictor": None}, {"output": "other"})
    for arguments, changes in zip(((64,), (64,), (48, "--codes", "9,8,7,6,5,4,3")), more, strict=True):
        asked = ("--labels", "truth/{stem}.tif", "--shapes", 2, "--part", 3, 5, 31, 40, "--window-size")
        assert call("in", *asked, *arguments, **changes) == 0
        found.append(json.loads((tmp_path / changes.get("output", "maps") / "scores.json").read_text()))
    assert "boundary IoU" in capsys.readouterr().out
    for key in ("boundary", "objects"):
        assert found[0][key] == found[1][key] == found[2][key]
    totals = [sum(one["objects"]["label"].values()) for one in (found[0], *found[0]["per_scene"].values())]
    assert totals[0] == totals[1] + totals[2] > 2
    assert 0 < found[0]["boundary"]["miou"] < 1


def test_shapes_need_labels_and_a_width(call: Callable[..., int], make_geotiff: Any) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    assert call(source, "--shapes", 3) == 2
    with pytest.raises(SystemExit):
        call(source, "--labels", source, "--shapes", 0)


class Right:
    """Pixels that are right, and all; a score that the program does not know."""

    margin = 1

    def __init__(self) -> None:
        self.counts = np.zeros(2, np.int64)
        self.maps = 0

    def add(self, truth: Ids, predicted: Ids, window: Window) -> None:
        above = min(self.margin, window.row)
        both = np.stack([truth, predicted])[:, above : above + window.height]
        self.counts += [(both[0] == both[1])[both[0] != IGNORE].sum(), (both[0] != IGNORE).sum()]

    def close(self) -> None:
        self.maps += 1

    def merge(self, other: Any) -> None:
        self.counts += other.counts
        self.maps += other.maps

    def facts(self, protocol: Protocol) -> dict[str, Any]:
        share = float(self.counts[0] / self.counts[1])
        return {"right": {"mean": share, "each": dict.fromkeys(protocol.classes, share)}}

    def table(self, protocol: Protocol) -> str:
        return f"right in {self.maps} maps of {len(protocol.scenes)}"


def test_a_score_is_a_tally_and_a_line(
    make_geotiff: Callable[..., Path], call: Callable[..., int], capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(FurtherScores, "tallies", lambda self, names: [Right()])
    monkeypatch.setitem(FURTHER, "right", ("Right", "each", "mean"))
    rng = np.random.default_rng(5)
    for name in "ab":
        make_geotiff(f"in/{name}.tif", rng.integers(1, 255, (23, 31, 3), np.uint8))
        make_geotiff(f"truth/{name}.tif", rng.integers(0, 7, (23, 31), np.uint8))
    assert call("in", "--labels", "truth/{stem}.tif") == 0
    assert "right in 2 maps of 2" in capsys.readouterr().out
    record = json.loads(Path("maps/scores.json").read_text())
    assert record["right"]["mean"] == record["oa"]
    assert [one["right"]["mean"] for one in record["per_scene"].values()] == [
        one["oa"] for one in record["per_scene"].values()
    ]
    assert Scores.from_dict(record, FURTHER).more == {"right": record["right"]}
