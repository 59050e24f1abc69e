"""Slots: batches side by side in memory that processes share.

The memory has no name: its file descriptor is handed to the workers. So nothing can be left of it, not even
where all are killed, and the size of /dev/shm, 64 MB in a Docker container, is no limit.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np

from segmenter.errors import TrainingError
from segmenter.machine import free_memory
from segmenter.tiles.batches import Batch

_ALIGNMENT = 64
"""Bytes; what NumPy and TensorFlow read fastest."""
_MIB = 2**20


@dataclass(frozen=True)
class BatchShape:
    """Shape of a batch: images (B, S, S, C) of a dtype, valid (B, S, S), class ids (B, S, S)."""

    batch: int
    tile: tuple[int, int, int]
    dtype: str

    @property
    def _sizes(self) -> tuple[int, int, int]:
        pixels = self.batch * self.tile[0] * self.tile[1]
        return pixels * self.tile[2] * np.dtype(self.dtype).itemsize, pixels, pixels

    @property
    def bytes(self) -> int:
        """Of a batch in a slot."""
        return sum(_aligned(size) for size in self._sizes)

    def empty(self, stacked: tuple[int, ...] = ()) -> Batch:
        """Arrays of so many batches, not filled."""
        shape = (*stacked, self.batch, *self.tile[:2])
        image = np.empty((*shape, self.tile[2]), self.dtype)
        return image, np.empty(shape, np.bool_), np.empty(shape, np.uint8)

    def views(self, memory: mmap.mmap, start: int) -> Batch:
        """Arrays of a batch that lies in memory from a byte on."""
        shape, arrays = (self.batch, *self.tile[:2]), []
        kinds = (((*shape, self.tile[2]), self.dtype), (shape, "bool"), (shape, "uint8"))
        for (full, dtype), size in zip(kinds, self._sizes, strict=True):
            arrays.append(np.ndarray(full, dtype, memory, start))
            start += _aligned(size)
        image, valid, label = arrays
        return image, valid, label


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Slots:
    """So many batches in shared memory.

    Attributes:
        descriptor: of the memory, for the workers to map.

    Args:
        descriptor: of slots that another process has made; None: make them.
    """

    def __init__(self, number: int, shape: BatchShape, descriptor: int | None = None) -> None:
        """Take the memory.

        Raises:
            TrainingError: there is not so much.
        """
        self.number, self.shape = number, shape
        size = number * shape.bytes
        self._owns = descriptor is None
        self.descriptor = _made(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)

    def batch(self, slot: int) -> Batch:
        """Arrays of a slot: (B, S, S, C), (B, S, S), (B, S, S)."""
        return self.shape.views(self._memory, slot * self.shape.bytes)

    def close(self) -> None:
        """Give the memory back, once no array of it is in use any more."""
        if self._owns:
            os.close(self.descriptor)
            self._owns = False


def _made(size: int) -> int:
    """A descriptor of so many bytes of memory; of a nameless file in the temporary folder, if need be."""
    if size > free_memory():  # first of all: taking more would end other programs, not this call
        raise _too_large(size)
    try:
        descriptor = os.memfd_create("batches")
    except OSError:  # an old kernel, or a sandbox without
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
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
        f"expected {size / _MIB:,.0f} MiB of memory for the batches that worker processes make ahead, "
        f"{free_memory() / _MIB:,.0f} MiB are free; lower training.input_workers (0: none), "
        "training.global_batch or tiles.size"
    )
