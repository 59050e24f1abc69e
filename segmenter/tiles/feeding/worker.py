"""Worker process: writes ordered batches to shared memory until the orders end.

It never imports TensorFlow. Only the main process handles Ctrl-C and SIGTERM: it finishes its step, and the
workers end with it. They end however it ends, since the pipe that it keeps open then breaks.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from multiprocessing.connection import Connection

from segmenter.base.errors import SegmenterError
from segmenter.raster import quiet_gdal
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.feeding.orders import Answer, Order
from segmenter.tiles.feeding.slots import Slots
from segmenter.tiles.transforms import libraries


def main(orders: int, life: int) -> None:
    """Answer orders until they end; the arguments are file descriptors.

    Args:
        orders: two-way socket: receives the slots, then loaders and orders; sends answers.
        life: pipe that breaks when the main process ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    quiet_gdal()
    libraries()  # while the main process is busy with TensorFlow
    try:
        _serve(Connection(orders))
    except (EOFError, ConnectionError):
        os._exit(0)


def _end_with(life: int) -> None:
    """End at once when the pipe breaks, even in the middle of a batch: nobody waits for it any more."""
    os.read(life, 1)
    os._exit(0)


def _serve(connection: Connection) -> None:
    number, shape, descriptor = connection.recv()
    slots = Slots(number, shape, descriptor)
    loader: BatchLoader = connection.recv()
    while True:
        message = connection.recv()
        if isinstance(message, BatchLoader):
            loader = message
        else:
            order, slot = message
            connection.send(_answer(loader, order, slots, slot))


def _answer(loader: BatchLoader, order: Order, slots: Slots, slot: int) -> Answer:
    """Write a batch to its slot; return the answer."""
    before = loader.drawn
    try:
        loader.load(order.plan(), order.epoch, order.step, into=slots.batch(slot))
    except SegmenterError as error:
        return Answer(order.ticket, error=_sendable(error))
    except Exception as error:
        if _is_of_memory(error):
            return Answer(order.ticket, error=MemoryError())
        return Answer(order.ticket, error=_sendable(error), traceback=traceback.format_exc())
    return Answer(order.ticket, drawn=loader.drawn.since(before))


def _is_of_memory(error: Exception) -> bool:
    """Return True if an error means exhausted memory; OpenCV raises its own class for that."""
    cv2 = libraries()[1]
    return isinstance(error, MemoryError) or (
        isinstance(error, cv2.error) and getattr(error, "code", 0) == cv2.Error.StsNoMem
    )


def _sendable(error: Exception) -> Exception:
    """Return the error, or one with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
