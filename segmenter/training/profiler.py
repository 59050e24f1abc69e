"""Profile of some steps (`train.py --profile`) for TensorBoard: the devices and the host."""

from __future__ import annotations

from pathlib import Path

_CALLS_BEFORE = 2
"""The first call compiles, the second fills queues."""
_STEPS = 10
"""Enough to see the rhythm of steps, few enough to open in a browser; at least a call's."""


class Profiler:
    """Profiles some steps of a training, once it runs evenly."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: the TensorBoard folder to write into; None: nothing is profiled."""
        self._folder = folder
        self._calls = self._steps = 0
        self._running = False

    def before_call(self) -> None:
        """To be called before each call of the devices."""
        import tensorflow as tf

        self._calls += 1
        if self._folder is not None and self._calls > _CALLS_BEFORE and not self._running:
            tf.profiler.experimental.start(str(self._folder))
            self._running = True

    @property
    def enough(self) -> bool:
        """Whether what was profiled is to be written, once its results are read."""
        return self._running and self._steps >= _STEPS

    def after_call(self, steps: int) -> None:
        """To be called after each call of the devices, with the steps it did."""
        self._steps += steps * self._running

    def close(self) -> str:
        """Write the profile, if one has begun; a line on where it is, or why it is not, else empty."""
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
        """Line that says why a profile was asked for and none was begun; else empty."""
        if self._folder is None:
            return ""
        return f"warning: no profile: it begins with call {_CALLS_BEFORE + 1}, there were {self._calls}"
