"""A batch loader as bytes, for a worker process: without locks, open files and what belongs to one thread.

Nothing is looked for, decoded or announced where it is taken out again: what its objects' constructors do is
done once, by the process that sends it.
"""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any

import numpy as np

from segmenter.tiles.batches import BatchLoader

_Lock = type(threading.Lock())


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Lock):
            return threading.Lock, ()
        if isinstance(obj, threading.local):  # handles of files, and what else a thread has of its own
            return threading.local, ()
        if isinstance(obj, np.memmap):  # else all of its pixels would be sent
            if isinstance(obj.base, np.ndarray):
                raise TypeError("expected a whole mapped array to send, got a part of one")
            return np.memmap, (obj.filename, obj.dtype, obj.mode, obj.offset, obj.shape)
        return NotImplemented


def packed(loader: BatchLoader) -> bytes:
    """A loader as bytes, for a `Connection` to a process of our own."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(loader)
    return buffer.getvalue()
