"""Code on a cluster's workers: the work is sent to each once, then its items one at a time.

A worker with the work offers a resource named after the call, which items require: so an incompatible worker,
or one without the work, gets no item, and a worker with several threads does not compute several.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.pickle import loads

from segmenter.base.errors import ClusterError, DeviceError, SegmenterError, extended_error, failing
from segmenter.base.locks import FileLock
from segmenter.base.machine import machine_memory
from segmenter.base.version import source_digest
from segmenter.devices.setup import cards_listed, smallest_card

Work = Callable[[Any], Any]

_GIVEN: dict[tuple[str, str], Work] = {}
"""By the call's name and the worker's address: in tests, several workers are threads of one process."""
_LOCKS: dict[str, threading.Lock] = {}
"""By the worker's address: two calls on one cluster do not compute on its device at once."""


@dataclass(frozen=True)
class Answer:
    """Result of an item: a value, or the user's error."""

    value: Any = None
    error: SegmenterError | None = None


class Setup(WorkerPlugin):
    """Plugin that sends the work to each worker, also to those that join later.

    Args:
        name: name of the call.
        work: the work as a pickle.
        expected: versions at the caller.
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


def run(name: str, item: Any, alone: bool) -> Answer:
    """Run the work of a call on one item; a user's error is an answer, other errors are raised."""
    address = get_worker().address
    work = _GIVEN[name, address]
    lock = _LOCKS.setdefault(address, threading.Lock()) if alone else threading.Lock()
    with lock:
        try:
            return Answer(work(item))
        except (ClusterError, DeviceError) as error:
            return Answer(error=extended_error(error, where=f"worker {address}"))
        except SegmenterError as error:
            return Answer(error=error)


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
