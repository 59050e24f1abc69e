"""Progress of a training: step results, read one call late, printed and logged; faults; a profile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from segmenter.base.bars import clock, time_left
from segmenter.base.errors import TrainingError, counted
from segmenter.evaluation.scores import percent
from segmenter.sampling import Plan
from segmenter.tiles.batches import DrawCounts

LOG_EVERY = 20
"""Steps between two lines of the log: often enough for a curve, rare enough to cost nothing."""
TOLERATED_OVERFLOWS = 20
"""Steps in a row without a finite loss, in mixed precision, until the loss scale has to have settled."""
SMALLEST_SCALE = 2.0**-10
"""A skipped step that leaves a smaller loss scale than this ends the run. Each halves it, from 2¹⁵ at the
start, and 2000 steps without one double it: so far down are 26 in a row, or one in a hundred for long. Told
by the scale, which checkpoints keep, and not by a count: a resumed run ends at the same step."""
DIVERGED = (
    "step {step}: {what}; the checkpoints before it are whole. Lower training.learning_rate, set "
    "training.clip_norm, or look for odd pixels with segmenter check"
)

_WAITS = 0.01
"""Share of the time waiting for data from which a line without a bar says it."""
_TIMED_STEPS = 8
"""Steps behind the first, which compiles, from which the time of a training is estimated."""
_EVERY = 60.0
"""Seconds between two lines where there is no bar; besides, each epoch has one."""

_CALLS_BEFORE = 2
"""The first call compiles, the second fills queues."""
_PROFILED_STEPS = 10
"""Enough to see the rhythm of steps, few enough to open in a browser; at least a call's."""


