"""Law 2, equivalence: one step on R replicas equals one step on one device, in float64.

Each case also runs the naive variant that it guards against, and shows that the test would see it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.labels import IGNORE
from segmenter.normalisation import Normalisation
from segmenter.schema import LossConfig, ModelConfig, TrainingConfig

BATCH, SIDE, BANDS, CLASSES = 8, 16, 3, 4
MODEL = ModelConfig(depth=2, width=4)
LIMIT, SEEN = 1e-10, 1e-4
Result = dict[str, Any]


@functools.cache
def strategy_of(replicas: tuple[str, ...]) -> Any:
    """One strategy per set of devices for the whole process: two of them mix up their collectives' keys."""
    import tensorflow as tf

    if len(replicas) > 1:
        return tf.distribute.MirroredStrategy(replicas)
    return tf.distribute.OneDeviceStrategy(replicas[0])


def batch(ignored: str) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]:
    """A batch with ignored pixels: none, or lopsided (replica 0 almost all, replica 1 of 4 all)."""
    rng = np.random.default_rng(7)
    image = rng.integers(0, 256, (BATCH, SIDE, SIDE, BANDS), np.uint8)
    valid = rng.random((BATCH, SIDE, SIDE)) > 0.1
    label = rng.integers(0, CLASSES, (BATCH, SIDE, SIDE), np.uint8)
    if ignored == "lopsided":
        label[0] = IGNORE
        label[1, 1:] = IGNORE
        label[2:4] = IGNORE
    return image, valid, label


def after_steps(
    replicas: list[str], loss: LossConfig, ignored: str, *, steps: int = 1, clip: float = 0.0, naive: str = ""
) -> Result:
    """Loss, gradients (as the change of the weights under SGD), and BatchNorm statistics."""
    import keras
    import tensorflow as tf

    from segmenter import steps as steps_module
    from segmenter.losses import segmentation_loss
    from segmenter.model import build_model
    from segmenter.optimisers import build_optimiser

    strategy = strategy_of(tuple(replicas))
    training = TrainingConfig(
        global_batch=BATCH,
        optimizer="sgd",
        learning_rate=0.1,
        weight_decay=0,
        schedule="constant",
        warmup=0,
        clip_norm=clip,
    )
    keras.utils.set_random_seed(1)
    weights = (1.0, 3.0, 0.5, 2.0) if loss.class_weights != "none" else None
    with strategy.scope():
        model = build_model(
            MODEL, BANDS, CLASSES, dtype="float64", synchronised=len(replicas) > 1 and naive != "local_norm"
        )
        optimiser = build_optimiser(training, model, 10)
    share = segmentation_loss(loss, weights, BATCH)
    if naive == "mean_of_means":
        share = _mean_of_means(share, len(replicas))
    parts = steps_module.StepParts(
        strategy, model, optimiser, share, Normalisation.of([120.0] * BANDS, [60.0] * BANDS), 8
    )
    step = steps_module.make_step(parts)
    content = batch(ignored)
    before = [v.numpy() for v in model.trainable_variables]
    for _ in range(steps):
        data = tf.data.Dataset.from_tensors(content).map(lambda *x: x)
        total, held = step(next(iter(strategy.experimental_distribute_dataset(data))))
    return {
        "loss": [np.asarray(total)],
        "gradients": [b - v.numpy() for b, v in zip(before, model.trainable_variables, strict=True)],
        "statistics": [v.numpy() for v in model.non_trainable_variables if "moving" in v.path],
        "held": [np.asarray(held)[0]],
    }


def _mean_of_means(share: Any, replicas: int) -> Any:
    """The trap: each replica divides by its own number of images with a valid pixel."""
    import tensorflow as tf

    def loss(labels: Any, logits: Any) -> Any:
        images = tf.reduce_any(labels != IGNORE, axis=(1, 2))
        own = tf.reduce_sum(tf.cast(images, logits.dtype))
        return share(labels, logits) * BATCH / tf.maximum(own, 1) / replicas

    return loss


def difference(a: Result, b: Result, kind: str) -> float:
    """Largest |a − b| over all tensors of a kind, relative to the largest |b|."""
    largest = max(np.abs(x).max() for x in b[kind])
    return float(max(np.abs(x - y).max() for x, y in zip(a[kind], b[kind], strict=True)) / largest)


LOSSES = {
    "cross-entropy": LossConfig(),
    "weighted, smoothed": LossConfig(class_weights=(1.0, 3.0, 0.5, 2.0), label_smoothing=0.1),
    "dice": LossConfig(cross_entropy=0, dice=1),
    "sum": LossConfig(dice=0.5),
}


@pytest.mark.parametrize("ignored", ["none", "lopsided"])
@pytest.mark.parametrize("loss", LOSSES)
def test_equivalence(tensorflow: ModuleType, four_replicas: list[str], loss: str, ignored: str) -> None:
    many = after_steps(four_replicas, LOSSES[loss], ignored)
    one = after_steps(four_replicas[:1], LOSSES[loss], ignored)
    for kind in ("loss", "gradients", "statistics"):
        assert difference(many, one, kind) <= LIMIT, kind
    assert np.array_equal(many["held"][0], one["held"][0])


def test_equivalence_after_five_steps_with_clipping(tensorflow: ModuleType, four_replicas: list[str]) -> None:
    many = after_steps(four_replicas, LOSSES["sum"], "lopsided", steps=5, clip=0.05)
    one = after_steps(four_replicas[:1], LOSSES["sum"], "lopsided", steps=5, clip=0.05)
    free = after_steps(four_replicas[:1], LOSSES["sum"], "lopsided", steps=5)
    for kind in ("loss", "gradients", "statistics"):
        assert difference(many, one, kind) <= LIMIT, kind
    assert difference(free, one, "gradients") > SEEN  # the clipping does clip


@pytest.mark.parametrize("naive", ["mean_of_means", "local_norm"])
def test_naive_variants_are_seen(tensorflow: ModuleType, four_replicas: list[str], naive: str) -> None:
    many = after_steps(four_replicas, LOSSES["cross-entropy"], "lopsided", naive=naive)
    one = after_steps(four_replicas[:1], LOSSES["cross-entropy"], "lopsided")
    assert difference(many, one, "gradients") > SEEN
