"""Worker process: makes the batches that it is asked for, into shared memory, until nobody asks any more.

It never imports TensorFlow. Ctrl-C and SIGTERM are the main process's to hear: it finishes its step, and
the workers end with it. They do so however it ends, since the pipe that it holds open breaks then.
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
    """Serve; the arguments are file descriptors.

    Args:
        orders: both ways: the slots, then loaders and orders; answers.
        life: a pipe that breaks when the main process is gone.
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
    """End at once, in the middle of a batch too, when the pipe breaks: nobody is left to take it."""
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
    """Make a batch into its slot."""
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
    """Return True if memory is exhausted: OpenCV has an error of its own for that."""
    cv2 = libraries()[1]
    return isinstance(error, MemoryError) or (
        isinstance(error, cv2.error) and getattr(error, "code", 0) == cv2.Error.StsNoMem
    )


def _sendable(error: Exception) -> Exception:
    """Return the error, or its text if it holds what cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
