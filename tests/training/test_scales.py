"""A training with scenes of several scales: what it says, records and scores; real steps on made scenes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import Recipe
from segmenter.devices.strategy import make_devices
from segmenter.evaluation.bootstrap import Interval
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset
from segmenter.runs.score_files import scored
from segmenter.tiles.index import build_index
from segmenter.training.prepare import prepare_tiles
from tests.helpers.scaled_scenes import SIDE, scaled_dataset, scaled_recipe

METRES = (0.1, 0.25, 2.0, 0.12, 2.1)


def recipe(**sections: Any) -> Recipe:
    return scaled_recipe(
        model={"depth": 1, "width": 4},
        training={"global_batch": 12, "epochs": 1, "warmup": 0, "steps_per_call": 2},
        prediction={"window": 64},
        **sections,
    )


@pytest.fixture
def dataset(
    tmp_path: Path, make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap]
) -> Dataset:
    made = scaled_dataset(tmp_path, make_geotiff, make_classes(3), METRES)
    scenes = [replace(s, split="validation" if s.name in ("s3", "s4") else "train") for s in made.scenes]
    return replace(made, scenes=tuple(scenes))


def middle_of_what_is_shown(dataset: Dataset, settings: Recipe) -> float:
    """By hand: 0.1 m in 171 px reaches 0.53 m, 0.25 m all that is asked, 2 m no finer than 0.5 m."""
    ends = np.array([[0.2, 0.1 * 171 / SIDE], [0.2, 1.0], [2.0 / 4, 1.0]])
    tiles_S = np.bincount(build_index(dataset, "train", settings.tiles, progress=False).scene_N)
    return float(np.exp(np.log(ends).mean(axis=1) @ tiles_S / tiles_S.sum()))


def test_of_many_scenes_those_along_the_list_say_the_scale_of_the_training(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hundred by name may be of one survey, and all that follow of another."""

    assert prepare_tiles(recipe(augmentation={}), dataset).metres_per_pixel == pytest.approx(0.25)
    monkeypatch.setattr("segmenter.tiles.gsd._MOST", 2)
    found = prepare_tiles(recipe(augmentation={}), dataset).metres_per_pixel
    assert found == pytest.approx((0.1 + 2.0) / 2, rel=1e-3)  # one of them is in degrees


def test_preparation_says_what_is_shown_and_planned_at_which_scale(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = recipe(sampling={"scale_strata": [0.15, 1.0], "max_repeats_per_tile": 0})
    tiles = prepare_tiles(settings, dataset)
    said = capsys.readouterr().out
    assert tiles.metres_per_pixel == pytest.approx(middle_of_what_is_shown(dataset, settings), rel=1e-3)
    assert "  best effort: c at 1–2 m, held by " in said
    assert "scale_to: tiles of 0.2–1 m a pixel, out of scenes of 0.1–2 m; a tile reads " in said
    assert "  2 of 2 validation scenes are scored at their own scale, 0.12–2.1 m a pixel, which" in said
    # What the plan and the draws depend on: another scale of a scene is another training.
    other = replace(dataset, scenes=tuple(replace(s, metres_per_pixel=0.3) for s in dataset.scenes))
    assert prepare_tiles(settings, other).fingerprint() != tiles.fingerprint()
    plain = prepare_tiles(recipe(augmentation={}), dataset), prepare_tiles(recipe(augmentation={}), other)
    assert plain[0].fingerprint() == plain[1].fingerprint()


def test_a_training_scores_its_validation_by_scale(
    dataset: Dataset, tensorflow: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.evaluation.bootstrap.LEAST", 2)
    from segmenter.training.start import start_training

    settings = recipe(
        sampling={"scale_strata": [0.15, 1.0], "max_repeats_per_tile": 40},
        distribution={"strategy": "one_device"},
    )
    tiles = prepare_tiles(settings, dataset)
    run = tmp_path / "run"
    devices = make_devices(settings.distribution, None)
    assert start_training(settings, dataset, tiles, devices, run).exit_code == 0
    scores = json.loads((run / "scores.json").read_text())
    found = scores["per_scale"]
    assert list(found) == ["0.12–0.15 m", "1–2.1 m"]
    total = np.sum([entry["confusion"] for entry in found.values()], axis=0)
    np.testing.assert_array_equal(total, scores["confusion"])
    assert [entry["scenes"] for entry in found.values()] == [1, 1]
    alone, (low, high) = sorted(entry["miou"] for entry in found.values()), scores["miou_interval"]
    assert low <= scores["miou"] <= high
    assert (low, high) == pytest.approx(alone, abs=0.02), "two scenes: each end draws one of them twice"
    kept = scored(run / "scores.json")
    assert kept.scores.interval == Interval((low, high), 2)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["miou_interval_over"] for line in log if "miou" in line] == [{"scenes": 2}]
    assert "bootstrap over 2 scenes" in (run / "report.html").read_text()
    record = log[0]
    assert record["promised"] == [0, 1, 2]
    assert record["short_steps"] == 0
    recorded = json.loads((run / "run.json").read_text())["metres_per_pixel"]
    assert recorded == pytest.approx(middle_of_what_is_shown(dataset, settings), rel=1e-3)
