"""Pipeline from a feed's batches to a `tf.data.Dataset`: static shapes, stacked batches, one prefetched."""

from __future__ import annotations

from typing import Any

from segmenter.sampling import Plan
from segmenter.tiles.batches import Batch, BatchLoader
from segmenter.tiles.feeding.feed import Feed


def epoch_dataset(
    source: Feed | BatchLoader, plan: Plan, epoch: int, first_step: int = 0, stacked: int | None = None
) -> Any:
    """Return the global batches of an epoch from `first_step` on, in order, as a `tf.data.Dataset`.

    With `stacked`, that many batches come together, with one more leading axis; the last stack of an epoch is
    padded with zeros. The feed makes and prefetches batches; here they are copied out once, to free its
    memory for the next.

    Args:
        source: a feed, or a batch loader, which threads of this process then use.
    """
    import tensorflow as tf

    feed = source if isinstance(source, Feed) else Feed(source, plan.rows_SB.shape[1])
    count = stacked or 1

    def load(first: Any) -> Batch:
        batches = feed.shape.empty((count,))
        done = min(count, plan.steps - int(first))
        for place in range(done):
            feed.take(plan, epoch, int(first) + place, tuple(part[place] for part in batches))
        for part in batches:
            part[done:] = 0
        image, valid, label, slot = batches if stacked else (part[0] for part in batches)
        return image, valid, label, slot

    def from_step(first: Any) -> Any:
        # Stateless, as far as TensorFlow is concerned: the batches follow from the step alone.
        types = [tf.as_dtype(dtype) for _, dtype in feed.shape.arrays]
        parts = tf.numpy_function(load, [first], types, stateful=False)
        for part, (shape, _) in zip(parts, feed.shape.arrays, strict=True):
            part.set_shape((*((count,) if stacked else ()), *shape))
        return tuple(parts)

    options = tf.data.Options()
    # Nothing is left to tune, and its thread sleeps for longer and longer: ending an epoch would wait for it,
    # with idle devices, for as long again as the epoch took.
    options.autotune.enabled = False
    steps = tf.data.Dataset.range(first_step, plan.steps, count)
    return steps.map(from_step).prefetch(1 if stacked else 2).with_options(options)
