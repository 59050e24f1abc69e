"""Training step on parameter servers: read the weights, compute one whole batch, update the servers.

Workers run steps without waiting for each other. A step's gradient is exactly that of its batch at the
weights that it read, which other workers may have updated since (Dean et al., Large scale distributed deep
networks, NIPS 2012, section 4.1). The result includes the number of these updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from segmenter.extras.parameter_servers.state import ServedState, Shard
from segmenter.training.optimiser.optimisers import as_vector, numbers_in
from segmenter.training.step import StepParts, StepResult, held_in, micro_batch


class _Read(NamedTuple):
    """Values read from the servers, by path, with the update count, and the loss scale or None."""

    values: dict[str, Any]
    updates: Any
    scale: Any


def make_served_step(parts: StepParts, state: ServedState) -> Any:
    """Return a compiled function for workers, from a batch to (`StepResult`, other updates meanwhile).

    The batch is a whole global batch, in the order of its slots. The function is for the weights that
    currently train (`set_trained`).
    """

    @tf.function(reduce_retracing=True, autograph=False)
    def step(image: Any, valid: Any, label: Any, slot: Any = None) -> Any:
        read = _read(state)
        loss, gradient, statistics = _computed(parts, state, read, image, valid, label)
        held = tf.cast(held_in(parts, label), tf.int32)
        finite = None
        if read.scale is not None:
            finite = tf.reduce_all(tf.math.is_finite(gradient))
            gradient /= tf.cast(read.scale, gradient.dtype)
        gradient = parts.optimiser.clipped(gradient)
        late = _updated(parts, state, read, gradient, statistics, finite)
        applied = tf.constant(True) if finite is None else finite
        scale = tf.ones(())
        if state.loss_scale is not None:
            with tf.control_dependencies([late]):
                scale = tf.identity(state.loss_scale.scale.value)
        return StepResult(tf.cast(loss, tf.float32), held, applied, scale), late

    return step


def _read(state: ServedState) -> _Read:
    """Read weights and statistics of all servers."""
    values: dict[str, Any] = {}
    updates, scale = None, None
    for shard in state.shards:
        groups, counter = (
            _by_type(shard.kept),
            [] if shard.optimiser is None else [shard.optimiser.iterations],
        )
        with_scale = shard is state.shards[0] and state.loss_scale is not None
        more = [*counter, *([state.loss_scale.scale] if with_scale and state.loss_scale else [])]
        with tf.device(shard.device):
            tensors = [*(as_vector(group) for group in groups), *(tf.identity(v.value) for v in more)]
        for group, vector in zip(groups, tensors, strict=False):
            # As one tensor over the network, and only then in parts.
            parts = tf.split(tf.identity(vector), [numbers_in([v]) for v in group])
            values |= {v.path: tf.reshape(p, v.shape) for v, p in zip(group, parts, strict=True)}
        if shard.optimiser is state.counter:
            updates = tf.identity(tensors[len(groups)])
        if with_scale:
            scale = tf.identity(tensors[-1])
    return _Read(values, updates, scale)


def _computed(parts: StepParts, state: ServedState, read: _Read, *batch: Any) -> Any:
    """Return (loss, scaled gradient in the servers' order, statistics by path) of a batch."""
    model, loss_of = parts.model, parts.loss
    dtype = model.outputs[0].dtype
    trained = [read.values[v.path] for v in model.trainable_variables]
    others = [v.path for v in model.non_trainable_variables]
    followed = [path for path in others if path in state.statistics]

    def micro(image: Any, valid: Any, label: Any, now: Sequence[Any], *weight: Any) -> Any:
        known = read.values | dict(zip(followed, now, strict=True))
        pixels = parts.normalisation.apply(image, valid, model.inputs[0].dtype)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            logits, after = model.stateless_call(
                trained, [known[path] for path in others], pixels, training=True
            )
            loss = loss_of(label, logits, *weight)
            scaled = loss if read.scale is None else loss * tf.cast(read.scale, loss.dtype)
        new = dict(zip(others, after, strict=True))
        gradient = _in_order(model, state, tape.gradient(scaled, trained))
        return loss, gradient, [new[path] for path in followed]

    now = [read.values[path] for path in followed]
    if parts.accumulate == 1:
        loss, gradient, now = micro(*batch, now)
        return loss, gradient, dict(zip(followed, now, strict=True))
    weight = [loss_of.valid_weight(batch[2], dtype)] if loss_of.needs_valid_weight else []

    def body(i: Any, loss: Any, gradient: Any, *now: Any) -> Any:
        own = (micro_batch(tensor, parts.accumulate, i) for tensor in batch)
        more, further, then = micro(*own, now, *weight)
        return i + 1, loss + more, gradient + further, *then

    start = (tf.constant(0), tf.zeros((), dtype), tf.zeros((numbers_in(trained),), trained[0].dtype), *now)
    done = tf.while_loop(lambda i, *_: i < parts.accumulate, body, start, parallel_iterations=1)
    return done[1], done[2], dict(zip(followed, done[3:], strict=True))


def _in_order(model: Any, state: ServedState, gradients: Sequence[Any]) -> Any:
    """Concatenate gradients to one vector, by server and in the order of each server's optimiser."""
    of = {v.path: g for v, g in zip(model.trainable_variables, gradients, strict=True)}
    vectors = []
    for shard in state.shards:
        trained = shard.among(model.trainable_variables)
        if shard.optimiser is not None and trained:
            vectors.append(shard.optimiser.flat([of[v.path] for v in trained], trained))
    return as_vector(vectors)


def _updated(
    parts: StepParts, state: ServedState, read: _Read, gradient: Any, statistics: dict[str, Any], finite: Any
) -> Any:
    """Apply an update on each server; return the number of other updates since the reading."""
    trained = [shard.among(parts.model.trainable_variables) for shard in state.shards]
    own_parts = tf.split(gradient, [numbers_in(own) for own in trained])
    late = None
    for shard, own, part in zip(state.shards, trained, own_parts, strict=True):
        kept = [v.path for v in shard.kept if v.path in statistics]
        with tf.device(shard.device):
            on_server = tf.identity(part)
            changes = {p: (tf.identity(read.values[p]), tf.identity(statistics[p])) for p in kept}
            ok = None if finite is None else tf.identity(finite)
            # All of it is there before any is applied: a worker that is lost while it sends changes nothing.
            with tf.control_dependencies([on_server, *(t for pair in changes.values() for t in pair)]):
                before = None if shard.optimiser is None else tf.identity(shard.optimiser.iterations.value)
                _update_shard(shard, own, on_server, ok)
                follow(shard, changes, shared=state.shared)
                if shard.averaged is not None:
                    _if(ok, shard.averaged.take_in)
                if shard is state.shards[0] and state.loss_scale is not None:
                    state.loss_scale.follow(ok)
        if shard.optimiser is state.counter:
            late = tf.identity(before) - read.updates
    return late


def _update_shard(shard: Shard, trained: Sequence[Any], gradient: Any, ok: Any) -> None:
    """Update a server's variables if the gradient is finite (`ok`; None without a loss scale)."""

    def apply() -> None:
        if shard.optimiser is None:
            return
        if trained:
            shard.optimiser.apply(gradient, trained)
        else:  # frozen for now: its learning rate goes on with that of the others
            shard.optimiser.count()

    _if(ok, apply)


def _if(ok: Any, call: Callable[[], None]) -> None:
    """Call a function if `ok`, a boolean scalar, is true; None: always."""
    if ok is None:
        call()
    else:
        tf.cond(ok, call, lambda: None)


def follow(shard: Shard, changes: dict[str, tuple[Any, Any]], *, shared: bool) -> None:
    """Apply a step's changes of the statistics that it read; `changes`: (before, after) by path.

    Changes of several workers are added, so that none is lost.
    """
    for v in shard.kept:
        if v.path in changes:
            before, after = changes[v.path]
            if shared:
                v.value.assign_add(after - before)
            else:
                v.assign(after)


def _by_type(variables: Sequence[Any]) -> list[list[Any]]:
    groups: dict[str, list[Any]] = {}
    for v in variables:
        groups.setdefault(v.dtype, []).append(v)
    return list(groups.values())
