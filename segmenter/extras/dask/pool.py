"""Distribution of items to the workers of a cluster, with results in order.

The scheduler has a few items for each worker, never all, and at most `_HELD_BYTES` of results wait for an
earlier one, so memory does not depend on the number of items. The items of a lost worker go to others.

Code on a cluster's workers: the work is sent to each once, then its items one at a time. A worker with the
work offers a resource named after the call, which items require: so an incompatible worker, or one without
the work, gets no item, and a worker with several threads does not compute several.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import queue
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import dask
from distributed import Client, Future, KilledWorker, Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.pickle import dumps, loads

from segmenter.base.errors import (
    ClusterError,
    DeviceError,
    LostClusterError,
    SegmenterError,
    extended_error,
    failing,
)
from segmenter.base.files import FileLock
from segmenter.base.machine import machine_memory
from segmenter.base.version import source_digest
from segmenter.devices.setup import cards_listed, smallest_card
from segmenter.extras.dask.options import ClusterOptions

Work = Callable[[Any], Any]

_GIVEN: dict[tuple[str, str], Work] = {}
"""By the call's name and the worker's address: in tests, several workers are threads of one process."""
_LOCKS: dict[str, threading.Lock] = {}
"""By the worker's address: two calls on one cluster do not compute on its device at once."""


@dataclass(frozen=True)
class ItemResult:
    """Result of an item: a value, or the user's error."""

    value: Any = None
    error: SegmenterError | None = None


class Setup(WorkerPlugin):
    """Plugin that sends the work to each worker, also to those that join later.

    Args:
        alone: True: a worker takes one item at a time; else one for each of its threads.
    """

    def __init__(self, name: str, work: bytes, expected: dict[str, str], *, alone: bool) -> None:
        self.name, self._work, self._expected, self._alone = name, work, expected, alone

    async def setup(self, worker: Worker) -> None:
        """Receive the work; raise ClusterError if the worker cannot be used."""
        where = f"worker {worker.address}"
        if differs := difference(self._expected, versions()):
            raise ClusterError(where, differs, remedy="all workers take the caller's environment and code")
        try:
            work = loads(self._work)
        except Exception as error:  # whatever unpickling meets
            raise ClusterError(where, f"cannot take the work: {type(error).__name__}: {error}") from None
        _GIVEN[self.name, worker.address] = work
        await worker.set_resources(**{self.name: 1 if self._alone else worker.state.nthreads})

    async def teardown(self, worker: Worker) -> None:
        """Release the work."""
        _GIVEN.pop((self.name, worker.address), None)
        if worker.status.name == "running":
            await worker.set_resources(**{self.name: 0})


def run(name: str, item: Any, alone: bool) -> ItemResult:
    """Run the work of a call on one item; a user's error is an answer, other errors are raised."""
    address = get_worker().address
    work = _GIVEN[name, address]
    lock = _LOCKS.setdefault(address, threading.Lock()) if alone else threading.Lock()
    with lock:
        try:
            return ItemResult(work(item))
        except (ClusterError, DeviceError) as error:
            return ItemResult(error=extended_error(error, where=f"worker {address}"))
        except SegmenterError as error:
            return ItemResult(error=error)


def machine(dask_worker: Worker) -> tuple[int | None, int, int]:
    """Return the bytes of a worker's smallest card (None: no GPU) and of its memory, and its threads."""
    limit = dask_worker.memory_manager.memory_limit or machine_memory()
    return smallest_card(), min(limit, machine_memory()), dask_worker.state.nthreads


# --------------------------------------------------------------- a worker's share of its machine

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_held: list[FileLock] = []


def take_share(threads: int) -> None:
    """Let TensorFlow use one GPU that no other worker has, and `threads` threads.

    Existing environment variables are kept: CUDA_VISIBLE_DEVICES, TF_NUM_…_THREADS. The GPU is marked by a
    lock that ends with the process, so that a restarted worker finds it free.

    Raises:
        DeviceError: there are more workers than GPUs.
    """
    if "tensorflow" in sys.modules or _held:  # of an earlier call: it cannot be changed any more
        return
    if _VISIBLE not in os.environ and (cards := cards_listed()):
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ[_VISIBLE] = str(_free_card(cards))
    for kind in ("INTRA", "INTER"):
        os.environ.setdefault(f"TF_NUM_{kind}OP_THREADS", str(max(1, threads)))


def _free_card(cards: int) -> int:
    folder = Path(tempfile.gettempdir()) / f"segmenter-cards-{os.getuid()}"
    with failing(DeviceError, folder, "cannot mark a GPU as taken"):
        folder.mkdir(mode=0o700, exist_ok=True)
        for card in range(cards):
            lock = FileLock(folder / f"{card}.lock")
            try:
                lock.take()
            except BlockingIOError:
                continue
            _held.append(lock)
            return card
    raise DeviceError(
        expected=f"a GPU for each worker, all {cards} are taken by others of this machine",
        remedy="start one worker a GPU, or set CUDA_VISIBLE_DEVICES for each",
    )


