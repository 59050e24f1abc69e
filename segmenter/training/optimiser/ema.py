"""Moving average of the weights, which validates and predicts: steadier than the weights of one step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from segmenter.training.optimiser.vectors import as_vector, write_vector


class AveragedWeights:
    """Follows a model's weights: a ← d·a + (1 − d)·w after each step that was applied.

    After n updates, d is the smaller of `decay` and (1 + n) / (10 + n): an average over all steps at first,
    which forgets the random start, and over the last 1 / (1 − decay) later. (As
    `tf.train.ExponentialMovingAverage` has it with `num_updates`; Keras' own fails under a strategy.)
    BatchNorm's statistics are averaged like weights; counters are copied.

    The average is on each replica, computed there from its own copy of the weights: nothing is sent.
    """

    def __init__(
        self, strategy: Any, model: Any, averaged: Any, decay: float, *, shared: bool = False
    ) -> None:
        """Average a model's weights in `averaged`, another model of the same make.

        Both were built in the strategy's scope.

        Args:
            shared: others update it at the same time, see `flat.write_vector`.
        """
        self._strategy, self._decay, self._shared = strategy, decay, shared
        self.model = averaged
        self._pairs = list(zip(averaged.variables, model.variables, strict=True))
        with strategy.scope():  # each replica counts for itself
            self._updates = tf.Variable(0, False, dtype=tf.int64)
        self.follow()

    def follow(self) -> None:
        """Start anew from the model's weights."""
        for average, weight in self._pairs:
            average.assign(weight.value)
        self._updates.assign(0)

    def take_in(self) -> None:
        """Take in the model's weights; to be called in a replica, in a compiled step, after an update."""
        self._updates.assign_add(1)
        for average, weight in self._pairs:
            if not weight.value.dtype.is_floating:
                average.assign(weight.value)
        for dtype in dict.fromkeys(w.dtype for _, w in self._pairs if w.value.dtype.is_floating):
            pairs = [pair for pair in self._pairs if pair[1].dtype == dtype]
            before, now = (as_vector(values) for values in zip(*pairs, strict=True))
            n = tf.cast(self._updates, dtype)
            decay = tf.minimum(tf.cast(self._decay, dtype), (1 + n) / (10 + n))
            averages = [average for average, _ in pairs]
            after = before + (1 - decay) * (now - before)
            write_vector(averages, after, before if self._shared else None)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that a checkpoint holds beside the averaged model's weights."""
        return {"ema_updates": self._updates.numpy()}

    def assign(self, arrays: dict[str, Any]) -> None:
        """Set the state from what `arrays` returned."""
        self._updates.assign(arrays["ema_updates"])
