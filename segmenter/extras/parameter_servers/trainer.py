"""Training loop on parameter servers: the chief plans, makes batches, validates and saves.

Each step of the plan is one whole batch on one worker; no worker waits for another. At the end of an epoch,
before a checkpoint and at a stop, the loop waits for steps in progress: as elsewhere, a checkpoint has the
state after the first n steps of the plan, each done once. Only a step whose worker is lost between its update
and its report is repeated and counts twice.

Workers run steps without waiting for each other. A step's gradient is exactly that of its batch at the
weights that it read, which other workers may have updated since (Dean et al., Large scale distributed deep
networks, NIPS 2012, section 4.1). The result includes the number of these updates.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from segmenter.base.errors import DeviceError, TrainingError
from segmenter.base.threads import Prefetch
from segmenter.extras.parameter_servers.state import ServedState, Shard
from segmenter.runs.checkpoints import checkpoints
from segmenter.training.checks import in_memory
from segmenter.training.optimiser import as_vector, numbers_in
from segmenter.training.progress import Meter
from segmenter.training.step import StepParts, StepResult, count_held, micro_batch
from segmenter.training.trainer import PATIENCE, Trainer, epoch_dataset
from segmenter.training.workers_agree import Stop

if TYPE_CHECKING:
    from segmenter.extras.parameter_servers.cluster import ServerCluster


class _Read(NamedTuple):
    """Values read from the servers, by path, with the update count, and the loss scale or None."""

    values: dict[str, Any]
    updates: Any
    scale: Any


def make_served_step(parts: StepParts, state: ServedState) -> Any:
    """Return a compiled function for workers, from a batch to (`StepResult`, other updates meanwhile).

    The batch is a whole global batch, in the order of its slots. The function is for the weights that
    currently train (`set_trained`).
    """

    @tf.function(reduce_retracing=True, autograph=False)
    def step(image: Any, valid: Any, label: Any, slot: Any = None) -> Any:
        read = _read(state)
        loss, gradient, statistics = _compute_gradient(parts, state, read, image, valid, label)
        held = tf.cast(count_held(parts, label), tf.int32)
        finite = None
        if read.scale is not None:
            finite = tf.reduce_all(tf.math.is_finite(gradient))
            gradient /= tf.cast(read.scale, gradient.dtype)
        gradient = parts.optimiser.clip(gradient)
        late = _update_servers(parts, state, read, gradient, statistics, finite)
        applied = tf.constant(True) if finite is None else finite
        scale = tf.ones(())
        if state.loss_scale is not None:
            with tf.control_dependencies([late]):
                scale = tf.identity(state.loss_scale.scale.value)
        return StepResult(tf.cast(loss, tf.float32), held, applied, scale), late

    return step


def _read(state: ServedState) -> _Read:
    """Read weights and statistics of all servers."""
    values: dict[str, Any] = {}
    updates, scale = None, None
    for shard in state.shards:
        groups, counter = (
            _by_type(shard.kept),
            [] if shard.optimiser is None else [shard.optimiser.iterations],
        )
        with_scale = shard is state.shards[0] and state.loss_scale is not None
        more = [*counter, *([state.loss_scale.scale] if with_scale and state.loss_scale else [])]
        with tf.device(shard.device):
            tensors = [*(as_vector(group) for group in groups), *(tf.identity(v.value) for v in more)]
        for group, vector in zip(groups, tensors, strict=False):
            # As one tensor over the network, and only then in parts.
            parts = tf.split(tf.identity(vector), [numbers_in([v]) for v in group])
            values |= {v.path: tf.reshape(p, v.shape) for v, p in zip(group, parts, strict=True)}
        if shard.optimiser is state.counter:
            updates = tf.identity(tensors[len(groups)])
        if with_scale:
            scale = tf.identity(tensors[-1])
    return _Read(values, updates, scale)


def _compute_gradient(parts: StepParts, state: ServedState, read: _Read, *batch: Any) -> Any:
    """Return (loss, scaled gradient in the servers' order, statistics by path) of a batch."""
    model, loss_of = parts.model, parts.loss
    dtype = model.outputs[0].dtype
    trained = [read.values[v.path] for v in model.trainable_variables]
    others = [v.path for v in model.non_trainable_variables]
    followed = [path for path in others if path in state.statistics]

    def micro(image: Any, valid: Any, label: Any, now: Sequence[Any], *weight: Any) -> Any:
        known = read.values | dict(zip(followed, now, strict=True))
        pixels = parts.normalisation.apply(image, valid, model.inputs[0].dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            logits, after = model.stateless_call(
                trained, [known[path] for path in others], pixels, training=True
            )
            loss = loss_of(label, logits, *weight)
            scaled = loss if read.scale is None else loss * tf.cast(read.scale, loss.dtype)
        new = dict(zip(others, after, strict=True))
        gradient = _in_order(model, state, tape.gradient(scaled, trained))
        return loss, gradient, [new[path] for path in followed]

    now = [read.values[path] for path in followed]
    if parts.accumulate == 1:
        loss, gradient, now = micro(*batch, now)
        return loss, gradient, dict(zip(followed, now, strict=True))
    weight = [loss_of.valid_weight(batch[2], dtype)] if loss_of.needs_valid_weight else []

    def body(i: Any, loss: Any, gradient: Any, *now: Any) -> Any:
        own = (micro_batch(tensor, parts.accumulate, i) for tensor in batch)
        more, further, then = micro(*own, now, *weight)
        return i + 1, loss + more, gradient + further, *then

    start = (tf.constant(0), tf.zeros((), dtype), tf.zeros((numbers_in(trained),), trained[0].dtype), *now)
    done = tf.while_loop(lambda i, *_: i < parts.accumulate, body, start, parallel_iterations=1)
    return done[1], done[2], dict(zip(followed, done[3:], strict=True))


def _in_order(model: Any, state: ServedState, gradients: Sequence[Any]) -> Any:
    """Concatenate gradients to one vector, by server and in the order of each server's optimiser."""
    of = {v.path: g for v, g in zip(model.trainable_variables, gradients, strict=True)}
    vectors = []
    for shard in state.shards:
        trained = shard.among(model.trainable_variables)
        if shard.optimiser is not None and trained:
            vectors.append(shard.optimiser.flat([of[v.path] for v in trained], trained))
    return as_vector(vectors)


def _update_servers(
    parts: StepParts, state: ServedState, read: _Read, gradient: Any, statistics: dict[str, Any], finite: Any
) -> Any:
    """Apply an update on each server; return the number of other updates since the reading."""
    trained = [shard.among(parts.model.trainable_variables) for shard in state.shards]
    own_parts = tf.split(gradient, [numbers_in(own) for own in trained])
    late = None
    for shard, own, part in zip(state.shards, trained, own_parts, strict=True):
        kept = [v.path for v in shard.kept if v.path in statistics]
        with tf.device(shard.device):
            on_server = tf.identity(part)
            changes = {p: (tf.identity(read.values[p]), tf.identity(statistics[p])) for p in kept}
            ok = None if finite is None else tf.identity(finite)
            # All of it is there before any is applied: a worker that is lost while it sends changes nothing.
            with tf.control_dependencies([on_server, *(t for pair in changes.values() for t in pair)]):
                before = None if shard.optimiser is None else tf.identity(shard.optimiser.iterations.value)
                _update_shard(shard, own, on_server, ok)
                follow(shard, changes, shared=state.shared)
                if shard.averaged is not None:
                    _if(ok, shard.averaged.take_in)
                if shard is state.shards[0] and state.loss_scale is not None:
                    state.loss_scale.follow(ok)
        if shard.optimiser is state.counter:
            late = tf.identity(before) - read.updates
    return late


def _update_shard(shard: Shard, trained: Sequence[Any], gradient: Any, ok: Any) -> None:
    """Update a server's variables if the gradient is finite (`ok`; None without a loss scale)."""

    def apply() -> None:
        if shard.optimiser is None:
            return
        if trained:
            shard.optimiser.apply(gradient, trained)
        else:  # frozen for now: its learning rate goes on with that of the others
            shard.optimiser.count()

    _if(ok, apply)


def _if(ok: Any, call: Callable[[], None]) -> None:
    """Call a function if `ok`, a boolean scalar, is true; None: always."""
    if ok is None:
        call()
    else:
        tf.cond(ok, call, lambda: None)


def follow(shard: Shard, changes: dict[str, tuple[Any, Any]], *, shared: bool) -> None:
    """Apply a step's changes of the statistics that it read; `changes`: (before, after) by path.

    Changes of several workers are added, so that none is lost.
    """
    for v in shard.kept:
        if v.path in changes:
            before, after = changes[v.path]
            if shared:
                v.value.assign_add(after - before)
            else:
                v.assign(after)


def _by_type(variables: Sequence[Any]) -> list[list[Any]]:
    groups: dict[str, list[Any]] = {}
    for v in variables:
        groups.setdefault(v.dtype, []).append(v)
    return list(groups.values())


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
            for number, batch in enumerate(self._feed(feeder), begun.step):
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
            done = self._next_result(flight, 0 if enough else _LOOK)
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

    def _next_result(self, flight: InFlight, seconds: float) -> Any:
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
