"""A further tally beside the confusion matrix needs a class and a line in `TALLIES`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.evaluation.protocol import Protocol
from segmenter.evaluation.tallies import TALLIES, Tallies
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap


class Borders:
    """Neighbours in a row of different true class, also where the border of two windows is between them."""

    def __init__(self, classes: ClassMap, counts: NDArray[np.int64] | None = None) -> None:
        self._before = np.zeros(1, np.int64) if counts is None else counts.copy()
        self._truth = np.full((200, 300), IGNORE, np.uint8)

    @property
    def counts(self) -> NDArray[np.int64]:
        left, right = self._truth[:, :-1], self._truth[:, 1:]
        return self._before + ((left != right) & (left != IGNORE) & (right != IGNORE)).sum()

    def add(self, truth: NDArray[np.uint8], ids: NDArray[np.uint8], window: Window) -> None:
        self._truth[window.row : window.row_stop, window.col : window.col_stop] = truth

    def merge(self, other: Borders) -> None:
        self._before += other.counts

    def facts(self, protocol: Protocol) -> dict[str, Any]:
        return {"pixels": int(self.counts[0])}


@pytest.fixture
def borders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TALLIES, "borders", Borders)


def test_maps_are_scored_with_it_each_and_in_total(
    borders: None, tmp_path: Path, make_geotiff: Callable[..., Path], call: Callable[..., int]
) -> None:
    """While they are made, and again from the finished maps alone."""
    rng = np.random.default_rng(3)
    expected = {}
    for name in "ab":
        truth = rng.integers(0, 7, (131, 203), np.uint8)
        make_geotiff(f"in/{name}.tif", rng.integers(1, 255, (131, 203, 3), np.uint8))
        make_geotiff(f"truth/{name}.tif", truth)
        expected[name] = int((truth[:, 1:] != truth[:, :-1]).sum())
    arguments = ("in", "--labels", "truth/{stem}.tif", "--window-size", 64)
    for again in ({}, {"predictor": None}):
        assert call(*arguments, **again) == 0
        scores = json.loads((tmp_path / "maps" / "scores.json").read_text())
        assert scores["borders"] == {"pixels": sum(expected.values())}
        assert {name: each["borders"]["pixels"] for name, each in scores["per_scene"].items()} == expected
        (tmp_path / "maps" / "scores.json").unlink()


def test_workers_of_a_training_tell_each_other_its_counts(
    borders: None, tensorflow: ModuleType, make_classes: Callable[..., ClassMap]
) -> None:
    from segmenter.training.validation import _scenes_of, _told

    classes, rng = make_classes(3), np.random.default_rng(1)
    scenes: list[tuple[str, float | None, Tallies]] = []
    for number in range(2):
        tallies, truth = Tallies(classes), rng.integers(0, 3, (9, 20), np.uint8)
        tallies.add(truth, truth, Window(number, 0, 9, 20))
        scenes.append((f"s{number}", 0.5, tallies))
    told = _scenes_of(json.loads(_told(scenes, 0)))
    for (name, metres, tallies), (other, same, counts) in zip(scenes, told, strict=True):
        again = Tallies(classes, counts)
        assert (name, metres) == (other, same)
        assert {key: each.tolist() for key, each in again.counts.items()} == {
            key: each.tolist() for key, each in tallies.counts.items()
        }
