"""Dropout whose masks belong to the images of the global batch, whichever replica has them, and where.

Keras' Dropout draws the same mask on every replica: its state is one variable that all replicas share. Here
a mask is read off Philox (Salmon et al., doi:10.1145/2063384.2063405), which computes random numbers from a
key and a counter, four for each value of the counter. The key is the layer's; the counter's upper half is the
number of the mask, its lower half begins with the image's slot, which the plan of the step gave it. So R
replicas together draw what one device would, without a word between them, in whatever order they have the
images, and a resumed run what it would have drawn.
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
    """Within the block, treat this replica's images as those of given slots of a global batch.

    Outside of it, slots are places: each replica has a contiguous part of the batch, all equally large.

    Args:
        slot_b: (b,) int64. In a replica, around the call of the model.
    """
    before, _here.slots = getattr(_here, "slots", None), (slot_b, batch)
    try:
        yield
    finally:
        _here.slots = before


class _Masked(keras.layers.Layer):
    """A layer that drops a share of something in training, by masks that belong to the global batch.

    Args:
        rate: share to drop, in [0, 1).
        seed: where the masks start; two layers with the same seed have the same masks. By default one is
            drawn from Python's generator, which `keras.utils.set_random_seed` sets.

    Its weight `masks`, (2,) int64, is the seed and the number of masks drawn: with it in a checkpoint, masks
    go on where they stopped.

    Raises:
        ValueError: a rate outside of [0, 1).
    """

    def __init__(self, rate: float, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= rate < 1:
            raise ValueError(f"{type(self).__name__}: expected a rate in [0, 1), got {rate}")
        self.rate, self.seed, self.supports_masking = rate, seed, True
        self._first = random.getrandbits(63) if seed is None else seed

    def build(self, input_shape: Any) -> None:
        """Make the variable, in the strategy's scope if there is one."""
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
        """Return random numbers in [0, 1) for a replica's part, which broadcast to its shape."""
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable("segmenter")
class GlobalDropout(_Masked):
    """Sets a share of the inputs to 0 in training and multiplies the others by 1 / (1 − rate).

    Srivastava et al., JMLR 15 (2014). The masks of R replicas are those of one device with the whole batch,
    in every precision: they go by the images' slots (`masks_of`). Each call in training draws a mask of its
    own, also those for the micro-batches of one step, so that with R replicas and micro-batches a mask falls
    on other images than with one. XLA has other numbers than TensorFlow for the same key and counter:
    compiled by it, a run repeats itself, and no other.
    """

    def _draw(self, shape: Any, channels: int, seed: Any, number: Any) -> Any:
        """Return random numbers in [0, 1) of a replica's part: for each image those of its slot."""
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

    Stochastic depth (Huang et al. 2016, arXiv:1603.09382), image by image: put at the end of a residual
    block's branch, it leaves the block out. Which images of the global batch is the same for any number of
    replicas, as with `GlobalDropout`.
    """

    def _draw(self, shape: Any, channels: int, seed: Any, number: Any) -> Any:
        """Return random numbers in [0, 1), (b, 1, …): one for each image, that of its slot."""
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
    """Return random numbers in [0, 1) of a replica, from one of Philox' counters on."""
    place = tf.stack([first, number])
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=shape,
        key=tf.bitcast(seed[None], tf.uint64),
        counter=tf.bitcast(place, tf.uint64),
        alg=_PHILOX,
        dtype=tf.float32,
    )


def _replica() -> Any:
    """Return the replica's number; 0 if there is but one, or in a cross-replica context."""
    context = tf.distribute.get_replica_context()
    return tf.cast(0 if context is None else context.replica_id_in_sync_group, tf.int64)
