"""Training loop on parameter servers: the chief plans, makes batches, validates and saves.

Each step of the plan is one whole batch on one worker; no worker waits for another. At the end of an epoch,
before a checkpoint and at a stop, the loop waits for steps in progress: as elsewhere, a checkpoint has the
state after the first n steps of the plan, each done once. Only a step whose worker is lost between its update
and its report is repeated and counts twice.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from segmenter.base.errors import DeviceError, TrainingError
from segmenter.base.threads import Prefetch
from segmenter.extras.parameter_servers.state import ServedState
from segmenter.extras.parameter_servers.step import make_served_step
from segmenter.runs.checkpoints import checkpoints
from segmenter.training.checks import in_memory
from segmenter.training.pipeline import epoch_dataset
from segmenter.training.progress import Meter
from segmenter.training.step import StepResult
from segmenter.training.trainer import PATIENCE, Trainer
from segmenter.training.workers_agree import Stop

if TYPE_CHECKING:
    from segmenter.extras.parameter_servers.strategy import ServerCluster

_EACH = 2
"""Steps under way for each worker: one is computed, the next one's batch is there."""
_LOOK = 0.5
"""Seconds between checks for lost members and for a stop, while no step ends."""
_SILENCE = 60.0
"""Seconds without the end of a step before a message names the missing members."""
_GRACE = 30.0
"""Seconds without the end of a step, after which a stop no longer waits for one."""
_TOLD = 10.0
"""Seconds in which a lost server has been noticed once a step has failed."""


class InFlight:
    """Steps given to a coordinator whose results are missing; a bounded number.

    Args:
        coordinator: TensorFlow's `ClusterCoordinator`.
        step: `tf.function` that a worker runs on a batch.
        most: most steps in progress; the chief keeps their batches, in case a worker is lost.
    """

    def __init__(self, coordinator: Any, step: Any, most: int) -> None:
        self._coordinator, self._step, self._most = coordinator, step, most
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._under_way: set[int] = set()

    @property
    def full(self) -> bool:
        """True if no further step may be given."""
        return len(self._under_way) >= self._most

    @property
    def under_way(self) -> list[int]:
        """Numbers of the unfinished steps."""
        return sorted(self._under_way)

    def give(self, number: int, batch: Any) -> None:
        """Give step `number` to the first free worker."""
        result = self._coordinator.schedule(self._step, args=tuple(batch))
        self._under_way.add(number)
        # A thread each, since TensorFlow has no way to wait for any of several; daemons, which a result that
        # never comes does not keep from ending with the program.
        threading.Thread(target=self._fetch, args=(number, result), daemon=True).start()

    def done(self, seconds: float) -> Any:
        """Return the result of the next step that ends; None if none ends within `seconds`.

        Raises:
            Exception: the error of a failed step.
        """
        try:
            number, result = self._done.get(timeout=seconds) if seconds else self._done.get_nowait()
        except queue.Empty:
            return None
        if isinstance(result, BaseException):
            raise result
        self._under_way.discard(number)
        return result

    def _fetch(self, number: int, result: Any) -> None:
        try:
            self._done.put((number, result.fetch()))
        except BaseException as error:  # whatever it is, the taking side must hear of it
            self._done.put((number, error))


@dataclass
class _Lateness:
    """Counts of other updates between a step's reading and its own update."""

    steps: int = 0
    total: int = 0
    most: int = 0

    def add(self, late: int) -> None:
        self.steps, self.total, self.most = self.steps + 1, self.total + late, max(self.most, late)

    def __str__(self) -> str:
        mean = self.total / max(self.steps, 1)
        return f"asynchrony: {mean:.2f} updates by others within a step on average, {self.most} at most"


