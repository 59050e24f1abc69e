"""Numbers of workers and of prefetched batches, by cores, devices and memory."""

from __future__ import annotations

from typing import Literal

from segmenter.base.machine import free_memory, usable_cores

Workers = int | Literal["auto"]

_FOR_A_CARD = 32
"""`auto`: workers for each GPU at the most. One made 79 tiles/s beside an H200, which took 1,542 with XLA
(studies/gpu_h200.md): 20; with frozen BatchNorm a card may take more (studies/four_gpus.md)."""
_MOST_THREADS = 8
"""More wait for Python's lock."""
_MORE = 8
"""Batches beyond one a worker at most: further ones wait for nothing but memory."""
_WORKER_BYTES = 320 * 2**20
"""Memory of a worker with its libraries (141 MiB), two tiles under way and GDAL's buffers."""
_SHARE = 4
"""A quarter of the free memory for batches, and one for workers: decoded copies are read from the rest."""


def workers_for(asked: Workers, gpus: int) -> int:
    """Return the number of worker processes of a training; 0: threads of this process are used.

    On CPUs `auto` gives none: devices and workers would compete for the same cores. With GPUs, all cores get
    one that memory and the cards' need allow, but for a core for each card, or half of the cores if there are
    few.
    """
    if asked != "auto":
        return asked
    if not gpus:
        return 0
    cores = usable_cores()
    fit = free_memory() // _SHARE // _WORKER_BYTES
    return max(1, min(cores - min(gpus, cores // 2), _FOR_A_CARD * gpus, fit))


def threads_for() -> int:
    """Return the number of threads that make batches without worker processes."""
    return min(max(2, usable_cores()), _MOST_THREADS)


def ahead_of(workers: int, batch_bytes: int) -> int:
    """Return how many batches may be in progress or waiting: one or two a worker, as memory allows."""
    wanted = min(2 * workers, _MORE + workers)
    return max(1, min(wanted, free_memory() // _SHARE // max(1, batch_bytes)))


def processes(workers: int) -> str:
    """Return a number of worker processes as text."""
    return f"{workers} worker process{'es' * (workers > 1)}"


def describe(workers: int, slots: int, batch_bytes: int) -> str:
    """Return a line on the workers of a training; empty text without workers."""
    if not workers:
        return ""
    ahead = f"{slots} batches of {batch_bytes / 2**20:,.1f} MiB ahead"
    line = f"input: {processes(workers)} on {usable_cores()} cores, {ahead}"
    if slots < min(2 * workers, _MORE + workers):
        line += f": a quarter of the {free_memory() / 2**30:.1f} GiB of free memory holds no more"
    return line
