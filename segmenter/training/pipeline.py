"""Pipeline from plan and tiles to batches as a `tf.data.Dataset`, reading and computing side by side."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from segmenter.errors import SegmenterError
from segmenter.sampling import Plan
from segmenter.tiles.batches import Batch, BatchLoader


def epoch_dataset(
    loader: BatchLoader, plan: Plan, epoch: int, first_step: int = 0, stacked: int | None = None
) -> Any:
    """The batches of an epoch from `first_step` on, in order, as a `tf.data.Dataset` of global batches.

    One call of Python makes a whole batch, so that the interpreter's lock is taken once for many tiles;
    as many calls run side by side as there are cores. With `stacked`, so many batches come at once, with
    one more axis in front; the last stack of an epoch is filled up with zeros.
    """
    import tensorflow as tf

    batch, tile = plan.rows_SB.shape[1], loader.tile_shape

    def load(step: Any) -> Batch:
        if step >= plan.steps:
            return _blank(batch, tile, loader.dtype)
        try:
            return loader.load(plan, epoch, int(step))
        except SegmenterError as error:
            loader.fault = error  # TensorFlow gives the caller only its text, wrapped
            raise

    height, width, bands = tile

    def from_step(step: Any) -> Any:
        # Stateless, as far as TensorFlow is concerned: the batch follows from the step alone.
        types = (tf.as_dtype(loader.dtype), tf.bool, tf.uint8)
        image, valid, label = tf.numpy_function(load, [step], types, stateful=False)
        image.set_shape((batch, height, width, bands))
        valid.set_shape((batch, height, width))
        label.set_shape((batch, height, width))
        return image, valid, label

    end = plan.steps
    if stacked is not None:
        end = first_step + -(-(plan.steps - first_step) // stacked) * stacked
    calls = max(2, os.cpu_count() or 2)
    options = tf.data.Options()
    # Nothing is left to tune, and its thread sleeps for longer and longer: ending an epoch would wait for it,
    # with idle devices, for as long again as the epoch took.
    options.autotune.enabled = False
    steps = tf.data.Dataset.range(first_step, end)
    batches = steps.map(from_step, num_parallel_calls=calls, deterministic=True)
    if stacked is not None:
        batches = batches.batch(stacked, drop_remainder=True)
    return batches.prefetch(1 if stacked is not None else 2).with_options(options)


def _blank(batch: int, tile: tuple[int, int, int], dtype: str) -> Batch:
    shape = (batch, *tile[:2])
    return np.zeros((batch, *tile), dtype), np.zeros(shape, np.bool_), np.zeros(shape, np.uint8)
