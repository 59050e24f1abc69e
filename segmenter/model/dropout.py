"""Dropout masks tied to the images of the global batch, independent of the replica that has them.

Keras' Dropout draws the same mask on every replica: its state is one variable that all replicas share. Here a
mask comes from Philox (Salmon et al., doi:10.1145/2063384.2063405), which computes random numbers from a key
and a counter, four for each counter value. Each layer has a key; the counter's upper half is the mask's
number, its lower half begins with the image's slot, assigned by the step's plan. So R replicas draw the same
masks as one device, without communication and in any order of images, and so does a resumed run.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_PHILOX = 1  # tf.random.Algorithm.PHILOX, as an operation takes it
_NUMBERS = 4  # that Philox computes at a time
_here = threading.local()  # a replica is traced in a thread of its own


@contextmanager
def masks_of(slot_b: Any, batch: int) -> Iterator[None]:
    """Within the block, treat this replica's images as those of the given slots of a global batch.

    Outside the block, slots are positions: replicas have contiguous parts of the batch, of equal size.

    Args:
        slot_b: (b,) int64, set in a replica around the model's call.
    """
    before, _here.slots = getattr(_here, "slots", None), (slot_b, batch)
    try:
        yield
    finally:
        _here.slots = before


class _Masked(keras.layers.Layer):
    """Base layer that drops a share of its input in training, by masks that belong to the global batch.

    Args:
        rate: share to drop, in [0, 1).
        seed: seed of the masks; layers with equal seeds have equal masks. By default drawn from Python's
            generator, which `keras.utils.set_random_seed` seeds.

    The weight `masks`, (2,) int64, holds the seed and the number of masks drawn: a checkpoint with it
    continues the sequence of masks.

    Raises:
        ValueError: the rate is outside [0, 1).
    """

    def __init__(self, rate: float, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= rate < 1:
            raise ValueError(f"{type(self).__name__}: expected a rate in [0, 1), got {rate}")
        self.rate, self.seed, self.supports_masking = rate, seed, True
        self._first = random.getrandbits(63) if seed is None else seed

    def build(self, input_shape: Any) -> None:
        """Create the variable, in the strategy's scope if there is one."""
        # Every replica counts its own copy, which costs no word between them, and the first one's is saved.
        self.masks = keras.Variable(
            np.array([self._first, 0], np.int64),
            dtype="int64",
            trainable=False,
            synchronization="on_read",
            aggregation="only_first_replica",
            name="masks",  # `runs.checkpoints` knows it by its name
        )

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Set some inputs (b, …, C) of one replica to 0 if training."""
        if not training or not self.rate:
            return inputs
        seed, number = tf.unstack(tf.convert_to_tensor(self.masks))
        self.masks.assign_add(np.array([0, 1], np.int64))
        keep = self._draw(tf.shape(inputs), inputs.shape[-1], seed, number) >= self.rate
        return tf.where(keep, inputs * (1 / (1 - self.rate)), tf.zeros((), inputs.dtype))

    def _draw(self, shape: Any, channels: int, seed: Any, number: Any) -> Any:
        """Return random numbers in [0, 1) for a replica's images, broadcastable to `shape`."""
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable("segmenter")
class GlobalDropout(_Masked):
    """Sets a share of the inputs to 0 in training and multiplies the others by 1 / (1 − rate).

    Srivastava et al., JMLR 15 (2014). R replicas have the same masks as one device with the whole batch, in
    every precision: masks depend on the images' slots (`masks_of`). Each call in training draws a new mask,
    also for each micro-batch of a step, so with micro-batches the masks depend on the number of replicas. XLA
    computes other numbers than TensorFlow from the same key and counter: runs compiled by it agree only with
    each other.
    """

    def _draw(self, shape: Any, channels: int, seed: Any, number: Any) -> Any:
        """Return random numbers in [0, 1) for a replica's images, each determined by the image's slot."""
        # Whole counters for each pixel, so that an image starts with one whatever its size.
        drawn = -(-channels // _NUMBERS) * _NUMBERS
        shape = tf.concat([shape[:-1], [drawn]], axis=0)
        each = tf.reduce_prod(tf.cast(shape[1:], tf.int64)) // _NUMBERS
        slots = getattr(_here, "slots", None)
        if slots is None:
            uniform = _uniform(shape, seed, number, _replica() * tf.cast(shape[0], tf.int64) * each)
        else:
            of_images = [_uniform(shape[1:], seed, number, slot * each) for slot in tf.unstack(slots[0])]
            uniform = tf.stack(of_images) if of_images else tf.zeros(shape)
        return uniform if drawn == channels else uniform[..., :channels]


@keras.saving.register_keras_serializable("segmenter")
class DropPath(_Masked):
    """Sets a share of the images of a batch to 0 in training and multiplies the others by 1 / (1 − rate).

    Stochastic depth (Huang et al. 2016, arXiv:1603.09382), image by image: at the end of a residual block's
    branch, it skips the block. The images chosen from the global batch do not depend on the number of
    replicas, as in `GlobalDropout`.
    """

    def _draw(self, shape: Any, channels: int, seed: Any, number: Any) -> Any:
        """Return random numbers in [0, 1), (b, 1, …): one for each image, determined by its slot."""
        slots = getattr(_here, "slots", None)
        if slots is None:
            images = tf.cast(shape[0], tf.int64)
            uniform = _uniform([shape[0], _NUMBERS], seed, number, _replica() * images)
        else:  # of all slots: fewer operations than one for each image
            uniform = tf.gather(
                _uniform([slots[1], _NUMBERS], seed, number, tf.zeros((), tf.int64)), slots[0]
            )
        return tf.reshape(uniform[:, :1], tf.concat([shape[:1], tf.ones_like(shape[1:])], axis=0))


def _uniform(shape: Any, seed: Any, number: Any, first: Any) -> Any:
    """Return random numbers in [0, 1) from Philox's counter `first` of mask `number` on."""
    place = tf.stack([first, number])
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=shape,
        key=tf.bitcast(seed[None], tf.uint64),
        counter=tf.bitcast(place, tf.uint64),
        alg=_PHILOX,
        dtype=tf.float32,
    )


def _replica() -> Any:
    """Return the replica's index; 0 if there is only one, or in a cross-replica context."""
    context = tf.distribute.get_replica_context()
    return tf.cast(0 if context is None else context.replica_id_in_sync_group, tf.int64)
