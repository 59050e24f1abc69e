"""Batch normalisation over all replicas, with one collective forward and one backward.

Ioffe & Szegedy, arXiv:1502.03167, with the batch spread over R replicas. Keras' `synchronized=True` needs
three all-reduces forward (sum, sum of squares, count) and two backward, and takes E[x²] − E[x]², which in
float32 has no correct digit left where the mean is some thousand deviations. Here each replica computes the
mean of its own pixels and M2, the sum of squares about that mean; the replicas' count, mean and M2 go into
one tensor, and are merged by the pairwise formula of Chan, Golub & LeVeque (Updating formulae and a pairwise
algorithm for computing sample variances, Stanford STAN-CS-79-773, 1979), which subtracts no large numbers.
studies/frameworks.md has the savings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

_KERAS_ONLY = ("synchronized", "renorm", "renorm_clipping", "renorm_momentum")
_EPSILON = 2.0**-10
_SECOND = "SyncBatchNorm has first derivatives only"


class Moments(NamedTuple):
    """Moments of the pixels, by channel.

    Attributes:
        count: (), number of pixels of each channel.
        mean: (C,), 0 if there is no pixel.
        m2: (C,), sum over the pixels of (x − mean)².
    """

    count: Any
    mean: Any
    m2: Any

    @property
    def variance(self) -> Any:
        """(C,) biased variance, M2 / count, as Keras 3 computes it and stores it in its moving variance."""
        return tf.math.divide_no_nan(self.m2, self.count)


@keras.saving.register_keras_serializable("segmenter")
class SyncBatchNorm(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with the statistics of the global batch.

    Takes its arguments (without `renorm`), has its weights under the same names and in the same order, and
    on one device computes what it does. Training, statistics are those of the pixels of all replicas,
    weighted by how many each has; one without any is right. 16-bit inputs are kept for the backward pass as
    they are, and computed with in float32. The moving variance is the biased one, as Keras' is. A global
    batch without a pixel leaves the moving statistics alone. Inference is Keras' own, without a collective.

    Every replica writes the same moving statistics to its own copy; the first replica's is saved. In a
    cross-replica context, in which a layer is at most traced, it normalises by what it is given.

    Raises:
        ValueError: `renorm`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        if options.get("renorm"):
            raise ValueError("SyncBatchNorm: expected renorm=False, batch renormalisation is not offered")
        super().__init__(*args, **{k: v for k, v in options.items() if k not in _KERAS_ONLY})

    def get_config(self) -> dict[str, Any]:
        """Return Keras' configuration without the keys that this layer does not take."""
        return {k: v for k, v in super().get_config().items() if k not in _KERAS_ONLY}

    def add_weight(self, **options: Any) -> Any:
        """Add a weight; declare that every replica writes its own copy of the moving statistics."""
        if options.get("trainable", True):
            return super().add_weight(**options)
        # Read when asked for, and of the first replica: with Keras' default, on_write, declaring an
        # aggregation would cost a copy to all devices a step. `add_weight` does not take it.
        shared = {"synchronization": "on_read", "aggregation": "only_first_replica"}
        with keras.name_scope(self.name, caller=self):
            return keras.Variable(dtype=self.variable_dtype, **shared, **options)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Normalise the inputs: by the global batch if training, else by the moving statistics.

        If frozen, it computes the same in training as at inference, in fewer passes over the pixels.
        """
        if not training:
            return super().call(inputs, training=False)
        axes = tuple(self._reduction_axes)
        dtype = tf.float64 if inputs.dtype == tf.float64 else tf.float32
        if not self.trainable:
            return tf.cast(self._by_moving_statistics(inputs, axes, dtype), self.compute_dtype)
        pixels = tf.cast(tf.stop_gradient(inputs), dtype)  # the backward pass below accounts for all of it
        moments = over_replicas(local_moments(pixels, axes))
        self._follow(self.moving_mean, moments.mean, moments.count)
        self._follow(self.moving_variance, moments.variance, moments.count)
        gamma = tf.cast(self.gamma, dtype) if self.scale else tf.ones_like(moments.mean)
        beta = tf.cast(self.beta, dtype) if self.center else tf.zeros_like(moments.mean)
        function = _normalisation(moments, self.epsilon, axes)
        return tf.cast(function(inputs, gamma, beta), self.compute_dtype)

    def _by_moving_statistics(self, inputs: Any, axes: Sequence[int], dtype: Any) -> Any:
        """Return the inputs normalised by the moving statistics, as constants without gradients."""
        mean, scale = tf.cast(self.moving_mean, dtype), tf.cast(self.moving_variance, dtype)
        scale = tf.math.rsqrt(scale + self.epsilon)
        scale = scale * tf.cast(self.gamma, dtype) if self.scale else scale
        shift = tf.cast(self.beta, dtype) if self.center else tf.zeros_like(mean)

        @tf.custom_gradient
        def normalise(x: Any) -> tuple[Any, Callable[[Any], Any]]:
            def backward(gradient: Any) -> Any:
                return _only_first(_affine(gradient, axes, scale))

            return _affine(x, axes, scale, shift, mean), backward

        return normalise(inputs)

    def _follow(self, moving: Any, value: Any, count: Any) -> None:
        before = tf.cast(moving, value.dtype)
        after = before * self.momentum + value * (1.0 - self.momentum)
        # A batch that overflows is skipped by the loss scale, and must not stay in the statistics for good.
        moving.assign(tf.where((count > 0) & tf.math.is_finite(value), after, before))


def local_moments(x: Any, axes: Sequence[int]) -> Moments:
    """Return the moments of one replica's pixels, also of none, in two passes.

    Args:
        x: float32 or float64.
        axes: all but the channels'.
    """
    count = tf.cast(tf.reduce_prod([tf.shape(x)[axis] for axis in axes]), x.dtype)
    mean = tf.math.divide_no_nan(_total(x, axes), count)
    m2 = _total(tf.math.squared_difference(x, mean), axes)
    return Moments(count, tf.squeeze(mean, axes), tf.squeeze(m2, axes))


def merge_moments(parts: Moments) -> Moments:
    """Merge the moments of several sets of pixels.

    N = Σ nᵣ; mean = m + Σ nᵣ (meanᵣ − m) / N, about the mean m of the largest set, to avoid sums of large
    numbers; M2 = Σ M2ᵣ + Σ nᵣ (meanᵣ − mean)² (Chan, Golub & LeVeque 1979, for R sets at once).

    Args:
        parts: count (R, 1), mean (R, C), m2 (R, C).
    """
    total = tf.reduce_sum(parts.count)
    about = tf.gather(parts.mean, tf.argmax(parts.count[:, 0]))
    shift = tf.reduce_sum(parts.count * (parts.mean - about), axis=0)
    mean = about + tf.math.divide_no_nan(shift, total)
    between = tf.reduce_sum(parts.count * tf.square(parts.mean - mean), axis=0)
    return Moments(total, mean, tf.reduce_sum(parts.m2, axis=0) + between)


def over_replicas(moments: Moments) -> Moments:
    """Return the moments of the global batch by one collective, equal on all replicas to the bit.

    Each replica puts its row into a tensor (R, 2 C + 1) of zeros; their sum over replicas contains all rows.
    TensorFlow's all-gather takes several collectives, and adding zeros is exact in any order.
    """
    context = tf.distribute.get_replica_context()
    replicas = 1 if context is None else context.num_replicas_in_sync
    if replicas == 1:
        return moments
    row = tf.concat([moments.count[None], moments.mean, moments.m2], axis=0)
    rows = _sum(_in_its_row(row, context.replica_id_in_sync_group, replicas))
    channels = moments.mean.shape[0]
    return merge_moments(Moments(*tf.split(rows, [1, channels, channels], axis=1)))


def _in_its_row(row: Any, replica: Any, replicas: int) -> Any:
    """Return (R, n) zeros with `row` (n,) at the replica's index."""
    if tf.get_static_value(replica) is None:
        # On a TPU all cores run one program, and XLA pads by numbers only that it knows beforehand.
        mine = tf.equal(tf.range(replicas), tf.cast(replica, tf.int32))
        return tf.where(mine[:, None], row[None], tf.zeros((), row.dtype))
    before = tf.cast(replica, tf.int32)
    return tf.pad(row[None], [[before, replicas - 1 - before], [0, 0]])


