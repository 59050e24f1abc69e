"""Training loop: epochs of planned steps, validation on whole scenes, checkpoints, logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from segmenter.base.bars import Bar
from segmenter.base.errors import TrainingError
from segmenter.base.threads import Prefetch, told_while
from segmenter.devices.machines.workers import BATCHES, SHARE, STEP, Workers
from segmenter.devices.strategy import Devices, compiling
from segmenter.evaluation.bootstrap import miou_interval
from segmenter.evaluation.by_gsd import GsdConfusions, gsd_table
from segmenter.evaluation.scores import ConfusionMatrix, Scores, percent, score_of, title_of
from segmenter.grid.scenes import Dataset
from segmenter.runs.checkpoints import META, save_checkpoint
from segmenter.runs.records import save_best
from segmenter.runs.resume import Checkpoint, Position, facts_array
from segmenter.runs.run import Run
from segmenter.sampling import Plan
from segmenter.tiles.batches import Batch, BatchLoader, DrawCounts
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.index import TileIndex
from segmenter.training.checks import in_memory
from segmenter.training.learner import Learner
from segmenter.training.log import TrainLog
from segmenter.training.prepare import class_weights, epoch_plan
from segmenter.training.progress import DIVERGED, TOLERATED_OVERFLOWS, Meter, Profiler, TimeLeft
from segmenter.training.stopping import StoppedError, stop_signal
from segmenter.training.validation import (
    Examples,
    follow,
    leave_page,
    show_best,
    validate,
    validate_together,
    validation_protocol,
)
from segmenter.training.workers_agree import Stop


def epoch_dataset(
    source: Feed | BatchLoader, plan: Plan, epoch: int, first_step: int = 0, stacked: int | None = None
) -> Any:
    """Return the global batches of an epoch from `first_step` on, in order, as a `tf.data.Dataset`.

    With `stacked`, that many batches come together, with one more leading axis; the last stack of an epoch is
    padded with zeros. The feed makes and prefetches batches; here they are copied out once, to free its
    memory for the next.

    Args:
        source: a feed, or a batch loader, which threads of this process then use.
    """
    import tensorflow as tf

    feed = source if isinstance(source, Feed) else Feed(source, plan.rows_SB.shape[1])
    count = stacked or 1

    def load(first: Any) -> Batch:
        batches = feed.shape.empty((count,))
        done = min(count, plan.steps - int(first))
        for place in range(done):
            feed.take(plan, epoch, int(first) + place, tuple(part[place] for part in batches))
        for part in batches:
            part[done:] = 0
        image, valid, label, slot = batches if stacked else (part[0] for part in batches)
        return image, valid, label, slot

    def from_step(first: Any) -> Any:
        # Stateless, as far as TensorFlow is concerned: the batches follow from the step alone.
        types = [tf.as_dtype(dtype) for _, dtype in feed.shape.arrays]
        parts = tf.numpy_function(load, [first], types, stateful=False)
        for part, (shape, _) in zip(parts, feed.shape.arrays, strict=True):
            part.set_shape((*((count,) if stacked else ()), *shape))
        return tuple(parts)

    options = tf.data.Options()
    # Nothing is left to tune, and its thread sleeps for longer and longer: ending an epoch would wait for it,
    # with idle devices, for as long again as the epoch took.
    options.autotune.enabled = False
    steps = tf.data.Dataset.range(first_step, plan.steps, count)
    return steps.map(from_step).prefetch(1 if stacked else 2).with_options(options)


_AHEAD = 1
"""Calls whose batches wait on the devices, besides the one in use: memory is scarce there."""
PATIENCE = 10.0
"""Seconds that the end of an epoch waits for a file that is being read."""


@dataclass
class Trainer:
    """Trainer of a run's model on the tiles of an index.

    Attributes:
        run: directory, recipe and meaning of the model's input.
        dataset: dataset with the validation scenes, if any.
        planned: plans of epochs, by number, as far as they are made.
    """

    run: Run
    index: TileIndex
    feed: Feed
    devices: Devices
    dataset: Dataset
    position: Position = field(default_factory=Position)
    profile: bool = False
    planned: dict[int, Plan] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        recipe = self.run.recipe
        self.first_plan = self._plan(0)
        self.steps = recipe.training.epochs * self.first_plan.steps
        shown_K = self.first_plan.shares(self.index.counts_NK)
        weights = class_weights(recipe.loss, self.index.shares(), shown_K)
        self.learner = Learner(self.run, self.devices, self.steps, weights, shown_K.tolist())
        chief = self._workers.chief
        self._log = TrainLog(self.run.path, self.run.classes) if chief else None
        self._called, self._drawn = False, DrawCounts()
        self._now: Meter | None = None
        every = recipe.training.validate_every * bool(self.dataset.of("validation"))
        self._time_left = TimeLeft(self.steps, recipe.training.epochs, every)
        self._profiler = Profiler(self.run.path / "tensorboard" if self.profile and chief else None)

    @property
    def _workers(self) -> Workers:
        return self.devices.workers

    # ---------------------------------------------------------------------------------- state

    def resume(self, start: Checkpoint) -> None:
        """Restore weights, optimiser and position from a checkpoint; `rewind_log` handles the log."""
        self.learner.resume(start)
        self.position = start.position

    def rewind_log(self) -> None:
        """Remove records after the present position from the log."""
        assert self._log is not None, "resumed by the chief"
        self._log.rewind(self.position.done, validated=self.position.step == 0)

    def save(self) -> Path | None:
        """Write the checkpoint of the present step, on the chief; return its path.

        Raises:
            TrainingError: a weight is not finite, or the replicas differ.
        """
        self._say(self.learner.disagreement(self.position.done))
        keep, arrays = self.run.recipe.training.keep_checkpoints, self._arrays()
        if not self._workers.chief:
            return None
        return save_checkpoint(self.run.path, self.position.done, arrays, keep)

    def _arrays(self) -> dict[str, Any]:
        at = self.position
        plan = self._plan(at.planned_epoch).fingerprint
        facts = facts_array(self.run.recipe, plan, at, self.devices.replicas, self.learner.computed_on)
        own = {"position": np.array(at, np.float64), META: facts, **self.run.text_arrays()}
        state = self.learner.state()
        if not all(np.isfinite(array).all() for name, array in state.items() if name.startswith("model/")):
            raise TrainingError(DIVERGED.format(step=at.done, what="a weight is not finite"))
        return {**state, **own}

    # ----------------------------------------------------------------------------------- loop

    def train(self) -> None:
        """Train to the last epoch, or to the validation that ends the training early.

        Raises:
            TrainingError: the loss is not finite, or a step lacks a promised class in strict mode.
            StoppedError: a signal came; the checkpoint of the last complete step is written.
        """
        epochs = self.run.recipe.training.epochs
        done, chief = self.position.done, self._workers.chief
        with (
            stop_signal() as heard,
            Bar(total=self.steps, initial=done, unit="step", shown=chief, lines=False) as bar,
        ):
            stop = Stop(self.devices, heard)
            while self.position.epoch < epochs and not self.ended_early:
                try:
                    self._epoch(bar, stop)
                finally:  # of an epoch's steps only: not of the validation after it
                    self._say(self._profiler.close())
                self.save()  # before the validation: killed in it, a resumed run validates again
                self.position = self.position.at_next_epoch()
                last = self.position.epoch == epochs
                if not last and not stop:  # the devices need not wait for the first batches after it
                    self.feed.begin(self._plan(self.position.epoch), self.position.epoch)
                if self.dataset.of("validation") and (
                    last or not self.position.epoch % self.run.recipe.training.validate_every
                ):
                    with self._time_left.validating(self.position.done):
                        self._validate(bar, stop)
                    if self._workers.chief and not last:
                        leave_page(self.run.path)
                if bar.disable and self._now is not None:
                    self._time_left.tell(self._now.line())
                self.save()
                if stop and not last and not self.ended_early:
                    raise StoppedError(stop.signal)
        self._say(self._profiler.missing())
        if self._log is not None:
            self._log.curves()

    @property
    def ended_early(self) -> bool:
        """True if `stop_after` consecutive validations brought no improvement, before the last epoch."""
        return self.position.ended_early(self.run.recipe.training)

    @staticmethod
    def _say(line: str) -> None:
        if line:
            tqdm.write(line)

    def _plan(self, epoch: int) -> Plan:
        """Return the plan of an epoch; two are cached: that of a checkpoint, and the next one."""
        if epoch not in self.planned:
            names, replicas = self.run.classes.names, self.devices.replicas
            made = epoch_plan(self.run.recipe, self.index, names, epoch, replicas)
            self.planned = dict([*self.planned.items(), (epoch, made)][-2:])
        return self.planned[epoch]

    def _use_step_of(self, epoch: int) -> bool:
        """Use the steps for the weights that train in an epoch; return False if already in use."""
        frozen_before = self.learner.frozen
        if not self.learner.enter(epoch):
            return False
        if frozen_before:
            self._say(f"epoch {epoch + 1}: the encoder trains from here on")
        self._called = False
        return True

    def _epoch(self, bar: Any, stop: Stop) -> None:
        epoch, most = self.position.epoch, self.run.recipe.training.steps_per_call
        self._use_step_of(epoch)
        rows = self._plan(epoch)
        stacks = epoch_dataset(self.feed, rows, epoch, self.position.step, stacked=most)
        meter = self._meter(rows, bar)
        dealt = (self.devices.distribute(stack, axis=1) for stack in stacks)
        feeder = Prefetch(dealt, _AHEAD, "feeder", given_up=lambda: bool(stop), patience=PATIENCE)
        doing = "" if self._called else compiling(self.devices)
        with closing(feeder):
            for stack in self._feed(feeder):
                count = min(most, rows.steps - self.position.step)
                self._profiler.before_call()
                said = told_while(doing) if doing else nullcontext()
                with in_memory(self.run.recipe, self.devices.replicas), said:
                    self._say(self.learner.choose_xla(stack))
                    self._workers.mark(STEP, self.position.done)
                    results = stop.call(self.learner.steps, stack, tf.constant(count))
                doing = ""
                self._workers.mark(BATCHES, self.position.done)
                meter.push(self.position.done + 1, results, feeder.waited)
                self._profiler.after_call(count)
                self.position = self.position.after(count)
                if self._profiler.enough:
                    meter.drain()
                    self._say(self._profiler.close())
                if stop:
                    break
                if self._due(count):
                    meter.close()  # what the log lacks cannot be had again after a resume
                    self.save()
        stop.drain()
        self._workers.mark(SHARE, self.position.done)
        self._end_epoch(rows, meter, stop)

    def _end_epoch(self, rows: Plan, meter: Meter, stop: Stop) -> None:
        """Finish an epoch's steps, complete or stopped: log, counts, checkpoint.

        Raises:
            StoppedError: a signal came; the checkpoint of the last complete step is written.
        """
        self._called = True
        if stop and self.position.step < rows.steps:
            self.save()  # first of all: what is said next may find nobody who reads it
            meter.close()
            raise StoppedError(stop.signal)
        meter.close()
        # The next epoch's batches are begun before its meter: what they draw is its own.
        self._drawn = meter.drawn_before
        if not meter.bar.disable:  # else the epoch's line says it
            self._say(meter.throughput())

    def _due(self, count: int) -> bool:
        """Return True if a checkpoint is due after one of the last `count` steps."""
        every = self.run.recipe.training.checkpoint_every
        return self.position.done % every < count

    def _meter(self, rows: Plan, bar: Any) -> Meter:
        recipe = self.run.recipe
        self._now = Meter(
            rows,
            tuple(self.run.classes.names),
            self.position.epoch + 1,
            self.devices.replicas,
            strict=recipe.sampling.coverage == "strict",
            overflows=TOLERATED_OVERFLOWS if recipe.training.loss_scaled else 0,
            bar=bar,
            log=None if self._log is None else self._log.log_steps,
            rate_at=self.learner.rate_at,
            drawn=lambda: self.feed.drawn,
            drawn_before=self._drawn,
            compiled=self._called,
            scaled=recipe.training.loss_scaled,
            time_left=self._time_left,
        )
        return self._now

    def _feed(self, feeder: Prefetch[Any]) -> Iterator[Any]:
        """Yield the stacks of batches; raise a file's error itself, not TensorFlow's wrapper of it."""
        try:
            with in_memory(self.run.recipe, self.devices.replicas):
                for stack in feeder:
                    self.feed.check()
                    yield stack
        except tf.errors.OpError:
            if self.feed.fault is not None:
                raise self.feed.fault from None
            raise

    def _validate(self, bar: Any, stop: Stop) -> None:
        bar.set_description("validating")
        scales, examples = GsdConfusions(self.run.classes), Examples(self.run.recipe.tiles.size)
        parts = (self.run, self.learner.predictor(), self.dataset, examples, scales)
        if self._workers.count == 1:
            confusion = validate(*parts, going=self.feed.check)
        else:
            confusion, heard = validate_together(
                self.devices, *parts, stop.received_signal(), self.feed.check
            )
            stop.take(heard)
        protocol, strata = validation_protocol(self.dataset), self.run.recipe.sampling.scale_strata
        by_scale = scales.scores(lambda names: replace(protocol, scenes=tuple(names)), strata)
        interval = miou_interval(scales.scenes, protocol)
        scores = replace(confusion.scores(protocol), interval=interval)
        if self._log is not None:
            place = (self.position.done, self.position.epoch)
            self._log.log_validation(*place, scores, confusion, by_scale)
        tables = [scores.table(), *([gsd_table(by_scale)] if by_scale else [])]
        tqdm.write(f"after epoch {self.position.epoch}:\n" + "\n\n".join(tables))
        if self._workers.chief:
            layers = follow(self.run, self.position, self.dataset, scores.miou, examples)
            if layers and self._log is not None:
                self._log.log_pictures(self.position.done, layers)
        self._time_left.miou = scores.miou
        self._keep_if_best(scores, confusion, examples)

    def _keep_if_best(self, scores: Scores, confusion: ConfusionMatrix, examples: Examples) -> None:
        """Save the weights and files of the best model if the validation just done is the best."""
        name = self.run.recipe.training.best_by
        score = score_of(scores, name)
        if not score > self.position.best_score:  # also where it is not a number
            missed = self.position.without_gain + 1
            self.position = self.position._replace(without_gain=missed)
            if name != "miou" or self.run.recipe.training.stop_after:
                count = f"{missed} validation{'s' * (missed > 1)}"
                tqdm.write(f"{count} without a gain in {title_of(name)} ({percent(score)} %)")
            return
        # The best is saved with the record it sets, so that resuming from it knows it.
        self.position = self.position._replace(best_score=score, without_gain=0)
        if not self._workers.chief:
            return
        save_best(self.run.path, self._arrays())
        show_best(self.run, self.position, self.dataset, confusion, examples)
