"""Worker processes: spawned, fed through their own sockets, writing to shared memory.

They are started as separate programs, so that neither TensorFlow nor GDAL is forked and the training script
is not imported again. They share no locks and no named resources: a killed worker leaves nothing behind and
blocks nobody.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from segmenter.base.errors import SegmenterError, TrainingError
from segmenter.base.terminal import say
from segmenter.config.recipe import Recipe
from segmenter.raster import quiet_gdal
from segmenter.tiles.batches import Batch, BatchLoader, DrawCounts
from segmenter.tiles.feeding.orders import BatchShape, FeedClosedError, Order, Slots, WorkerAnswer
from segmenter.tiles.feeding.sizes import ahead_of, describe, workers_for
from segmenter.tiles.transforms import libraries

_START = (
    "import sys; orders, life, *sys.path = sys.argv[1:]; "
    "from segmenter.tiles.feeding.processes import main; main(int(orders), int(life))"
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A worker is one thread: libraries' own would fight all the others for the cores."""
_POLL_SECONDS = 0.2
_PATIENCE = 5.0
"""Seconds that a worker may take to end before it is killed."""


@contextlib.contextmanager
def worker_processes(
    recipe: Recipe, bands: int, dtype: str, gpus: int, workers_of_training: int = 1
) -> Iterator[WorkerPool | None]:
    """Yield the recipe's worker processes while the context lasts; None if it has none.

    Args:
        bands, dtype: number of bands and pixel type of the scenes.
        gpus: number of GPUs used in training.
        workers_of_training: number of workers that share each batch.

    Raises:
        TrainingError: the processes, or memory for their batches, are not available.
    """
    workers = workers_for(recipe.training.input_workers, gpus)
    if not workers:
        yield None
        return
    size = recipe.tiles.size
    own = recipe.training.global_batch // workers_of_training
    shape = BatchShape(own, (size, size, bands), dtype)
    slots = ahead_of(workers, shape.bytes)
    say(describe(workers, slots, shape.bytes))
    with WorkerPool(workers, shape, slots) as pool:
        yield pool


@dataclass
class _Worker:
    """A process and its connection; `orders`: slot and order of each unanswered ticket."""

    number: int
    process: subprocess.Popen[bytes]
    line: Connection
    orders: dict[int, tuple[int, Order]] = field(default_factory=dict)


