"""Sums over the replicas inside a loss, and what each replica then differentiates."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def replicas() -> int:
    """Replicas that compute together with this one; 1 where there is no strategy."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def global_sum(own: Any) -> Any:
    """Σ of a tensor over the replicas, in one all-reduce; differentiable by this replica's summand alone.

    The others' summands are constants here, so the backward pass needs no second all-reduce: each replica
    differentiates the same function of the sum by its own part, and the gradients are summed later.
    """
    if replicas() == 1:
        return own
    context = tf.distribute.get_replica_context()
    everyone = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(own))
    return tf.stop_gradient(everyone - own) + own


def share_of(loss: Any) -> Any:
    """This replica's share of a loss that every replica has computed whole: loss / R, with its full gradient.

    The values of the shares add up to the loss. The gradients are of this replica's summands only
    (`global_sum`), and add up to the loss's gradient as they are.
    """
    count = replicas()
    return loss - tf.stop_gradient(loss) * (count - 1) / count