@dataclass
class TimeLeft:
    """Estimate of the remaining time, printed after the first steps and after the first validation.

    Attributes:
        validate_every: epochs between validations; 0: none.
        miou: mIoU of the last validation; NaN before the first.
    """

    steps: int
    epochs: int
    validate_every: int
    miou: float = math.nan
    _step_s: float = math.nan
    _first: tuple[int, float] | None = None
    _validated_s: float = 0.0
    _validation_s: float = 0.0
    _said_validation: bool = False
    _told: float = field(default_factory=lambda: time.perf_counter())

    def record(self, done: int) -> None:
        """Record that `done` steps of the training are done."""
        now = time.perf_counter() - self._validated_s
        self._first = self._first or (done, now)
        before, then = self._first
        if done - before < _TIMED_STEPS:
            return
        said, self._step_s = not math.isnan(self._step_s), (now - then) / (done - before)
        if not said:
            count = self._validations(done)
            on_top = f", and the time of {counted(count, 'validation')}" if count else ""
            self._say((self.steps - done) * self._step_s, f"{self._what(done)}{on_top}")

    @contextmanager
    def validating(self, done: int) -> Iterator[None]:
        """Measure a validation after `done` steps."""
        started = time.perf_counter()
        yield
        seconds, count = time.perf_counter() - started, self._validations(done)
        self._validated_s += seconds
        self._validation_s = seconds
        if not (self._said_validation or math.isnan(self._step_s) or done >= self.steps):
            self._said_validation = True
            what = f"{self._what(done)}, and {counted(count, 'validation')} at {clock(seconds)}"
            self._say((self.steps - done) * self._step_s + count * seconds, what)

    def _what(self, done: int) -> str:
        return f"{counted(self.steps - done, 'step')} at {self._step_s:.2g} s"

    def _validations(self, done: int) -> int:
        epochs = self.epochs * done // self.steps
        return self.validate_every and -(-self.epochs // self.validate_every) - epochs // self.validate_every

    def _say(self, seconds: float, what: str) -> None:
        tqdm.write(f"about {time_left(seconds)}: {what}")

    def text(self, done: int) -> str:
        """Return the time left after `done` steps, with the hour of the end; empty if unknown or none."""
        if math.isnan(self._step_s) or done >= self.steps:
            return ""
        seconds = (self.steps - done) * self._step_s + self._validations(done) * self._validation_s
        return time_left(seconds)

    def due(self) -> bool:
        """Return whether a minute has passed since the last line."""
        return time.perf_counter() - self._told >= _EVERY

    def tell(self, line: str) -> None:
        """Print a line of progress."""
        self._told = time.perf_counter()
        tqdm.write(line)


@dataclass
class Meter:
    """Progress of one epoch.

    Attributes:
        plan: plan of the epoch, with the classes promised to each step.
        epoch: number of the epoch, from 1.
        strict: treat a step without a promised class as an error.
        overflows: number of consecutive steps whose loss may be non-finite.
        scaled: True with a dynamic loss scale, whose skipped steps are counted.
        log: called with (step, values) for a line of the log; None if another process writes it.
        rate_at: returns the learning rate of a step, counted from 1.
        drawn_before: the part of these counts in earlier log lines.
        compiled: True if the epoch's first call needs no compilation, so the rate includes it.
    """

    plan: Plan
    names: tuple[str, ...]
    epoch: int
    replicas: int
    strict: bool
    overflows: int
    bar: Any
    log: Callable[[int, dict[str, Any]], None] | None
    rate_at: Callable[[int], float]
    drawn: Callable[[], DrawCounts]
    drawn_before: DrawCounts = field(default_factory=DrawCounts)
    compiled: bool = False
    scaled: bool = False
    time_left: TimeLeft | None = None
    short_steps: int = 0
    skipped_steps: int = 0
    _pending: tuple[int, Any, float] | None = None
    _last: int = 0
    _loss: float = math.nan
    _losses: list[float] = field(default_factory=list)
    _held: list[NDArray[Any]] = field(default_factory=list)
    _not_finite: int = 0
    _short_before: int = 0
    _skipped_before: int = 0
    _scale: float = 1.0
    _calls: int = 0
    _timed: int = 0
    _started: float = math.nan
    _waited_before: float = 0.0
    _waited: float = 0.0

    def __post_init__(self) -> None:
        if self.compiled:
            self._started = time.perf_counter()

    # -------------------------------------------------------------------------------- what comes in

    def push(self, first: int, results: Any, waited: float) -> None:
        """Store the results of a call, a `StepResult` of n steps, and read those of the previous call.

        The host thus reads results only while the next call is running.

        Args:
            first: number of the call's first step, from 1.
            waited: seconds spent waiting for batches so far.
        """
        self.drain()
        if math.isnan(self._started):  # the first call compiles, which is no part of the rate
            self._started, self._waited_before = time.perf_counter(), waited
        self._pending = (first, results, waited)

    def drain(self) -> None:
        """Read the results of the pending call."""
        if self._pending is None:
            return
        first, results, waited = self._pending
        self._pending = None
        losses, held, applied, scales = map(np.asarray, results)
        self._timed += len(losses) if self._calls or self.compiled else 0
        self._calls += 1
        self._waited = waited - self._waited_before
        steps = zip(losses.tolist(), held, applied.tolist(), scales.tolist(), strict=True)
        for step, (loss, held_2K, done, scale) in enumerate(steps, first):
            self._take_scale(step, done, scale)
            self._take(step, loss, held_2K)
        self._show(losses, held)
        if self.time_left is not None:
            self.time_left.record(self._last)
            if self.bar.disable and self.time_left.due():
                self.time_left.tell(self.line())

    def close(self) -> None:
        """Read and log all remaining results."""
        self.drain()
        self._write()

    def _take(self, step: int, loss: float, held_2K: NDArray[Any]) -> None:
        self._check_finite(step, loss)
        # Each promised class has to be in its quota of tiles, and in each part that was planned for.
        least = self.plan.least_tiles
        lost = [c for c in least if held_2K[0, c] < least[c] or held_2K[1, c] < self.plan.blocks]
        if lost:
            self._short(step, lost)
        self._losses.append(loss)
        self._held.append(held_2K)
        self._last = step
        if step % LOG_EVERY == 0:
            self._write()

    def _take_scale(self, step: int, applied: bool, scale: float) -> None:
        self._scale = scale
        self.skipped_steps += not applied
        if not applied and scale < SMALLEST_SCALE:
            what = (
                f"gradients are not finite, though the loss scale is down to {scale:.2g} "
                f"(skipped in this epoch: {self.skipped_steps})"
            )
            line = DIVERGED.format(step=step, what=what)
            raise TrainingError(f"{line}, or set training.precision: float32")

    def _check_finite(self, step: int, loss: float) -> None:
        self._not_finite = 0 if math.isfinite(loss) else self._not_finite + 1
        if self._not_finite > self.overflows:
            raise TrainingError(DIVERGED.format(step=step, what=f"the loss is {loss}"))

    def _short(self, step: int, lost: list[int]) -> None:
        names = ", ".join(self.names[c] for c in lost)
        self.short_steps += 1
        if self.strict:
            raise TrainingError(
                f"step {step}", expected=f"every promised class in the step, {names} is missing"
            )
        tqdm.write(f"warning: step {step} holds fewer tiles of {names} than the plan promised")

    # -------------------------------------------------------------------------------- what goes out

    def _show(self, losses: NDArray[Any], held: NDArray[Any]) -> None:
        classes = f"{np.count_nonzero(held[-1, 0])}/{held.shape[2]}"
        self._loss = float(np.mean(losses))
        shown = {"loss": f"{losses[-1]:.3f}", "images/s": f"{self._rate():.0f}", "classes": classes}
        if self.short_steps:
            shown["short"] = str(self.short_steps)
        if self.skipped_steps:
            shown |= {"skipped": str(self.skipped_steps), "scale": f"{self._scale:g}"}
        self.bar.set_description(f"epoch {self.epoch}", refresh=False)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(len(losses))

    def _seconds(self) -> float:
        return max(time.perf_counter() - self._started, 1e-9)

    def _rate(self) -> float:
        """Return the tiles a second since the end of the first call."""
        return self.plan.rows_SB.shape[1] * self._timed / self._seconds() if self._timed else 0.0

    def line(self) -> str:
        """Return a line on the training so far, for where there is no bar."""
        assert self.time_left is not None, "a training has one"
        miou, left = self.time_left.miou, self.time_left.text(self._last)
        parts = [
            f"loss {self._loss:.3g}",
            *([] if math.isnan(miou) else [f"mIoU {percent(miou)}"]),
            *self._speed(_WAITS),
            *([left] if left else []),
        ]
        return f"epoch {self.epoch} of {self.time_left.epochs}, step {self._last}: {', '.join(parts)}"

    def throughput(self) -> str:
        """Return a line on the epoch so far: tiles a second, share of time waiting for data, skips."""
        speed = self._speed()
        return f"epoch {self.epoch}: {', '.join(speed)}" if speed else ""

    def _speed(self, least: float = 0.0) -> list[str]:
        """Return phrases on tiles a second, on waiting of at least this share of time, on skipped steps."""
        parts = []
        if self._timed:
            share = self._waited / self._seconds()
            parts.append(f"{self._rate():.1f} images/s")
            parts += [f"waiting for data {share:.1%} of the time"] if share >= least else []
        if self.skipped_steps:
            steps = counted(self.skipped_steps, "step")
            parts.append(f"{steps} skipped for a gradient that is not finite, loss scale {self._scale:g}")
        return parts

    def _write(self) -> None:
        """Write a line of the log over the steps since the last one."""
        if not self._losses:
            return
        values = {
            "epoch": self.epoch,
            "loss": float(np.mean(self._losses)),
            "learning_rate": self.rate_at(self._last),
            "images_per_second": self._rate(),
            "waiting_for_data": self._waited / self._seconds(),
            **self._skips(),
            **self._coverage(),
        }
        if self.log is not None:
            self.log(self._last, values)
        self._losses, self._held = [], []
        self._short_before, self._skipped_before = self.short_steps, self.skipped_steps

    def _skips(self) -> dict[str, Any]:
        """Return the number of steps that the loss scale, if any, skipped since the last line."""
        if not self.scaled:
            return {}
        return {"skipped_steps": self.skipped_steps - self._skipped_before, "loss_scale": self._scale}

    def _coverage(self) -> dict[str, Any]:
        """Return the classes held by the steps since the last line, and those promised, for the diagnosis."""
        held_N2K = np.stack(self._held)
        now = self.drawn()
        drawn, self.drawn_before = now.since(self.drawn_before), now
        return {
            "steps": len(held_N2K),
            "classes_in_batch": float((held_N2K[:, 0] > 0).sum(axis=1).mean()),
            "classes_per_replica": float(held_N2K[:, 1].sum(axis=1).mean() / self.replicas),
            "short_steps": self.short_steps - self._short_before,
            "held_steps": (held_N2K[:, 0] > 0).sum(axis=0).tolist(),
            "held_tiles": held_N2K[:, 0].sum(axis=0).tolist(),
            "promised": list(self.plan.promised),
            "promised_tiles": list(self.plan.mean_tiles.values()),
            "best_effort": list(self.plan.best_effort),
            "tiles_drawn": drawn.tiles,
            "tiles_redrawn": drawn.redrawn,
            "tiles_replaced": drawn.replaced,
        }


class Profiler:
    """Profiler of some steps of a training, once its speed is steady."""

    def __init__(self, folder: Path | None) -> None:
        """Profile into `folder`, in TensorBoard's format; None: no profile."""
        self._folder = folder
        self._calls = self._steps = 0
        self._running = False

    def before_call(self) -> None:
        """Start the profile when due; call before each call of the devices."""
        import tensorflow as tf

        self._calls += 1
        if self._folder is not None and self._calls > _CALLS_BEFORE and not self._running:
            tf.profiler.experimental.start(str(self._folder))
            self._running = True

    @property
    def enough(self) -> bool:
        """True if enough steps are profiled; the profile is then written once their results are read."""
        return self._running and self._steps >= _PROFILED_STEPS

    def after_call(self, steps: int) -> None:
        """Count the steps of a call of the devices; call after each."""
        self._steps += steps * self._running

    def close(self) -> str:
        """Write the profile if one has begun; return a line on its path or failure, else empty text."""
        import tensorflow as tf

        if not self._running:
            return ""
        folder, self._folder, self._running = self._folder, None, False
        try:
            tf.profiler.experimental.stop()
        except (OSError, tf.errors.OpError) as error:
            return f"warning: no profile: {folder} cannot be written ({error})"
        return f"profile of {self._steps} steps: {folder}; see it with tensorboard --logdir {folder}"

    def missing(self) -> str:
        """Return a line on why a requested profile was not begun; else empty text."""
        if self._folder is None:
            return ""
        return f"warning: no profile: it begins with call {_CALLS_BEFORE + 1}, there were {self._calls}"
