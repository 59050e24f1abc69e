"""Workers of a training over several processes: start, messages, end.

TensorFlow's coordination service, which worker 0 runs, does all this: it knows the live workers by
heartbeats, stores texts for all, and ends the others' collectives if a worker reports an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from segmenter.base.errors import SegmenterError, WorkerError, plain, shorten
from segmenter.base.terminal import say
from segmenter.config.devices import DistributionConfig
from segmenter.devices.machines.cluster import Cluster, listening, meet

GO_ON = "go on with the same command and --resume, on as many workers or others"
_POLL_MS = 1000
_LINGER = 1.5
"""Seconds that a failed worker stays, so that the others hear of it from itself, and not of its silence."""
_GRACE = 15.0
"""Seconds that a program, once it is known that a worker hangs, has to end by itself."""
_JOIN = 120
"""Seconds that TensorFlow has to join workers that are all there."""
_INTERNAL = 13
_FAILED = "failed"
_TASK = re.compile(r"/job:\w+(?:/replica:\d+)?/task:(\d+)")


class WorkerProgress(NamedTuple):
    """Progress of a worker, comparable between workers, since all do the same in the same order."""

    steps: int
    exchanges: int
    stage: int


STAGES = ("waits for its batches", "computes a step", "works on its share", "waits for the others")
BATCHES, STEP, SHARE, OTHERS = range(len(STAGES))


class Workers:
    """Workers that train together; this base class: one process alone.

    Attributes:
        index: index of this worker, from 0.
    """

    index, count = 0, 1

    @property
    def chief(self) -> bool:
        """True if this worker writes the run."""
        return self.index == 0

    def name(self, index: int | None = None) -> str:
        """Return a worker's name for messages: this worker's, or that of `index`."""
        return f"worker {self.index if index is None else index}"

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all workers, in their order; all workers must call this.

        Raises:
            WorkerError: a worker does not call it.
        """
        return [text]

    def mark(self, stage: int, steps: int | None = None) -> None:
        """Record that a stage of `STAGES` begins, after a number of optimiser steps (None: unchanged)."""

    @contextmanager
    def shared_end(self) -> Iterator[None]:
        """End all workers if one ends within the context; each prints a line that names it."""
        yield