# --------------------------------------------------------------- versions on which results depend

_PACKAGES = ("numpy", "rasterio", "tensorflow", "tensorflow-cpu", "keras", "distributed")


@cache
def versions() -> dict[str, str]:
    """Return the versions in this environment by name; TensorFlow for GPUs and CPUs counts as one."""
    names = {"this program": source_digest(), "Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            names[package.removesuffix("-cpu")] = version(package)
        except PackageNotFoundError:
            continue
    return names


def difference(here: dict[str, str], there: dict[str, str]) -> str | None:
    """Return text on the first difference of versions; None if they are equal."""
    for name in {**here, **there}:
        mine, theirs = (found.get(name, "none") for found in (here, there))
        if mine != theirs:
            return f"expected {name} {mine} as here, got {theirs}"
    return None


Item = TypeVar("Item")

_AHEAD = 3
"""Items for each place: one is worked on, one waits there, and one result waits for an earlier one."""
_HELD_BYTES = 1 << 30
_POLL_SECONDS, _LOOK_SECONDS = 0.1, 1.0
_SILENT_SECONDS = 15.0
"""Without an answer of a scheduler whose connection stands: it may be busy for a while."""
_PATIENCE_SECONDS = 60.0
"""Seconds without any worker before giving up: a killed worker restarts within seconds."""
_KEPT = "what is done is kept, and the same call goes on from there"
_END: Any = object()


class PieceKilledError(ClusterError):
    """An item killed one worker after the other."""


@dataclass(eq=False)
class _Task:
    item: Any
    future: Any = None
    answer: ItemResult | None = None
    bytes: int = 0
    patience: float = 1.0
    """Seconds in which its result is fetched, once it is there."""


class Pool:
    """Workers of a cluster.

    Attributes:
        warn: is called with a line when a worker is lost.
    """

    def __init__(self, client: Client, options: ClusterOptions) -> None:
        self._client, self._options = client, options
        self.warn: Callable[[str], None] = lambda _: None
        self._looked = self._last_seen = self._answered = 0.0
        self._numbers, self._idle = itertools.count(), 0
        self._places: dict[str, int] = {}

    @property
    def local(self) -> int | None:
        """Number of processes started on this machine; None: the workers were started elsewhere."""
        return self._options.workers

    @property
    def asked(self) -> str:
        """The option that named the workers."""
        return self._options.asked

    def machines(self) -> dict[str, tuple[int | None, int, int]]:
        """Return `machine` for each worker.

        Raises:
            ClusterError: the workers cannot be reached.
        """
        try:
            machines: dict[str, Any] = self._client.run(machine)
        except Exception as error:  # whatever a foreign environment raises
            raise self._unusable(error) from None
        return machines

    def in_order(
        self,
        work: Callable[[Item], Any],
        items: Iterable[Item],
        *,
        alone: bool = True,
        stop: Callable[[], bool] = lambda: False,
    ) -> Generator[tuple[Item, ItemResult], None, None]:
        """Yield each item with its answer, in order; items are taken from the iterable as needed.

        Args:
            work: function sent to each worker once, by pickle with its closure, and called there with each
                item.
            alone: True: a worker does one item at a time; else one for each of its threads.
            stop: called regularly in this thread; True stops the work.

        Raises:
            LostClusterError: the scheduler or all workers are gone.
            ClusterError: a worker cannot be used.
        """
        name = f"segmenter-{uuid.uuid4().hex[:16]}"
        with contextlib.ExitStack() as stack:
            stack.callback(self._take_back, name)
            self._give(name, work, alone)
            tasks: deque[_Task] = deque()
            stack.callback(_cancel, tasks)
            yield from self._run(name, items, tasks, alone, stop)

    def _run(
        self, name: str, items: Iterable[Item], tasks: deque[_Task], alone: bool, stop: Callable[[], bool]
    ) -> Iterator[tuple[Item, ItemResult]]:
        rest, ready = iter(items), queue.SimpleQueue[tuple[_Task, Future]]()
        self._look(name, now=True)
        more = True
        while not stop():
            while more and self._room(tasks):
                item = next(rest, _END)
                if more := item is not _END:
                    tasks.append(_Task(item))
                    self._submit(tasks[-1], name, alone, ready)
            if not tasks:
                return
            while tasks[0].answer is None and not stop():
                if (lost := self._settle(ready)) is not None:
                    self._submit(lost, name, alone, ready)
                if self._look(name) and self._stuck(name):
                    for task in tasks:
                        if task.answer is None:
                            self._submit(task, name, alone, ready)
            if tasks[0].answer is not None:
                task = tasks.popleft()
                yield task.item, task.answer  # type: ignore[misc]

    def _room(self, tasks: deque[_Task]) -> bool:
        places = max(1, sum(self._places.values()))
        return len(tasks) < 1 + _AHEAD * places and sum(task.bytes for task in tasks) < _HELD_BYTES

    def _submit(
        self, task: _Task, name: str, alone: bool, ready: queue.SimpleQueue[tuple[_Task, Future]]
    ) -> None:
        key = f"{name}-{next(self._numbers)}"
        try:
            if task.future is not None:
                task.future.cancel()
            future = self._client.submit(
                run, name, task.item, alone, key=key, resources={name: 1}, pure=False
            )
        except Exception as error:  # also what Dask raises of a connection that is just lost
            if self._client.status != "running":
                raise self._lost_scheduler() from error
            raise
        task.future = future
        future.add_done_callback(lambda done: ready.put((task, done)))

    def _settle(self, ready: queue.SimpleQueue[tuple[_Task, Future]]) -> _Task | None:
        """Fetch finished results at once: results stored here are not lost with a worker.

        Return a task whose result was lost with its worker, to be submitted again.
        """
        try:
            task, future = ready.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return None
        if task.answer is not None or task.future is not future:
            return None
        answer = self._answer(task, future)
        if answer is None:
            if future.status != "finished":
                return task
            task.patience *= 2  # a large result over a slow line is not fetched from the beginning for ever
            ready.put((task, future))
            return None
        task.answer, task.future, task.bytes = answer, None, _bytes(answer.value)
        future.release()
        self._idle = 0
        return None

    def _stuck(self, name: str) -> bool:
        """Return whether workers are ready but idle, twice in a row, although results are missing.

        If all workers were lost at once, the scheduler does not reschedule tasks that wait for a resource
        when a worker offers it again.
        """
        keys = (key for keys in self._client.processing().values() for key in keys)
        at_work = not any(self._places.values()) or any(str(key).startswith(name) for key in keys)
        self._idle = 0 if at_work else self._idle + 1
        if self._idle < 2:
            return False
        self._idle = 0
        return True

    def _answer(self, task: _Task, future: Future) -> ItemResult | None:
        """Return the answer of a task; None if it cannot be fetched now or is lost."""
        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                count = dask.config.get("distributed.scheduler.allowed-failures") + 1
                return ItemResult(error=PieceKilledError(f"ended {count} workers, one after the other"))
            raise error
        is_running = self._client.status == "running"
        if future.status != "finished":
            self._check_there(is_running)
            return None
        try:
            # Not without end: the worker that has the result may go at this very moment, with all others.
            answer = future.result(timeout=task.patience)
        except TimeoutError:
            self._check_there(is_running)
            return None
        except (OSError, SegmenterError) as error:
            raise self._lost_scheduler() from error
        except BaseException as error:
            if type(error).__name__.endswith("CancelledError"):
                self._check_there(is_running)
                return None
            raise
        assert isinstance(answer, ItemResult)
        return answer

    def _check_there(self, is_running: bool) -> None:
        """Raise LostClusterError if the scheduler is gone, not only a worker."""
        if not is_running:
            raise self._lost_scheduler()

    def _look(self, name: str, *, now: bool = False) -> bool:
        """Check scheduler and workers, and count the places; return whether a check was due.

        Raises:
            LostClusterError: scheduler or workers are gone.
        """
        moment = time.monotonic()
        if not now and moment - self._looked < _LOOK_SECONDS:
            return False
        self._looked = moment
        if self._client.status != "running":
            raise self._lost_scheduler()
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except Exception as error:  # it is busy, or the connection broke in the middle
            if self._client.status == "running" and moment - self._answered < _SILENT_SECONDS:
                return True
            raise self._lost_scheduler() from error
        self._answered = moment
        places = {address: int(facts["resources"].get(name, 0)) for address, facts in workers.items()}
        for address in self._places.keys() - places.keys():
            self.warn(f"worker {address} is gone; what it had is done by others")
        self._places = places
        if now or any(places.values()):
            self._last_seen = moment
        elif moment - self._last_seen >= _PATIENCE_SECONDS:
            raise LostClusterError(self.asked, "all workers are gone", remedy=_KEPT)
        return True

    def _lost_scheduler(self) -> LostClusterError:
        return LostClusterError(self.asked, "the scheduler is gone", remedy=_KEPT)

    def _give(self, name: str, work: Callable[[Item], Any], alone: bool) -> None:
        setup = Setup(name, dumps(work), versions(), alone=alone)
        try:
            self._client.register_plugin(setup, name)
        except SegmenterError:
            raise
        except Exception as error:  # whatever a foreign environment raises
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> ClusterError:
        if self._client.status != "running":
            return self._lost_scheduler()
        return ClusterError(
            self.asked,
            f"its workers cannot be used: {type(error).__name__}: {error}",
            remedy="scheduler and workers need the environment and the code of this call",
        )

    def _take_back(self, name: str) -> None:
        with contextlib.suppress(Exception):  # the connection may be gone, and the workers with it
            if self._client.status == "running":
                self._client.unregister_worker_plugin(name)


def _cancel(tasks: deque[_Task]) -> None:
    with contextlib.suppress(Exception):
        for task in tasks:
            if task.future is not None:
                task.future.cancel()
    tasks.clear()


def _bytes(value: Any) -> int:
    """Return the number of bytes in an answer; only bytes objects count, other values are small."""
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0
