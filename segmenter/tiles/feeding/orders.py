"""Orders of batches and answers to them, and the slots in shared memory that they are written to.

The memory has no name: workers get its file descriptor. So nothing can be left over, even if all processes
are killed, and the size of /dev/shm, 64 MB in a Docker container, is no limit.
"""

from __future__ import annotations

import errno
import itertools
import math
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import TrainingError
from segmenter.base.machine import free_memory
from segmenter.sampling import Plan
from segmenter.sampling.quotas import Part, Quota
from segmenter.tiles.batches import Batch, DrawCounts

_ALIGNMENT = 64
"""Bytes; NumPy and TensorFlow read such arrays fastest, and TensorFlow copies others."""
_MIB = 2**20


@dataclass(frozen=True)
class BatchShape:
    """Shape of a batch (`tiles.batches.Batch`), and dtype of its images."""

    batch: int
    tile: tuple[int, int, int]
    dtype: str

    @property
    def arrays(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each array."""
        plane = (self.batch, *self.tile[:2])
        image = ((*plane, self.tile[2]), self.dtype)
        return image, (plane, "bool"), (plane, "uint8"), ((self.batch,), "int64")

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.arrays]

    @property
    def bytes(self) -> int:
        """Bytes of a batch in a slot."""
        return sum(_align(size) for size in self._sizes)

    def empty(self, stacked: tuple[int, ...] = ()) -> Batch:
        """Return uninitialised arrays for stacked batches, which TensorFlow can use without a copy."""
        image, valid, label, slot = (_empty((*stacked, *shape), dtype) for shape, dtype in self.arrays)
        return image, valid, label, slot

    def views(self, memory: mmap.mmap, start: int) -> Batch:
        """Return the arrays of a batch stored in memory from byte `start` on."""
        starts = itertools.accumulate(map(_align, self._sizes), initial=start)
        image, valid, label, slot = (
            np.ndarray(shape, dtype, memory, first)
            for (shape, dtype), first in zip(self.arrays, starts, strict=False)
        )
        return image, valid, label, slot


def _empty(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return an uninitialised array that begins at a multiple of the alignment."""
    memory = np.empty(math.prod(shape) * np.dtype(dtype).itemsize + _ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, memory, -memory.ctypes.data % _ALIGNMENT)


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Slots:
    """Batches stored one after the other in shared memory.

    Attributes:
        descriptor: file descriptor of the memory, for workers to map.

    Args:
        descriptor: descriptor of existing slots; None: create them.
    """

    def __init__(self, number: int, shape: BatchShape, descriptor: int | None = None) -> None:
        """Allocate or map the memory for a number of batches."""
        self.number, self.shape = number, shape
        size = number * shape.bytes
        self._owns = descriptor is None
        self.descriptor = _make_memory(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)

    def batch(self, slot: int) -> Batch:
        """Return the arrays of a slot."""
        return self.shape.views(self._memory, slot * self.shape.bytes)

    def close(self) -> None:
        """Release the memory, once none of its arrays is in use."""
        if self._owns:
            os.close(self.descriptor)
            self._owns = False


def _make_memory(size: int) -> int:
    """Return a descriptor of `size` bytes of memory."""
    if size > free_memory():  # first of all: taking more would end other programs, not this call
        raise _too_large(size)
    descriptor = os.memfd_create("batches")
    try:
        os.posix_fallocate(descriptor, 0, size)  # here, where it is an error: later it would be a signal
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
            raise
        raise _too_large(size) from None
    return descriptor


def _too_large(size: int) -> TrainingError:
    return TrainingError(
        expected=f"{size / _MIB:,.0f} MiB of memory for the batches that worker processes make ahead, "
        f"{free_memory() / _MIB:,.0f} MiB are free",
        remedy="lower training.input_workers (0: none), training.global_batch or tiles.size",
    )


_TICKETS = itertools.count()


class FeedClosedError(Exception):
    """A batch was awaited while the feed was closed: the training has ended."""


@dataclass(frozen=True)
class Order:
    """One step of an epoch, as sent to a worker: some hundred bytes, whatever the plan's length.

    Attributes:
        ticket: number of the order.
        row_B, wanted_B, blocks, promised, parts, quotas: the step's part of the plan, as in `Plan`.
    """

    ticket: int
    epoch: int
    step: int
    row_B: NDArray[np.int64]
    wanted_B: NDArray[np.int64] | None
    blocks: int
    promised: tuple[int, ...]
    parts: tuple[Part, ...]
    quotas: tuple[Quota, ...]

    @classmethod
    def of(cls, plan: Plan, epoch: int, step: int) -> Order:
        """Return the order of a plan's step, with a new ticket."""
        wanted_B = None if plan.wanted_SB is None else plan.wanted_SB[step].copy()
        row_B = plan.rows_SB[step].copy()
        promises = (plan.blocks, plan.promised, plan.parts, plan.quotas)
        return cls(next(_TICKETS), epoch, step, row_B, wanted_B, *promises)

    def plan(self) -> Plan:
        """Return a plan for `BatchLoader.load` in which each step, up to this one, has this step's row."""
        rows_SB = np.broadcast_to(self.row_B, (self.step + 1, len(self.row_B)))
        wanted_SB = None if self.wanted_B is None else np.broadcast_to(self.wanted_B, rows_SB.shape)
        return Plan(
            rows_SB=rows_SB,
            coverage_repeats=0,
            repeats_bound=0,
            proven=False,
            fillers=0,
            promised=self.promised,
            best_effort=(),
            blocks=self.blocks,
            parts=self.parts,
            quotas=self.quotas,
            wanted_SB=wanted_SB,
        )

    @property
    def title(self) -> str:
        """Step and epoch for messages, counted from 1."""
        return f"step {self.step + 1} of epoch {self.epoch + 1}"


@dataclass(frozen=True)
class WorkerAnswer:
    """A worker's answer to an order.

    Attributes:
        drawn: counts of this batch's draws; None if it failed.
        error: the exception; None if the batch was made.
        traceback: text of the traceback if the error is a defect of the program; else empty.
    """

    ticket: int
    drawn: DrawCounts | None = None
    error: BaseException | None = None
    traceback: str = ""