class ClusterWorkers(Workers):
    """Workers in several processes, made by `start_workers`."""

    def __init__(self, cluster: Cluster, config: DistributionConfig) -> None:
        self.cluster, self.index, self.count = cluster, cluster.index, cluster.workers
        self._config = config
        self._exchanges = 0
        self._place, self._since = WorkerProgress(0, 0, SHARE), time.monotonic()
        self._ended = threading.Event()

    def name(self, index: int | None = None) -> str:
        return self.cluster.name(index)

    def mark(self, stage: int, steps: int | None = None) -> None:
        done = self._place.steps if steps is None else steps
        self._place, self._since = WorkerProgress(done, self._exchanges, stage), time.monotonic()

    def exchange(self, text: str) -> list[str]:
        self._exchanges += 1
        self.mark(OTHERS)
        number = self._exchanges
        self._put(f"said/{number}/{self.index}", text)
        texts = [text if i == self.index else self._await(f"said/{number}/{i}") for i in range(self.count)]
        if number > 1:  # who has come here has read all that was said before
            _service().delete_config_key_value(f"said/{number - 1}/{self.index}")
        self.mark(SHARE)
        return texts

    @contextmanager
    def shared_end(self) -> Iterator[None]:
        import tensorflow as tf

        watch = threading.Thread(target=self._watch, name="watch", daemon=True)
        watch.start()
        try:
            yield
            self.exchange("end")  # the chief's service must not go before all are done
        except tf.errors.OpError as error:
            raise self._failure_of(error) from None
        except WorkerError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            line = str(error) if isinstance(error, SegmenterError) else type(error).__name__
            self._fail(line or type(error).__name__)
            raise
        finally:
            self._ended.set()

    # ------------------------------------------------------------------------------------ failures

    def _fail(self, line: str) -> None:
        """Tell the other workers that this one ends, and why."""
        self._report(self.index, f"ended: {line}")
        time.sleep(_LINGER)

    def _report(self, index: int, what: str) -> None:
        with contextlib.suppress(Exception):  # the first who says it is heard; the service may be gone
            self._put(_FAILED, json.dumps([index, what]))
        with contextlib.suppress(Exception):
            _service().report_error_to_cluster(_INTERNAL, plain(shorten(what)))

    def _failure_of(self, error: Exception) -> Exception:
        """Return the error for the worker that has failed; `error` itself if no other worker caused it."""
        return self._failure() or self._said_by_tensorflow(str(error)) or error

    def _failure(self) -> WorkerError | None:
        with contextlib.suppress(Exception):
            index, what = json.loads(_service().get_config_key_value(_FAILED, 1))
            return self._line(index, what)
        return None

    def _said_by_tensorflow(self, text: str) -> WorkerError | None:
        """Return the error for a worker that TensorFlow reports as lost; None if it reports none."""
        silent = text.partition("stopped sending heartbeats")[2]
        numbers = [int(number) for number in _TASK.findall(silent or text)]
        others = [number for number in numbers if number != self.index]
        if not others:
            return None
        why = "no sign of life for" if silent else "its connection broke, or it was silent for"
        return self._line(others[0], f"was lost: {why} {self._config.heartbeat_timeout} s")

    def _line(self, index: int, what: str) -> WorkerError:
        return WorkerError(f"{self.name(index)} {what}", remedy=f"all workers end, {GO_ON}")

    # -------------------------------------------------------------------------------------- hanging

    def _watch(self) -> None:
        """Abort a stalled training and report the slowest worker.

        Each worker reports its progress regularly. A Python thread cannot raise an error in another, which
        may be stuck in a system call, so this ends the program.
        """
        limit = self._config.progress_timeout
        heard: dict[int, tuple[str, float]] = {}
        number = 0
        while not self._ended.wait(min(limit / 5, 10.0)):
            number, idle = number + 1, time.monotonic() - self._since
            with contextlib.suppress(Exception):  # where the service is gone, heartbeats tell of it
                with contextlib.suppress(Exception):
                    _service().delete_config_key_value(f"at/{self.index}")
                self._put(f"at/{self.index}", json.dumps([number, idle, *self._place]))
            if idle < limit:
                heard.clear()
                continue
            with contextlib.suppress(Exception):
                hanging = self._least_far(heard, limit)
                if hanging is not None:
                    self._end_for(hanging)

    def _least_far(self, heard: dict[int, tuple[str, float]], limit: float) -> tuple[int, str] | None:
        """Return the worker that all others wait for and its stage; None while some worker makes progress."""
        places = {self.index: self._place}
        for i in range(self.count):
            if i == self.index:
                continue
            with contextlib.suppress(Exception):
                text = _service().get_config_key_value(f"at/{i}", 200)
                if heard.get(i, ("", 0.0))[0] != text:
                    heard[i] = text, time.monotonic()
            text, when = heard.setdefault(i, ("", time.monotonic()))
            if time.monotonic() - when > limit:
                return i, f"hangs: it says nothing for {limit} s"
            if not text or json.loads(text)[1] < limit:
                return None
            places[i] = WorkerProgress(*json.loads(text)[2:])
        least = min(places, key=lambda i: (places[i], i))
        doing = f"{STAGES[places[least].stage]} after step {places[least].steps}"
        return least, f"hangs: no progress for {limit} s while it {doing}"

    def _end_for(self, hanging: tuple[int, str]) -> None:
        index, what = hanging
        self._report(index, what)
        if not self._ended.wait(_GRACE):
            say(f"error: {self._line(index, what)}", aside=True)
            os._exit(WorkerError.exit_code)

    # -------------------------------------------------------------------------------------- messages

    def _put(self, key: str, text: str) -> None:
        _service().set_config_key_value(key, text)

    def _await(self, key: str) -> str:
        import tensorflow as tf

        number = int(key.rpartition("/")[2])
        while True:
            try:
                return str(_service().get_config_key_value(key, _POLL_MS))
            except tf.errors.DeadlineExceededError:
                if (failure := self._failure()) is not None:
                    raise failure from None
                if _service().get_task_states([("worker", self.count)])[number] is not None:
                    seconds = self._config.heartbeat_timeout
                    raise self._line(number, f"was lost: no sign of life for {seconds} s") from None


def _service() -> Any:
    """Return TensorFlow's private context, which talks to the coordination service; no public API does."""
    from tensorflow.python.eager import context

    return context.context()


# ------------------------------------------------------------------------------------------ the start


def start_workers(cluster: Cluster, config: DistributionConfig, *, gpus: bool) -> tuple[Any, ClusterWorkers]:
    """Return the strategy over all workers once all are present; call before TensorFlow starts its devices.

    Sums use NCCL between GPUs, each of which must be a separate card, and gRPC rings between CPUs.

    Raises:
        DeviceError: the port is in use.
        WorkerError: not all workers connected in time.
    """
    import tensorflow as tf

    say(
        f"{cluster.name()} of {cluster.workers}, by {cluster.source}; the chief is {cluster.name(0)}: "
        f"waiting for all, at most {config.start_timeout} s",
        aside=True,
    )
    meet(cluster, config.start_timeout)
    listening(cluster).close()
    os.environ["TF_CONFIG"] = cluster.tf_config()
    _configure(cluster, config)
    kinds = tf.distribute.experimental.CommunicationImplementation
    kind = kinds.NCCL if gpus and config.logical_gpus is None else kinds.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=kind)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (tf.errors.OpError, RuntimeError) as error:
        what = shorten(" ".join(str(error).split()), 160)
        raise WorkerError(cluster.name(), f"TensorFlow cannot join the workers: {what}") from None
    return strategy, ClusterWorkers(cluster, config)


def _configure(cluster: Cluster, config: DistributionConfig) -> None:
    """Configure the coordination service as the strategy would, except for its time limits."""
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2 as proto

    _service().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=_JOIN * 1000,
        heartbeat_timeout_in_ms=config.heartbeat_timeout * 1000,
        shutdown_barrier_timeout_in_ms=5000,
        coordinated_jobs=[proto.CoordinatedJob(name="worker", num_tasks=cluster.workers)],
    )
