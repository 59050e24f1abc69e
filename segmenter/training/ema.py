"""Moving average of the weights, which validates and predicts: steadier than the weights of one step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class AveragedWeights:
    """Follows a model's weights: a ← d·a + (1 − d)·w after each step that was applied.

    After n updates, d is the smaller of `decay` and (1 + n) / (10 + n): an average over all steps at first,
    which forgets the random start, and over the last 1 / (1 − decay) later. (As
    `tf.train.ExponentialMovingAverage` has it with `num_updates`; Keras' own fails under a strategy.)
    BatchNorm's statistics are averaged like weights; counters are copied.

    The average is on each replica, computed there from its own copy of the weights: nothing is sent.
    """

    def __init__(self, strategy: Any, model: Any, averaged: Any, decay: float) -> None:
        """`averaged` is another model of the same make, whose weights become the average.

        Both were built in the strategy's scope.
        """
        self._strategy, self._decay = strategy, decay
        self.model = averaged
        self._pairs = list(zip(averaged.variables, model.variables, strict=True))
        with strategy.scope():
            self._updates = tf.Variable(0, False, dtype=tf.int64, aggregation=_FIRST)
        self.follow()

    def follow(self) -> None:
        """Start anew from the model's weights."""
        for average, weight in self._pairs:
            average.assign(weight.value)
        self._updates.assign(0)

    def update(self, applied: Any = None) -> None:
        """Take in the model's weights; to be called outside the replicas, in a compiled step.

        Args:
            applied: a boolean scalar; after a step that was skipped there is nothing to take in. None: it
                was applied, whatever happened.
        """
        if applied is None:
            self._take_in()
        else:
            tf.cond(applied, self._take_in, lambda: None)

    def _take_in(self) -> None:
        extended = self._strategy.extended
        extended.update(self._updates, lambda n: n.assign_add(1))
        for average, weight in self._pairs:
            extended.update(average.value, self._towards, args=(weight.value, self._updates))

    def _towards(self, average: Any, weight: Any, updates: Any) -> Any:
        if not average.dtype.is_floating:
            return average.assign(weight)
        n = tf.cast(updates, average.dtype)
        decay = tf.minimum(tf.cast(self._decay, average.dtype), (1 + n) / (10 + n))
        return average.assign_add((1 - decay) * (weight - average))

    def arrays(self) -> dict[str, Any]:
        """Arrays that a checkpoint holds beside the averaged model's weights."""
        return {"ema_updates": self._updates.numpy()}

    def assign(self, arrays: dict[str, Any]) -> None:
        """Inverse of `arrays`."""
        self._updates.assign(arrays["ema_updates"])


_FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