def _normalisation(moments: Moments, epsilon: float, axes: Sequence[int]) -> Any:
    """Return the function (x, γ, β) → γ x̂ + β, x̂ = (x − mean) / √(variance + ε), and its gradient.

    Mean and variance depend on every pixel of the global batch, so ∂L/∂x needs sums over all replicas: with
    y' = ∂L/∂y, x' = γ / √(variance + ε) · (y' − Σ y' / N − x̂ Σ y' x̂ / N) (Ioffe & Szegedy, section 3). The
    gradients of γ and β stay those of the replica's own share, to be summed like those of all weights.
    """
    inverse = tf.math.rsqrt(moments.variance + epsilon)

    @tf.custom_gradient
    def normalise(x: Any, gamma: Any, beta: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        scale = gamma * inverse

        def backward(gradient: Any) -> tuple[Any, ...]:
            if _one_kernel_suffices(x, axes):
                return tuple(map(_only_first, _by_one_kernel(gradient, x, gamma, moments, epsilon)))
            # Computed again from x: kept, it would take as many bytes a pixel more.
            one = tf.constant(np.ones(scale.shape), scale.dtype)
            centred = _affine(x, axes, one, about=moments.mean)
            wide = tf.cast(gradient, scale.dtype)
            sums = _total(wide, axes), _total(wide * tf.cast(centred, scale.dtype), axes)
            own = tf.stack([tf.reshape(sums[0], [-1]), tf.reshape(sums[1], [-1]) * inverse])
            mean, slope = tf.unstack(tf.math.divide_no_nan(_sum(own), moments.count))
            through = _affine(centred, axes, -scale * slope * inverse, -scale * mean)
            dx = _affine(gradient, axes, scale) + through
            return tuple(map(_only_first, (dx, own[1], own[0])))

        return _affine(x, axes, scale, beta, moments.mean), backward

    return normalise


def _one_kernel_suffices(x: Any, axes: Sequence[int]) -> bool:
    """Return whether TensorFlow's kernel computes the gradient: on a processor, one replica, not in float64.

    On a GPU the kernel wants what only its own forward pass gives.
    """
    context = tf.distribute.get_replica_context()
    alone = context is None or context.num_replicas_in_sync == 1
    spatial = x.dtype != tf.float64 and tuple(axes) == (0, 1, 2)
    return alone and spatial and not tf.config.list_logical_devices("GPU")


def _by_one_kernel(gradient: Any, x: Any, gamma: Any, moments: Moments, epsilon: float) -> tuple[Any, ...]:
    """Return ∂L/∂x, ∂L/∂γ and ∂L/∂β of one replica, in two passes over the pixels in place of eight."""
    return tuple(
        tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=gradient,
            x=x,
            scale=gamma,
            reserve_space_1=moments.mean,
            reserve_space_2=moments.variance,
            reserve_space_3=tf.zeros([0], gamma.dtype),
            epsilon=epsilon,
            is_training=True,
        )[:3]
    )


