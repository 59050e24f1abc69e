"""Batches made ahead by threads or processes of which nothing stays: how many, and at what cost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from datasets import load_dataset
from datasets.commands import input as input_tool
from segmenter.base.errors import RasterError, TrainingError
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
from segmenter.sampling import Plan, plan
from segmenter.tiles.augment import Augmenter
from segmenter.tiles.batches import Batch
from segmenter.tiles.feeding import orders as slots
from segmenter.tiles.feeding import sizes
from segmenter.tiles.feeding.feed import Feed, Threads
from segmenter.tiles.feeding.orders import FeedClosedError
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.store import SceneStore
from segmenter.training.trainer import epoch_dataset
from tests.helpers.made_feed import (
    BATCH,
    SHAPE,
    FailingLoader,
    digest,
    empty_plan,
    loader_and_plan,
    taken,
)
from tests.helpers.made_statistics import statistics_of
from tests.helpers.made_training import made
from tests.helpers.refusals import refused
from tests.helpers.time_limits import wait_until

ROOT = Path(__file__).resolve().parents[3]
VARIANTS = {
    "drawn for a class": ("sampling.method=rare_class", "sampling.per_replica=off"),
    "in quotas": ("sampling.quotas={scarce: 3}", "augmentation.scale=0.85", "augmentation.rotation=180"),
    "ordered for replicas": ("augmentation.brightness=0",),
    "each replica's classes": ("sampling.per_replica=guarantee", "tiles.overlap=16"),
    "pasted": ("augmentation.mosaic=0.5", "augmentation.copy_paste.p=0.5"),
}
REPLICAS = {"ordered for replicas": 4, "each replica's classes": 2}


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, WorkerPool]]:
    there = {workers: WorkerPool(workers, SHAPE, workers + 1) for workers in (1, 2)}
    yield there
    for pool in there.values():
        pool.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pool.pids)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("feed") / "data", scenes=3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_batches_by_any_number_of_workers_from_any_step(
    variant: str, pools: dict[int, WorkerPool], recipe_file: Path
) -> None:
    settings = ("dataset.split.validation=[s2]", *VARIANTS[variant])
    loader, rows = loader_and_plan(recipe_file, *settings, replicas=REPLICAS.get(variant, 1))
    made_here = [digest(loader.load(rows, 1, step)) for step in range(rows.steps)]
    assert len(set(made_here)) == rows.steps > 2
    drawn = loader.drawn
    with Feed(loader, BATCH) as threads:
        assert taken(threads, rows, 1) == made_here
    for workers, pool in pools.items():
        feed, before = Feed(loader, BATCH, pool), pool.drawn
        assert taken(feed, rows, 1) == made_here, workers
        assert feed.drawn.since(before) == drawn  # what they had to draw again is counted here
        assert taken(feed, rows, 1, first=2) == made_here[2:]


def test_workers_share_nothing_with_a_name_and_never_import_tensorflow(pools: dict[int, WorkerPool]) -> None:
    for pid in pools[2].pids:
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "/memfd:batches (deleted)" in mapped
        assert "/dev/shm/" not in mapped
        assert "tensorflow" not in mapped
        assert "cv2" in mapped


def test_a_batch_that_fails_ends_in_its_own_line_and_the_others_are_made(
    pools: dict[int, WorkerPool],
) -> None:
    no_memory = r"^input worker [12] of 2 .* ran out of memory while it made step {} of epoch 1; lower "
    defect = "(?s)^input worker .* failed at step 9 of epoch 1:\nTraceback.*ValueError: bad 8"
    errors = {2: "user", 4: "memory", 6: "memory in OpenCV", 8: "defect"}
    rows, feed, into = empty_plan(10), Feed(FailingLoader(errors), BATCH, pools[2]), SHAPE.empty()
    for step, (kind, line) in {
        2: (RasterError, "^bad 2$"),
        4: (TrainingError, no_memory.format(5)),
        6: (TrainingError, no_memory.format(7)),
        8: (RuntimeError, defect),
    }.items():
        with pytest.raises(kind, match=line):
            feed.take(rows, 0, step, into)
        feed.take(rows, 0, step + 1, into)
        np.testing.assert_array_equal(into[0], step + 1)


def test_a_killed_worker_ends_the_training_in_one_line() -> None:
    with Feed(FailingLoader({}), BATCH, WorkerPool(1, SHAPE, 2)) as feed:
        pool = feed._maker
        assert isinstance(pool, WorkerPool)
        feed.take(empty_plan(3), 0, 0, SHAPE.empty())
        feed.check()
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(TrainingError) as raised:
            taken(feed, empty_plan(3), 0)
        assert "worker 1 of 1" in str(raised.value)
        assert "killed (signal 9" in str(raised.value)
        assert "made step" in str(raised.value)
        with pytest.raises(TrainingError, match="was killed"):  # also where nobody waits for a batch
            feed.check()


@pytest.mark.slow
def test_workers_end_with_a_killed_main_process_and_hear_no_signals_meant_for_it() -> None:
    code = (
        "import sys, time; from segmenter.tiles.feeding.processes import WorkerPool; "
        "from segmenter.tiles.feeding.orders import BatchShape; "
        "pool = WorkerPool(1, BatchShape(1, (16, 16, 1), 'uint8'), 1); "
        "print(pool.pids[0], flush=True); time.sleep(600)"
    )
    main = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with main:
        worker = int(main.stdout.readline())
        assert wait_until(lambda: "cv2" in Path(f"/proc/{worker}/maps").read_text())  # it listens
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker, number)
        assert not wait_until(lambda: _ended(worker), 0.1)
        main.kill()
        assert wait_until(lambda: _ended(worker))


def _ended(pid: int) -> bool:
    """Return true if a process is gone, or waits only for whoever takes in orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_more_memory_than_is_free_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "free_memory", lambda: SHAPE.bytes)
    with refused(TrainingError, expected="0 MiB", remedy="lower training."):
        WorkerPool(1, SHAPE, 2)


