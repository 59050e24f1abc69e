"""Moving average of the weights, used for validation and prediction: steadier than single steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from segmenter.training.optimiser.optimisers import as_vector, parts_of


class AveragedWeights:
    """Moving average of a model's weights: a ← d·a + (1 − d)·w after each applied step.

    After n updates, d is the smaller of `decay` and (1 + n) / (10 + n): first an average over all steps,
    which forgets the random start, later over the last 1 / (1 − decay). (As in
    `tf.train.ExponentialMovingAverage` with `num_updates`; Keras' own fails under a strategy.) BatchNorm's
    statistics are averaged like weights; counters are copied.

    Each replica computes the average from its own copy of the weights: nothing is sent.
    """

    def __init__(self, strategy: Any, model: Any, averaged: Any, decay: float) -> None:
        """Average a model's weights into `averaged`, another model of the same structure.

        Both must have been built in the strategy's scope.
        """
        self._decay = decay
        self.model = averaged
        self._pairs = list(zip(averaged.variables, model.variables, strict=True))
        with strategy.scope():  # each replica counts for itself
            self._updates = tf.Variable(0, False, dtype=tf.int64)
        self.follow()

    def follow(self) -> None:
        """Restart the average from the model's weights."""
        for average, weight in self._pairs:
            average.assign(weight.value)
        self._updates.assign(0)

    def take_in(self) -> None:
        """Add the model's current weights to the average; call in a replica, compiled, after an update."""
        self._updates.assign_add(1)
        for average, weight in self._pairs:
            if not weight.value.dtype.is_floating:
                average.assign(weight.value)
        for dtype in dict.fromkeys(w.dtype for _, w in self._pairs if w.value.dtype.is_floating):
            averages, weights = zip(*(pair for pair in self._pairs if pair[1].dtype == dtype), strict=True)
            n = tf.cast(self._updates, dtype)
            decay = tf.minimum(tf.cast(self._decay, dtype), (1 + n) / (10 + n))
            change = (1 - decay) * (as_vector(weights) - as_vector(averages))
            # Added, and not assigned: other workers may update it at the same time.
            for average, part in zip(averages, parts_of(change, averages), strict=True):
                average.value.assign_add(part)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that a checkpoint stores besides the averaged model's weights."""
        return {"ema_updates": self._updates.numpy()}

    def assign(self, arrays: dict[str, Any]) -> None:
        """Restore the state from the result of `arrays`."""
        self._updates.assign(arrays["ema_updates"])
