"""The demo: a class in one tile of forty, its recipe and stored run; a slow test runs all of it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.commands.demo import main
from datasets.commands.demo_facts import RARE, SHUFFLED, SHUFFLED_COMMAND, DemoFacts
from datasets.commands.recipes import ready_made
from datasets.synthetic import demo
from datasets.synthetic.demo import TILE, TRAIN, make_demo, scene_names
from segmenter.base.errors import ConfigError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.grid.sight import APART, SIGHTS, nearest
from segmenter.runs.log import RunLog
from segmenter.sampling.forecast import holds
from segmenter.tiles.index import TileIndex, build_index
from tests.helpers.refusals import refused

CLASSES = ("crops", "meadow", "wood", "building", "road", "solar park")
"""In the order of their codes, from 0."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "data"
    make_demo(folder, seed=3)
    return folder


@pytest.fixture(scope="module")
def recipe(root: Path) -> Recipe:
    return load_recipe(ready_made()["demo"], [f"dataset.root={root}"])


@pytest.fixture(scope="module")
def index(recipe: Recipe) -> TileIndex:
    return build_index(load_dataset(recipe), "train", recipe.tiles)


def held(index: TileIndex, recipe: Recipe) -> Any:
    return holds(index.counts_NK, recipe.sampling.min_pixels)


@pytest.mark.slow
def test_the_rare_class_is_in_one_tile_of_forty(index: TileIndex, recipe: Recipe) -> None:
    holds_NK = held(index, recipe)
    assert (len(index), recipe.tiles.size) == (TRAIN * 16, TILE)
    assert holds_NK[:, CLASSES.index(RARE)].sum() * 40 == len(index)
    assert (holds_NK.mean(axis=0) > 0.3).sum() == len(CLASSES) - 1  # all others are frequent


def test_the_recipe_has_the_scenes_and_the_classes_that_are_made(recipe: Recipe) -> None:
    dataset = load_dataset(recipe)
    assert {split: [s.name for s in dataset.of(split)] for split in ("train", "validation", "test")} == (  # type: ignore[arg-type]
        scene_names()
    )
    assert tuple(dataset.classes.names) == CLASSES
    assert [each.code for each in dataset.classes.classes] == list(range(len(CLASSES)))


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "scene_names", lambda: {"train": scene_names()["train"][:2]})
    for name, seed in (("same", 3), ("other", 4)):
        make_demo(tmp_path / name, seed=seed)
    files = [path.relative_to(tmp_path / "same") for path in tmp_path.glob("same/*/*.tif")]
    assert len(files) == 4
    for file in files:
        assert (tmp_path / "same" / file).read_bytes() == (root / file).read_bytes()
        assert (tmp_path / "other" / file).read_bytes() != (root / file).read_bytes()


def test_the_stored_run_lacks_the_class_in_most_steps(index: TileIndex, recipe: Recipe) -> None:
    stored = DemoFacts(**SHUFFLED)
    assert set(stored.iou) == set(CLASSES)
    assert stored.miou == pytest.approx(np.mean(list(stored.iou.values())), abs=1e-3)
    batch, without = recipe.training.global_batch, len(index) - held(index, recipe)[:, -1].sum()
    share = math.comb(int(without), batch) / math.comb(len(index), batch)
    deviation = math.sqrt(share * (1 - share) / stored.steps)
    # Tiles are shifted at random, so that neighbours show some of a park, too.
    assert share - 0.15 < stored.lacking / stored.steps < share + 4 * deviation
    overrides = [word for word in SHUFFLED_COMMAND.split() if "=" in word]
    assert not load_recipe(ready_made()["demo"], overrides).sampling.plans_classes


def test_steps_without_the_class_are_counted_from_the_log(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "maps").mkdir()
    log, iou = RunLog(tmp_path / "run"), dict.fromkeys(CLASSES, 0.5)
    for step, there in ((3, 1), (5, 2)):
        log.append({"step": step, "steps": 3 if step == 3 else 2, "held_steps": [2] * 5 + [there]})
    log.append({"step": 5, "epoch": 1, "miou": 0.4})
    (tmp_path / "maps" / "scores.json").write_text(json.dumps({"miou": 0.5, "iou": iou}))
    facts = DemoFacts.of(tmp_path)
    assert (facts.steps, facts.lacking, facts.miou) == (5, 2, 0.5)


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.tif").touch()
    with refused(ConfigError, where=str(tmp_path)):
        main([str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.tif"]


@pytest.mark.slow
def test_the_demo_maps_what_it_never_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    facts = DemoFacts.of(Path("demo"))
    assert facts.lacking == 0
    assert facts.miou > 0.85
    assert min(facts.iou.values()) > 0.6
    assert "<img " in Path("demo/index.html").read_text()
    assert not Path("demo/run/checkpoints").exists()
    assert sum(path.stat().st_size for path in Path("demo").rglob("*") if path.is_file()) < 1e8


def test_everybody_tells_its_classes_apart() -> None:
    colours = [each.colour for each in load_recipe(ready_made()["demo"]).dataset.classes]  # type: ignore[union-attr]
    rgb = [tuple(bytes.fromhex(str(colour).removeprefix("#"))) for colour in colours]
    assert {sight: nearest(rgb, sight)[0] >= APART for sight in SIGHTS} == dict.fromkeys(SIGHTS, True)