@dataclass
class ServedTrainer(Trainer):
    """`Trainer` whose steps run on the workers of a `ServerCluster`."""

    _late: _Lateness = field(default_factory=_Lateness, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cluster = cast("ServerCluster", self.devices.kind)
        self._state = ServedState(
            *(self.learner.model, self.learner.optimiser, self.learner.averaged),
            self.run.recipe.training,
            self.steps,
            self.learner.pace,
            self._cluster.servers,
            self._cluster.workers,
        )
        self._ahead = False
        """True while the servers are ahead of the chief's copies."""

    def train(self) -> None:
        """Train to the last epoch, or to the validation that ends the training early.

        Raises:
            TrainingError: a parameter server is lost with its state; or as in `Trainer.train`.
            StoppedError: a signal came; the checkpoint of the finished steps is written.
        """
        try:
            self._state.push()
            super().train()
        except tf.errors.OpError as error:
            self._raise_if_lost(error, _TOLD)
            raise

    def _arrays(self) -> dict[str, Any]:
        self._pull()
        return super()._arrays()

    def _validate(self, bar: Any, stop: Stop) -> None:
        self._pull()
        super()._validate(bar, stop)

    def _pull(self) -> None:
        if self._ahead:
            self._state.pull()
            self._ahead = False

    def _use_step_of(self, epoch: int) -> bool:
        changed = super()._use_step_of(epoch)
        if changed:
            self._step = make_served_step(self.learner.parts, self._state)
        return changed

    # ----------------------------------------------------------------------------------- loop

    def _epoch(self, bar: Any, stop: Stop) -> None:
        epoch, begun = self.position.epoch, self.position
        self._use_step_of(epoch)
        rows, self._late = self._plan(epoch), _Lateness()
        meter = self._meter(rows, bar)
        batches = epoch_dataset(self.feed, rows, epoch, begun.step)
        feeder = Prefetch(iter(batches), 1, "feeder", given_up=lambda: bool(stop), patience=PATIENCE)
        flight = InFlight(self._cluster.coordinator, self._step, _EACH * self._cluster.workers)
        every = self.run.recipe.training.checkpoint_every
        self._ahead = True
        with closing(feeder):
            for number, batch in enumerate(self._fed(feeder), begun.step):
                flight.give(number, batch)
                self._take(flight, meter, feeder, stop, until=lambda: not flight.full)
                if stop:
                    break
                if (begun.done + number + 1 - begun.step) % every == 0:
                    self._finish(flight, meter, feeder, stop)
                    meter.close()  # what the log lacks cannot be had again after a resume
                    self.save()
                    self._ahead = True
            self._finish(flight, meter, feeder, stop)
        if flight.under_way:  # only where a stop came, and no worker answers
            first = flight.under_way[0]
            self._say(
                f"steps from {begun.done + 1 + first - begun.step} on were not all done, and will be again"
            )
            self.position = begun.after(first - begun.step)
        self._say(str(self._late) if self._late.steps else "")
        self._end_epoch(rows, meter, stop)

    def _finish(self, flight: InFlight, meter: Meter, feeder: Prefetch[Any], stop: Stop) -> None:
        """Wait for all steps in progress, and record their results."""
        self._take(flight, meter, feeder, stop, until=lambda: not flight.under_way, patient=True)

    def _take(
        self,
        flight: InFlight,
        meter: Meter,
        feeder: Prefetch[Any],
        stop: Stop,
        *,
        until: Any,
        patient: bool = False,
    ) -> None:
        """Record the results of finished steps, at least until a condition holds.

        Raises:
            TrainingError: a parameter server is lost.
        """
        heard, announced = time.monotonic(), False
        while True:
            enough = until()
            if enough and patient:
                return
            done = self._done(flight, 0 if enough else _LOOK)
            if done is not None:
                result, late = done
                self._late.add(int(late))
                meter.push(self.position.done + 1, _of_one(result), feeder.waited)
                self.position = self.position.after(1)
                heard, announced = time.monotonic(), False
                continue
            if enough:
                return
            self._raise_if_lost(None)
            silent = time.monotonic() - heard
            if stop and (not patient or silent > _GRACE):
                return
            if silent > _SILENCE and not announced:
                who = self._cluster.watch.lost_workers or "the workers"
                self._say(f"no step has ended for {silent:.0f} s: waiting for {who}; Ctrl-C stops and saves")
                announced = True

    def _done(self, flight: InFlight, seconds: float) -> Any:
        try:
            with in_memory(self.run.recipe, self.devices.replicas):
                return flight.done(seconds)
        except DeviceError:
            raise
        except Exception as error:
            self._raise_if_lost(error, _TOLD)
            raise

    def _raise_if_lost(self, error: Exception | None, patience: float = 0.0) -> None:
        """Raise TrainingError if a parameter server is gone, or disappears within some seconds."""
        watch, end = self._cluster.watch, time.monotonic() + patience
        while not (lost := watch.lost_servers) and time.monotonic() < end:
            time.sleep(_LOOK / 5)
        if lost:
            saved = list(checkpoints(self.run.path).values())
            since, how = (f" after {saved[-1].name}", "--resume") if saved else ("", "the same command")
            raise TrainingError(
                f"{lost} is lost, and with it what was trained{since}: start the cluster again, the chief "
                f"with {how}"
            ) from error


def _of_one(result: StepResult) -> StepResult:
    """Return a step's result in the form of a call of one step."""
    return StepResult(*(np.asarray(value)[None] for value in result))
