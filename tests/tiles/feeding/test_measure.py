"""The input alone: its stages' cost, the tool that says it, and how many workers and batches there are."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from datasets import load_dataset
from datasets.commands import input as input_tool
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.extras import input_cost as input_only
from segmenter.extras import input_cost as measure
from segmenter.extras.input_cost import (
    AUGMENTING,
    KEEPING,
    READING,
    STAGES,
    WAITING,
    cost_of_a_tile,
)
from segmenter.sampling import plan
from segmenter.tiles.augment import Augmenter
from segmenter.tiles.feeding import sizes
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.made_statistics import statistics_of
from tests.helpers.made_training import made

Material = tuple[Recipe, TileIndex, SceneStore]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    recipe = load_recipe(made(tmp_path_factory.mktemp("material") / "data"), ())
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
        "augment": (Augmenter, "__call__"),
        "stack": (measure.BatchLoader, "_held"),
    }[of]
    inner = getattr(owner, name)

    def slowed(self: object, *arguments: object, **options: object) -> object:
        slow()
        return inner(self, *arguments, **options)

    monkeypatch.setattr(owner, name, slowed)
    rows = plan(index.counts_NK, 8, recipe.sampling, 0, 0)
    cost = cost_of_a_tile(recipe, index, store, statistics_of(), rows, 0.0)
    assert cost.limit == limit
    assert set(cost.stages) == set(STAGES)
    assert all(seconds >= 0 for seconds in cost.stages.values())
    assert cost.stages[limit] > 0.02 * 0.9
    assert cost.total < 2 * cost.stages[limit]


def test_it_says_what_the_input_feeds_and_writes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = made(tmp_path / "data")
    (tmp_path / "here" / "runs" / "made" / "checkpoints").mkdir(parents=True)
    (tmp_path / "here" / "runs" / "made" / "checkpoints" / "step-00000001.npz").touch()  # of another training
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(input_only, "_COST_SECONDS", 0.1)
    before = sorted((tmp_path / "here").rglob("*"))
    options = ("--steps", "3", "--need", "2", "--set", "training.input_workers=1")
    assert input_tool.main([str(recipe), *options]) == 0
    said = capsys.readouterr().out
    assert "input: 1 worker process on " in said
    assert "input of made: 7 steps an epoch of 8 tiles of 32 × 32 × 3 uint8" in said
    assert "tiles/s by 1 worker process on " in said
    assert "(3 steps)\nneeded: 2 tiles/s a card; this feeds " in said
    assert sorted((tmp_path / "here").rglob("*")) == before


@pytest.mark.parametrize("number", ["0", "nan", "inf", "1e308", "-1"])
def test_a_number_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], number: str) -> None:
    with pytest.raises(SystemExit) as ended:
        input_tool.main(["recipe.yaml", f"--need={number}"])
    assert ended.value.code == 2
    assert "number above 0 and below" in capsys.readouterr().err


GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "usable_cores", lambda: 16)
    monkeypatch.setattr(sizes, "free_memory", lambda: 64 * GIB)


def test_auto_leaves_cores_for_the_cards_and_all_of_them_for_cpu_devices(machine: None) -> None:
    assert [sizes.workers_for("auto", gpus) for gpus in (0, 1, 4, 12)] == [0, 15, 12, 8]
    assert [sizes.workers_for(asked, 4) for asked in (0, 1, 40)] == [0, 1, 40]


@pytest.mark.parametrize(("cores", "gpus", "workers"), [(1, 1, 1), (4, 4, 2), (128, 8, 16)])
def test_auto_is_at_least_one_worker_and_no_more_than_are_useful(
    cores: int, gpus: int, workers: int, machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "usable_cores", lambda: cores)
    assert sizes.workers_for("auto", gpus) == workers


def test_little_memory_takes_fewer_workers_and_batches_and_says_so(
    machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [sizes.ahead_of(workers, 20 * 2**20) for workers in (1, 4, 16)] == [2, 8, 24]
    assert sizes.ahead_of(16, 4 * GIB) == 4
    assert sizes.ahead_of(16, 400 * GIB) == 1
    assert (
        sizes.describe(16, 24, 2**20) == "input: 16 worker processes on 16 cores, 24 batches of 1.0 MiB ahead"
    )
    assert sizes.describe(16, 4, 4 * GIB).endswith(": a quarter of the 64.0 GiB of free memory holds no more")
    assert sizes.describe(0, 4, GIB) == ""
    monkeypatch.setattr(sizes, "free_memory", lambda: 4 * GIB)
    assert sizes.workers_for("auto", 4) == 3
