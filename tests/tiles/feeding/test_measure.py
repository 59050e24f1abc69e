"""The input alone: stages of a tile's cost, and what is said of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from datasets import load_dataset
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.sampling import plan
from segmenter.tiles.feeding import measure
from segmenter.tiles.feeding.measure import (
    AUGMENTING,
    KEEPING,
    READING,
    STAGES,
    WAITING,
    Cost,
    cost_of_a_tile,
)
from segmenter.tiles.index import TileIndex, build_index
from segmenter.tiles.index_cache import cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.made_statistics import statistics_of
from tests.helpers.made_training import made

Material = tuple[Recipe, TileIndex, SceneStore]


@pytest.fixture
def material(tmp_path: Path) -> Material:
    recipe = load_recipe(made(tmp_path / "data"), ())
    dataset = load_dataset(recipe)
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    return recipe, index, SceneStore(dataset, index.scenes, 32, cache_folder(dataset), progress=False)


def busy() -> None:
    """20 ms of processor: more than all the rest of a small tile."""
    started = time.thread_time()
    while time.thread_time() - started < 0.02:
        pass


@pytest.mark.parametrize(
    ("slow", "of", "limit"),
    [
        (busy, "read", READING),
        (lambda: time.sleep(0.05), "read", WAITING),
        (busy, "augment", AUGMENTING),
        (busy, "stack", KEEPING),
    ],
)
def test_the_stage_that_is_made_slow_is_the_limit(
    slow: Callable[[], None], of: str, limit: str, material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, index, store = material
    owner, name = {
        "read": (SceneStore, "read"),
        "augment": (measure.BatchLoader, "__init__"),
        "stack": (measure.BatchLoader, "_held"),
    }[of]
    inner = getattr(owner, name)

    def slowed(self: object, *arguments: object, **options: object) -> object:
        result = inner(self, *arguments, **options)
        if of == "augment":
            augmenter = self._augmenter  # type: ignore[attr-defined]
            changed = SimpleNamespace(border_at_risk=augmenter.border_at_risk)
            self._augmenter = _Slowed(augmenter, slow, changed)  # type: ignore[attr-defined]
        else:
            slow()
        return result

    monkeypatch.setattr(owner, name, slowed)
    rows = plan(index.counts_NK, 8, recipe.sampling, 0, 0)
    cost = cost_of_a_tile(recipe, index, store, statistics_of(), rows, 0.0)
    assert cost.limit == limit
    assert set(cost.stages) == set(STAGES)
    assert all(seconds >= 0 for seconds in cost.stages.values())
    assert cost.stages[limit] > 0.02 * 0.9
    assert cost.total < 2 * cost.stages[limit]


class _Slowed:
    def __init__(self, inner: Callable[..., object], slow: Callable[[], None], rest: SimpleNamespace) -> None:
        self._inner, self._slow, self.border_at_risk = inner, slow, rest.border_at_risk

    def __call__(self, *arguments: object, **options: object) -> object:
        self._slow()
        return self._inner(*arguments, **options)


def test_the_screen_says_stages_rate_and_cards(
    material: Material, tensorflow: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from segmenter.training import input_only

    recipe, index, store = material
    stages = dict(zip(STAGES, (0.003, 0.0, 0.001, 0.0005, 0.0005), strict=True))
    monkeypatch.setattr(input_only, "cost_of_a_tile", lambda *_: Cost(stages))
    tiles = SimpleNamespace(index=index, store=store, image_form=(3, "uint8"), statistics=statistics_of())
    names, limits = ["left", "right", "scarce"], {"steps": 2, "minutes": 1.0}
    text = input_only.measure_input(recipe, tiles, names, None, **limits, need=1e-9)  # type: ignore[arg-type]
    assert "reading                          3.00    60%" in text
    assert "limit: reading (" in text
    assert "(2 steps)" in text
    assert "needed: 0 tiles/s a card; this feeds " in text
    assert len(text.splitlines()) < 25
    text = input_only.measure_input(recipe, tiles, names, None, **limits, need=None)  # type: ignore[arg-type]
    assert "a card at most (RTX 2080 Ti, float32: " in text


def test_the_default_models_convolutions_are_those_of_the_page_on_four_gpus(tensorflow: object) -> None:
    from segmenter.config.models import UNetConfig
    from segmenter.model.building import build_model
    from segmenter.model.size import convolution_flops

    model = build_model(UNetConfig(), 3, 6)
    assert convolution_flops(model, 256, 256) == pytest.approx(27.92e9, rel=1e-3)
    assert convolution_flops(model, 512, 256) == 2 * convolution_flops(model, 256, 256)
