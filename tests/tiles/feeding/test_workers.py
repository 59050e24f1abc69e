"""Worker processes: the same batches as without, their ends, and that nothing of them stays."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import RasterError, TrainingError
from segmenter.raster import LabelRaster
from segmenter.raster import reopened as known
from segmenter.tiles.feeding import slots
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.processes import WorkerPool, packed
from tests.helpers.made_feed import (
    BATCH,
    SHAPE,
    FailingLoader,
    digest,
    empty_plan,
    loader_and_plan,
    taken,
)
from tests.helpers.made_training import made
from tests.helpers.time_limits import wait_until

ROOT = Path(__file__).resolve().parents[3]
VARIANTS = {
    "plan": (),
    "drawn for a class": ("sampling.method=rare_class", "sampling.per_replica=off"),
    "ordered for replicas": ("augmentation.brightness=0",),
    "each replica's classes": ("sampling.per_replica=guarantee", "tiles.overlap=16"),
    "pasted": ("augmentation.mosaic=0.5", "augmentation.copy_paste.p=0.5"),
}
SLOW = ("plan", "ordered for replicas")
REPLICAS = {"ordered for replicas": 4, "each replica's classes": 2}


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, WorkerPool]]:
    """Of one and two processes."""
    there = {workers: WorkerPool(workers, SHAPE, workers + 1) for workers in (1, 2)}
    yield there
    for pool in there.values():
        pool.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pool.pids)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("feed") / "data", scenes=3)


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in VARIANTS],
)
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


def test_what_goes_to_workers_opens_no_file_in_full(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker would otherwise look at each label as if nobody had."""
    for kind in ("images", "labels"):  # only of an old folder a change shows
        os.utime(recipe_file.parent / kind, (1_000_000_000, 1_000_000_000))
    loader, rows = loader_and_plan(recipe_file, "tiles.size=64", "dataset.split.validation=[]")
    loader.know_labels()
    sent = pickle.loads(packed(loader))

    def opened(path: Path, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{path} was opened in full")

    monkeypatch.setattr(known, "open_raster", opened)
    monkeypatch.setattr(known, "LabelRaster", type("", (LabelRaster,), {"__init__": opened}))
    assert digest(sent.load(rows, 1, 0)) == digest(loader.load(rows, 1, 0))


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
        assert "input worker 1 of 1" in str(raised.value)
        assert "was killed (signal 9" in str(raised.value)
        assert "while it made step " in str(raised.value)
        with pytest.raises(TrainingError, match="was killed"):  # also where nobody waits for a batch
            feed.check()


def test_workers_end_with_a_killed_main_process_and_hear_no_signals_meant_for_it() -> None:
    code = (
        "import sys, time; from segmenter.tiles.feeding.processes import WorkerPool; "
        "from segmenter.tiles.feeding.slots import BatchShape; "
        "pool = WorkerPool(1, BatchShape(1, (16, 16, 1), 'uint8'), 1); "
        "print(pool.pids[0], flush=True); time.sleep(600)"
    )
    main = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    with main:
        worker = int(main.stdout.readline())
        assert wait_until(lambda: "cv2" in Path(f"/proc/{worker}/maps").read_text())  # it listens
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker, number)
        assert not wait_until(lambda: _ended(worker), 0.1)
        main.kill()
        assert wait_until(lambda: _ended(worker))


def _ended(pid: int) -> bool:
    """Whether a process is gone, or waits only for whoever takes in orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_more_memory_than_is_free_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "free_memory", lambda: SHAPE.bytes)
    with pytest.raises(TrainingError, match=r"expected 0 MiB of memory for the batches .* lower training\."):
        WorkerPool(1, SHAPE, 2)
