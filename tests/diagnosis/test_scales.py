"""Diagnosis of classes by scale: text, JSON and chart say the same as the tiles, counted here by loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from segmenter.diagnosis import Diagnosis, diagnose, table
from segmenter.diagnosis.report import html_report
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset
from segmenter.tiles.gsd import with_gsds
from segmenter.tiles.index import build_index
from tests.helpers.report_page import Page
from tests.helpers.scaled_scenes import scaled_dataset, scaled_recipe

Make = Callable[..., Dataset]


@pytest.fixture
def make(tmp_path: Path, make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap]) -> Make:
    return lambda metres, **options: scaled_dataset(
        tmp_path, make_geotiff, make_classes(3), metres, **options
    )


def diagnosed(dataset: Dataset, **sampling: object) -> Diagnosis:
    recipe = scaled_recipe(augmentation={}, sampling=sampling)
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    index = with_gsds(index, dataset, recipe, progress=False)
    return diagnose(recipe, dataset, index, [12], progress=False)


def test_classes_by_scale_are_those_of_the_tiles(make: Make) -> None:
    dataset = make((0.1, 0.25, 2.0, 0.12))
    found = diagnosed(dataset)
    scales = found.scales
    assert scales is not None
    assert (scales.planned, scales.strata) == (False, ["0.088–0.18 m", "0.18–0.35 m", "1.4–2.8 m"])
    assert scales.scenes == [2, 1, 1]
    index = build_index(dataset, "train", scaled_recipe().tiles, progress=False)
    for t, scenes in enumerate(((0, 3), (1,), (2,))):
        tiles = [i for i in range(len(index)) if index.scene_N[i] in scenes]
        assert scales.tiles[t] == len(tiles)
        assert scales.held[t] == [sum(index.counts_NK[i, c] >= 32 for i in tiles) for c in range(3)]
        assert scales.pixels[t] == [sum(int(index.counts_NK[i, c]) for i in tiles) for c in range(3)]
    assert np.sum(scales.pixels) == sum(c.pixels for c in found.classes)
    assert Diagnosis.from_dict(found.to_dict()) == found


def test_text_and_chart_have_the_same_numbers(make: Make) -> None:
    found = diagnosed(make((0.1, 0.25, 2.0, 0.12)))
    scales = found.scales
    assert scales is not None
    block = table(found).split("\n\n")[2].splitlines()
    assert block[0] == "tiles that hold a class, by metres a pixel of their scenes:"
    assert block[2].split() == ["scenes", "2", "1", "1"]
    assert [int(cell) for cell in block[6].split()[1::2]] == [held[2] for held in scales.held]
    assert block[7].startswith("random batches that hold each class at each scale (9 in all): ")
    page = Page(html_report(found))
    chart = page.data()["charts"]["class-scales"]
    go.Figure(chart["figures"][0])  # raises on a key or value that Plotly does not know
    shown = np.array(chart["figures"][0]["data"][0]["z"], float)
    order = sorted(range(3), key=lambda c: found.classes[c].tiles)
    wanted = [[100 * scales.held[t][c] / scales.tiles[t] for t in range(3)] for c in order]
    np.testing.assert_allclose(shown, wanted)
    assert "0.088–0.18 m (2 scenes" in page.text()
    assert "With boundaries in sampling.scale_strata" in " ".join(page.text().split())


def test_random_batches_by_scale_are_as_likely_as_drawn(make: Make, rng: np.random.Generator) -> None:
    dataset = make((0.1, 0.25, 2.0, 0.12))
    scales = diagnosed(dataset).scales
    assert scales is not None
    index = build_index(dataset, "train", scaled_recipe().tiles, progress=False)
    stratum_N = np.array([0, 1, 2, 0])[index.scene_N]
    held_NP = np.concatenate([(index.counts_NK >= 32) & (stratum_N == t)[:, None] for t in range(3)], axis=1)
    drawn = [held_NP[rng.permutation(len(index))[:12]].any(axis=0).all() for _ in range(4000)]
    assert scales.random[0].batch == 12
    assert scales.random[0].probability == pytest.approx(np.mean(drawn), abs=0.03)


def test_a_class_that_is_rare_at_its_scale_is_named(make: Make) -> None:
    found = diagnosed(make((0.1, 0.25, 2.0, 0.12)), scale_strata=[0.15, 1.0], max_repeats_per_tile=0)
    assert found.scales is not None
    assert (found.scales.planned, found.scales.strata) == (True, ["0.1–0.15 m", "0.15–1 m", "1–2 m"])
    rare = found.plans[0].rare_at_scale
    assert "c at 1–2 m" in rare
    assert f"best effort at their scale: {', '.join(rare)}" in " ".join(table(found).split())
    assert "Best effort at their scale" in Page(html_report(found)).text()


def test_scenes_of_one_scale_or_of_none_known_have_no_such_table(make: Make) -> None:
    assert diagnosed(make((0.1, 0.1, 0.11))).scales is None
    unknown = make((0.1, 0.25))
    assert diagnosed(unknown).scales is not None
    plain = tuple(replace(s, metres_per_pixel=0.5) for s in unknown.scenes)
    assert diagnosed(replace(unknown, scenes=plain)).scales is None  # the recipe's word goes first