class WorkerPool:
    """Maker, as `feed.Threads`, of worker processes that write batches to slots of shared memory.

    They start and import their modules when the pool is created: before TensorFlow is imported, so that both
    run in parallel. `serve` sends them the loader.

    Args:
        workers: number of processes.
        slots: batches that may be in progress or waiting.
    """

    def __init__(self, workers: int, shape: BatchShape, slots: int) -> None:
        """Start the workers (TrainingError: memory or processes are not available)."""
        self._slots = Slots(slots, shape)
        self._free = list(range(slots))
        self._slot_of: dict[int, int] = {}
        self._made: dict[int, WorkerAnswer] = {}
        self._dropped: set[int] = set()
        self._drawn = DrawCounts()
        self._closed = False
        self._workers: list[_Worker] = []
        life, self._life = os.pipe()
        try:
            for number in range(workers):
                self._workers.append(_start_worker(number, life, self._slots.descriptor))
                self._send(self._workers[-1], pickle.dumps((slots, shape, self._slots.descriptor)))
        except OSError as error:
            self.close()
            raise TrainingError(
                "training.input_workers",
                f"{workers}: cannot start worker process {len(self._workers) + 1}: {error.strerror}",
                remedy="take fewer, or 0 for none",
            ) from None
        except BaseException:
            self.close()
            raise
        finally:
            os.close(life)

    @property
    def workers(self) -> int:
        """Number of processes."""
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids."""
        return [worker.process.pid for worker in self._workers]

    @property
    def slots(self) -> int:
        """Number of batches that may be in progress or waiting."""
        return self._slots.number

    def serve(self, loader: BatchLoader) -> None:
        """Make the workers use this loader from now on (TrainingError: a worker has died)."""
        content = pack_loader(loader)
        for worker in self._workers:
            self._send(worker, content)

    # ------------------------------------------------------------------------------------ as a maker

    @property
    def room(self) -> int:
        return len(self._free)

    @property
    def drawn(self) -> DrawCounts:
        return replace(self._drawn)

    def begin(self, order: Order) -> None:
        worker = min(self._workers, key=lambda one: len(one.orders))
        slot = self._free.pop()
        worker.orders[order.ticket] = slot, order
        self._slot_of[order.ticket] = slot
        self._send(worker, pickle.dumps((order, slot)))

    def result(self, ticket: int) -> Batch | None:
        answer = self._made.get(ticket)
        if answer is None:
            return None
        if answer.error is not None:
            raise answer.error
        return self._slots.batch(self._slot_of[ticket])

    def drop(self, ticket: int) -> None:
        if ticket in self._made:
            self._forget(ticket)
        else:
            self._dropped.add(ticket)

    def wait(self) -> None:
        if self._closed:
            raise FeedClosedError
        lines = {worker.line: worker for worker in self._workers}
        try:
            ready = wait(list(lines), _POLL_SECONDS)
        except (OSError, ValueError):
            if self._closed:  # meanwhile
                raise FeedClosedError from None
            raise
        for line in ready:
            assert isinstance(line, Connection)
            self._hear(lines[line])

    def check(self) -> None:
        if self._closed:
            return
        for worker in self._workers:
            if worker.process.poll() is not None:
                raise self._lost_worker(worker)

    def close(self) -> None:
        """End the workers, even in the middle of a batch."""
        if self._closed:
            return
        self._closed = True
        os.close(self._life)
        for worker in self._workers:
            try:
                worker.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:  # it waits for a disk that does not answer
                worker.process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(_PATIENCE)
            worker.line.close()
        self._slots.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------------- messages

    def _send(self, worker: _Worker, content: bytes) -> None:
        try:
            worker.line.send_bytes(content)
        except OSError:
            raise self._lost_worker(worker) from None

    def _hear(self, worker: _Worker) -> None:
        try:
            answer: WorkerAnswer = worker.line.recv()
        except (EOFError, OSError):
            raise self._lost_worker(worker) from None
        order = worker.orders.pop(answer.ticket)[1]
        if answer.drawn is not None:
            self._drawn.add(answer.drawn)
        error = answer.error and self._error_of(answer, worker, order)
        self._made[answer.ticket] = WorkerAnswer(answer.ticket, answer.drawn, error)
        if answer.ticket in self._dropped:
            self._dropped.discard(answer.ticket)
            self._forget(answer.ticket)

    def _forget(self, ticket: int) -> None:
        del self._made[ticket]
        self._free.append(self._slot_of.pop(ticket))

    def _error_of(self, answer: WorkerAnswer, worker: _Worker, order: Order) -> BaseException:
        """Return a worker's error: a user's error unchanged, a defect of the program with its traceback."""
        if isinstance(answer.error, SegmenterError):
            return answer.error
        if isinstance(answer.error, MemoryError):
            return TrainingError(
                f"{self._name(worker)} ran out of memory while it made {order.title}; {_LESS_MEMORY}"
            )
        return RuntimeError(f"{self._name(worker)} failed at {order.title}:\n{answer.traceback}")

    def _lost_worker(self, worker: _Worker) -> Exception:
        if self._closed:
            return FeedClosedError()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(_PATIENCE)
        orders = sorted(worker.orders.items())
        doing = f"while it made {orders[0][1][1].title}" if orders else "while it waited for work"
        return TrainingError(f"{self._name(worker)} {_end_of(worker.process.returncode)} {doing}; {_GO_ON}")

    def _name(self, worker: _Worker) -> str:
        return f"input worker {worker.number + 1} of {len(self._workers)} (process {worker.process.pid})"


_LESS_MEMORY = "lower training.input_workers, training.global_batch or tiles.size"
_WITHOUT = "training.input_workers: 0 does without workers"
_GO_ON = "go on with the same command and --resume"


def _end_of(code: int | None) -> str:
    if code is None:
        return "no longer answers"
    if code == -signal.SIGKILL:
        return f"was killed (signal 9: by somebody, or for want of memory: then {_LESS_MEMORY})"
    if code < 0:
        return f"was ended by signal {-code} ({signal.strsignal(-code)}; {_WITHOUT})"
    return f"ended with exit code {code} (what it said stands above; {_WITHOUT})"


def _start_worker(number: int, life: int, memory: int) -> _Worker:
    """Start a worker process with our module search path; it inherits only the named descriptors."""
    ours, theirs = Pipe()
    try:
        command = [sys.executable, "-c", _START, str(theirs.fileno()), str(life), *sys.path]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), life, memory),
            env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Worker(number, process, ours)


# ------------------------------------------------------------------------------------- a loader as bytes

_Lock = type(threading.Lock())


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Lock):
            return threading.Lock, ()
        if isinstance(obj, threading.local):  # handles of files, and what else a thread has of its own
            return threading.local, ()
        return NotImplemented


def pack_loader(loader: BatchLoader) -> bytes:
    """Return a loader as bytes, for a `Connection` to one of our processes.

    Locks, open files and thread-local data are left out. Unpickling searches, decodes and prints nothing: the
    constructors ran once, in the sending process.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(loader)
    return buffer.getvalue()


# ---------------------------------------------------------------------------------------- in a worker process


def main(orders: int, life: int) -> None:
    """Answer orders until they end; the arguments are file descriptors.

    TensorFlow is never imported here. Only the main process handles Ctrl-C and SIGTERM: it finishes its step,
    and the workers end with it, however it ends, since the pipe that it keeps open then breaks.

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


def _answer(loader: BatchLoader, order: Order, slots: Slots, slot: int) -> WorkerAnswer:
    before = loader.drawn
    try:
        loader.load(order.plan(), order.epoch, order.step, into=slots.batch(slot))
    except SegmenterError as error:
        return WorkerAnswer(order.ticket, error=_sendable(error))
    except Exception as error:
        if _is_of_memory(error):
            return WorkerAnswer(order.ticket, error=MemoryError())
        return WorkerAnswer(order.ticket, error=_sendable(error), traceback=traceback.format_exc())
    return WorkerAnswer(order.ticket, drawn=loader.drawn.since(before))


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
