"""Plan + tiles → batches as a `tf.data.Dataset`, with reading and computing side by side."""

from __future__ import annotations

import os
from typing import Any

from segmenter.batches import Batch, BatchLoader
from segmenter.errors import SegmenterError
from segmenter.sampler import Plan


def epoch_dataset(loader: BatchLoader, plan: Plan, epoch: int, first_step: int = 0) -> Any:
    """The batches of an epoch from `first_step` on, in order, as a `tf.data.Dataset` of global batches.

    One call of Python makes a whole batch, so that the interpreter's lock is taken once for many tiles;
    as many calls run side by side as there are cores.
    """
    import tensorflow as tf

    def load(step: Any) -> Batch:
        try:
            return loader.load(plan, epoch, int(step))
        except SegmenterError as error:
            loader.fault = error  # TensorFlow gives the caller only its text, wrapped
            raise

    batch, (height, width, bands) = plan.rows_SB.shape[1], loader.tile_shape

    def from_step(step: Any) -> Any:
        # Stateless, as far as TensorFlow is concerned: the batch follows from the step alone.
        types = (tf.as_dtype(loader.dtype), tf.bool, tf.uint8)
        image, valid, label = tf.numpy_function(load, [step], types, stateful=False)
        image.set_shape((batch, height, width, bands))
        valid.set_shape((batch, height, width))
        label.set_shape((batch, height, width))
        return image, valid, label

    steps = tf.data.Dataset.range(first_step, plan.steps)
    calls = max(2, os.cpu_count() or 2)
    options = tf.data.Options()
    # Nothing is left to tune, and its thread sleeps for longer and longer: ending an epoch would wait for it,
    # with idle devices, for as long again as the epoch took.
    options.autotune.enabled = False
    batches = steps.map(from_step, num_parallel_calls=calls, deterministic=True).prefetch(2)
    return batches.with_options(options)
