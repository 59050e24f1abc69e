"""Boundary IoU and object F1: the figures of whole arrays, however a map is cut into strips."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from segmenter.evaluation.protocol import Protocol
from segmenter.evaluation.scores import Scores
from segmenter.evaluation.shapes import Shapes
from segmenter.evaluation.tallies import FURTHER, FurtherScores, count_map
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE

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
    assert call(source, "--labels", source, "--shapes", 0) == 2


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