def _affine(x: Any, axes: Sequence[int], scale: Any, shift: Any = None, about: Any = None) -> Any:
    """Return (x − about) · scale + shift in x's dtype, computed in the dtype of `scale`; these are (C,).

    Except for float64, one kernel (that of BatchNorm at inference) reads and writes 16-bit values directly: a
    tenth of the bytes of separate operations, which cast to float32 and back.
    """
    none = tf.constant(np.zeros(scale.shape), scale.dtype)
    shift, about = (none if each is None else each for each in (shift, about))
    if x.dtype != tf.float64 and tuple(axes) == (0, 1, 2):
        # The kernel multiplies by 1 / √(variance + ε) too: 1, as the two are exact in binary.
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=shift,
            mean=about,
            variance=tf.constant(np.full(scale.shape, 1 - _EPSILON), scale.dtype),
            epsilon=_EPSILON,
            is_training=False,
        ).y
    shape = [1 if axis in axes else scale.shape[0] for axis in range(len(x.shape))]
    scale, shift, about = (tf.reshape(each, shape) for each in (scale, shift, about))
    return tf.cast((tf.cast(x, scale.dtype) - about) * scale + shift, x.dtype)


def _total(values: Any, axes: Sequence[int]) -> Any:
    """Sum over some axes, keeping them with length 1.

    Axes are summed one after the other, the last first: a CPU adds values one by one, which over a million
    pixels of mean 1000 loses all digits in float32; nested sums stay short, at no extra cost.
    """
    for axis in reversed(axes):
        values = tf.reduce_sum(values, axis, keepdims=True)
    return values


def _only_first(gradient: Any) -> Any:
    return tf.raw_ops.PreventGradient(input=gradient, message=_SECOND)


def _sum(value: Any) -> Any:
    """Sum over the replicas, in one all-reduce."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
