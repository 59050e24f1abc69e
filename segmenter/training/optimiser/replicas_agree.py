"""Agreement of replicas: check that all have the same weights and state, to the bit.

They start equal and apply equal sums, so they stay equal unless a card computes or stores wrongly, or
TensorFlow's sums fail. Nothing else would reveal it: a checkpoint contains only the first replica's state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.base.errors import TrainingError
from segmenter.devices.strategy import Devices

_FEW = 3


class Agreement:
    """Comparison of the replicas' copies of variables, by two numbers of each, computed on the devices."""

    def __init__(self, devices: Devices, variables: Sequence[Any]) -> None:
        """Compare `variables`: Keras variables of which each replica has a copy."""
        self._devices, self._variables = devices, list(variables)
        self._run = tf.function(lambda: devices.strategy.run(self._fingerprints), autograph=False)
        self._said, self._names = False, list[str]()

    def check(self, step: int) -> str:
        """Compare the replicas; return a warning, once, if GPU models are mixed and differ; else empty text.

        Different models sum in different orders, so the last bits of their statistics differ permanently.

        Raises:
            TrainingError: replicas on devices of one model differ.
        """
        if self._devices.replicas == 1 or self._devices.central:
            return ""
        local = [np.asarray(own) for own in self._devices.strategy.experimental_local_results(self._run())]
        fingerprints, self._names, models = self._of_all(local)
        if all(np.array_equal(own, fingerprints[0]) for own in fingerprints):
            return ""
        got = self._told(fingerprints)
        what = f"step {step}: expected the same weights and state on all replicas, got {got}"
        if len(models) == 1:
            raise TrainingError(
                f"{what}; a device computes or stores wrongly (nvidia-smi -q -d ECC), nothing was written: "
                "go on from the last checkpoint with --resume, without that device"
            )
        line = "" if self._said else f"warning: {what}; so do {' and '.join(sorted(models))} side by side"
        self._said = True
        return line

    def _of_all(self, local: list[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], list[str], set[str]]:
        """Return fingerprints and names of all replicas of all workers, and their device models."""
        workers, used = self._devices.workers, self._devices.used
        if workers.count == 1:
            return local, list(self._devices.names), {device.model for device in used}
        own = {"found": [a.tolist() for a in local], "models": [device.model for device in used]}
        answers = [json.loads(text) for text in workers.exchange(json.dumps(own))]
        names = [f"{n} of {workers.name(i)}" for i in range(workers.count) for n in self._devices.names]
        fingerprints = [np.array(a, np.int64) for one in answers for a in one["found"]]
        return fingerprints, names, {model for one in answers for model in one["models"]}

    def _told(self, fingerprints: Sequence[NDArray[np.int64]]) -> str:
        """Return text on the replicas and variables that differ from the first replica's."""
        others = [r for r, own in enumerate(fingerprints) if not np.array_equal(own, fingerprints[0])]
        rows = np.unique(
            np.concatenate([np.flatnonzero((fingerprints[r] != fingerprints[0]).any(axis=1)) for r in others])
        )
        names = ", ".join(self._variables[row].path for row in rows[:_FEW])
        more = f" and {len(rows) - _FEW} more" if len(rows) > _FEW else ""
        on = ", ".join(self._names[r] for r in others)
        return f"others on {on} than on {self._names[0]} for {names}{more}"

    def _fingerprints(self) -> Any:
        return tf.stack([_fingerprint(tf.convert_to_tensor(v.value)) for v in self._variables])


def _fingerprint(values: Any) -> Any:
    """Return (2,) int64: Σ b and Σ b² modulo 2^64 over the values' bits b as whole numbers.

    The first detects any single difference, both together several. Positions are not included: their indices
    would come from the GPU's host.
    """
    if values.dtype.is_floating:
        values = tf.bitcast(values, {2: tf.int16, 4: tf.int32, 8: tf.int64}[values.dtype.size])
    bits = tf.cast(values, tf.int64)
    return tf.stack([tf.reduce_sum(bits), tf.reduce_sum(bits * bits)])
