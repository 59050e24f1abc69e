"""What runs in a cluster's workers: work is given to each once, then its items, one at a time.

A worker that was given the work has a resource of the call's name, which the items ask for: so a worker
that differs, or did not get the work, gets no item, and one with several threads does not compute several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributed import Worker, get_worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.pickle import loads

from segmenter.base.errors import ClusterError, DeviceError, SegmenterError
from segmenter.base.machine import machine_memory
from segmenter.devices.setup import smallest_card
from segmenter.extras.dask.versions import difference, versions

Work = Callable[[Any], Any]

_GIVEN: dict[tuple[str, str], Work] = {}
"""By the call's name and the worker's address: in tests, several workers are threads of one process."""
_LOCKS: dict[str, threading.Lock] = {}
"""By the worker's address: two calls on one cluster do not compute on its device at once."""


@dataclass(frozen=True)
class Answer:
    """What came of an item: a value, or the user's error."""

    value: Any = None
    error: SegmenterError | None = None


class Setup(WorkerPlugin):
    """Gives the work to each worker, also to those that join later.

    Args:
        name: of the call.
        work: as a pickle.
        expected: versions of the caller.
        alone: whether a worker takes one item at a time; else one for each of its threads.
    """

    def __init__(self, name: str, work: bytes, expected: dict[str, str], *, alone: bool) -> None:
        self.name, self._work, self._expected, self._alone = name, work, expected, alone

    async def setup(self, worker: Worker) -> None:
        """Take the work; raises ClusterError where the worker cannot be used."""
        where = f"worker {worker.address}"
        if differs := difference(self._expected, versions()):
            raise ClusterError(f"{where}: {differs}; all workers take the caller's environment and code")
        try:
            work = loads(self._work)
        except Exception as error:  # whatever unpickling meets
            raise ClusterError(f"{where}: cannot take the work: {type(error).__name__}: {error}") from None
        _GIVEN[self.name, worker.address] = work
        await worker.set_resources(**{self.name: 1 if self._alone else worker.state.nthreads})

    async def teardown(self, worker: Worker) -> None:
        """Let go of the work."""
        _GIVEN.pop((self.name, worker.address), None)
        if worker.status.name == "running":
            await worker.set_resources(**{self.name: 0})


def run(name: str, item: Any, alone: bool) -> Answer:
    """Do the work of a call for one item; a user's error is an answer, anything else is raised."""
    address = get_worker().address
    work = _GIVEN[name, address]
    lock = _LOCKS.setdefault(address, threading.Lock()) if alone else threading.Lock()
    with lock:
        try:
            return Answer(work(item))
        except (ClusterError, DeviceError) as error:
            return Answer(error=type(error)(f"worker {address}: {error}"))
        except SegmenterError as error:
            return Answer(error=error)


def machine(dask_worker: Worker) -> tuple[int | None, int, int]:
    """Of a worker: bytes of its smallest card (None: no GPU), of its memory, and its number of threads."""
    limit = dask_worker.memory_manager.memory_limit or machine_memory()
    return smallest_card(), min(limit, machine_memory()), dask_worker.state.nthreads