class Held(FailingLoader):
    """Waits in each batch until it is let go on; counts how many wait."""

    def __init__(self) -> None:
        super().__init__({})
        self.go = threading.Event()

    def load(self, plan: Plan, epoch: int, step: int) -> Batch:
        batch = super().load(plan, epoch, step)
        self.go.wait()
        return batch


def steps_of(feed: Feed, rows: Plan, epoch: int, steps: range) -> list[int]:
    """Which step's batch came for each that was asked for."""
    found, into = [], feed.shape.empty()
    for step in steps:
        feed.take(rows, epoch, step, into)
        found.append(int(into[0].max()))
        assert (into[0] == into[0].max()).all()
    return found


def test_batches_under_way_are_bounded_and_the_next_ones() -> None:
    loader, rows = Held(), empty_plan(40)
    with Feed(loader, BATCH) as feed:
        feed._maker.close()
        feed._maker = Threads(loader, 3, 5)
        feed.begin(rows, 0)
        assert wait_until(lambda: len(loader.loaded) == 3)
        assert sorted(loader.loaded) == [0, 1, 2]
        loader.go.set()
        assert wait_until(lambda: len(loader.loaded) == 5)
        assert not wait_until(lambda: len(loader.loaded) > 5, 0.05)  # nobody takes any
        assert steps_of(feed, rows, 0, range(9)) == list(range(9))
        assert wait_until(lambda: len(loader.loaded) == 14)


def test_any_step_may_be_asked_for_and_what_was_begun_is_given_up() -> None:
    loader, rows, next_rows = FailingLoader({}), empty_plan(30), empty_plan(5)
    with Feed(loader, BATCH) as feed:
        for _ in range(6):  # more than there is room for: what is given up makes room again
            assert steps_of(feed, rows, 0, range(12, 15)) == [12, 13, 14]
            assert steps_of(feed, rows, 1, range(3)) == [0, 1, 2]
        assert steps_of(feed, next_rows, 1, range(5)) == list(range(5))


def test_closing_waits_for_the_batch_in_progress_and_begins_no_other() -> None:
    """A thread in native code while the interpreter ends aborts the process."""
    before, loader, rows = set(threading.enumerate()), Held(), empty_plan(9)
    feed = Feed(loader, BATCH)
    feed.begin(rows, 0)
    assert wait_until(lambda: loader.loaded)
    threading.Timer(0.3, loader.go.set).start()
    feed.close()
    assert not [
        each for each in threading.enumerate() if each.name.startswith("input") and each not in before
    ]
    assert len(loader.loaded) < 9


@pytest.mark.parametrize("processes", [0, 1])
def test_closing_ends_a_wait_in_another_thread(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segmenter.tiles.feeding.feed._CLOSING_SECONDS", 0.1)
    loader, rows, ended = Held(), empty_plan(3), []
    if processes:  # which then waits for a batch that never comes
        feed = Feed(FailingLoader({0: "sleep"}), BATCH, WorkerPool(1, SHAPE, 1))
    else:
        feed = Feed(loader, BATCH)

    def take() -> None:
        try:
            feed.take(rows, 0, 0, feed.shape.empty())
        except FeedClosedError:
            ended.append(True)

    waiting = threading.Thread(target=take)
    waiting.start()
    assert wait_until(lambda: feed._lock.locked() if processes else loader.loaded)
    left = [each for each in threading.enumerate() if each.name.startswith("input")]
    assert all(each.daemon for each in left), "a disk that does not answer would keep the program"
    feed.close()
    waiting.join()
    assert ended
    loader.go.set()


def test_a_dataset_may_be_iterated_again_and_pads_its_last_stack(tensorflow: ModuleType) -> None:
    """Keras' fit looks at a first batch before it starts from the first."""
    batches = epoch_dataset(FailingLoader({}), empty_plan(8), 0, 1, stacked=3)
    assert batches.element_spec[0].shape == (3, BATCH, 32, 32, 3)
    next(iter(batches))
    shown = [stack[0].max(axis=(1, 2, 3, 4)).tolist() for stack in batches.as_numpy_iterator()]
    assert shown == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    valid = [stack[1].any(axis=(1, 2, 3)) for stack in batches.as_numpy_iterator()]
    np.testing.assert_array_equal(valid[-1], [True, False, False])


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
        "stack": (measure.BatchLoader, "_held_classes"),
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


@pytest.mark.slow
def test_the_tool_says_what_the_input_feeds_and_writes_no_run(
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


GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "usable_cores", lambda: 16)
    monkeypatch.setattr(sizes, "free_memory", lambda: 64 * GIB)


def test_auto_leaves_cores_for_the_cards_and_all_of_them_for_cpu_devices(machine: None) -> None:
    assert [sizes.workers_for("auto", gpus) for gpus in (0, 1, 4, 12)] == [0, 15, 12, 8]
    assert [sizes.workers_for(asked, 4) for asked in (0, 1, 40)] == [0, 1, 40]


@pytest.mark.parametrize(("cores", "gpus", "workers"), [(1, 1, 1), (4, 4, 2), (128, 1, 32), (128, 8, 51)])
def test_auto_is_at_least_one_worker_and_no_more_than_are_useful(
    cores: int, gpus: int, workers: int, machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "usable_cores", lambda: cores)
    assert sizes.workers_for("auto", gpus) == workers


@pytest.mark.slow
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
