"""Dropout over replicas: masks of the global batch, new in each step, the same after a resume."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from datasets.commands.gpu.bench import strategy_of
from segmenter.base.errors import CheckpointError
from segmenter.config.recipe import UNetConfig
from segmenter.model.building import build_model
from segmenter.model.dropout import masks_of
from segmenter.runs.checkpoints import assign_weights, transfer_weights, weight_arrays
from tests.helpers.refusals import refused

RATE = 0.3
MODEL = UNetConfig(depth=1, width=4, dropout=RATE)
Mask = NDArray[np.bool_]


@pytest.fixture(autouse=True)
def four_devices(tensorflow: ModuleType) -> ModuleType:
    return tensorflow


def layer(seed: int = 5, rate: float = RATE, dtype: Any = "float32", kind: str = "GlobalDropout") -> Any:
    from segmenter.model import dropout

    return getattr(dropout, kind)(rate, seed, dtype=dtype)


def kept(output: Any) -> Mask:
    return np.asarray(output) != 0


def masks(
    replicas: int,
    shape: tuple[int, ...],
    dtype: str = "float32",
    steps: int = 3,
    kind: str = "GlobalDropout",
) -> Mask:
    """(steps, B, …): the masks of the global batch in the first steps."""
    strategy = strategy_of(replicas)
    with strategy.scope():
        dropout = layer(dtype=keras.DTypePolicy(dtype), kind=kind)
        dropout.build(shape)

    @tf.function
    def step() -> Any:
        local = tf.ones((shape[0] // replicas, *shape[1:]), dropout.compute_dtype)
        return strategy.run(lambda: dropout(local, training=True))

    return np.stack([np.concatenate(strategy.experimental_local_results(step())) != 0 for _ in range(steps)])


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", (8, 3)), ("float64", (4, 3, 7, 5)), ("mixed_float16", (8, 3, 5, 8))]
)
def test_replicas_draw_the_mask_of_the_global_batch(dtype: str, shape: tuple[int, ...]) -> None:
    one = masks(1, shape)
    for replicas in (2, 4):
        assert np.array_equal(masks(replicas, shape, dtype), one)


@pytest.mark.parametrize(
    ("kind", "shares"), [("GlobalDropout", (8,)), ("GlobalDropout", (3, 0, 1, 4)), ("DropPath", (2, 2, 2, 2))]
)
def test_masks_go_with_the_images_in_whatever_order(kind: str, shares: tuple[int, ...]) -> None:
    """Replicas that have the images of some slots, as many as each can, draw the masks of these slots."""
    shape, order = (8, 3, 5, 6), np.random.default_rng(4).permutation(8)
    blocks = np.split(order, np.cumsum(shares)[:-1])
    strategy = strategy_of(len(shares))
    with strategy.scope():
        dropout = layer(kind=kind)
        dropout.build(shape)

    def own(slot_b: Any) -> Any:
        with masks_of(slot_b, 8):
            return dropout(tf.ones((slot_b.shape[0], *shape[1:])), training=True)

    @tf.function
    def step() -> Any:
        slots = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(blocks[context.replica_id_in_sync_group], tf.int64)
        )
        return strategy.run(own, args=(slots,))

    expected = masks(1, shape, steps=2, kind=kind)
    for in_order in expected:
        found = np.concatenate(strategy.experimental_local_results(step()))
        np.testing.assert_array_equal(found != 0, in_order[order])


def test_drop_path_leaves_out_whole_images_the_same_ones_on_any_number_of_replicas() -> None:
    shape, steps = (8, 3, 5, 6), 40
    one = masks(1, shape, steps=steps, kind="DropPath")
    images = one[:, :, 0, 0, 0]
    assert np.array_equal(one, np.broadcast_to(images[..., None, None, None], one.shape))
    assert abs(images.mean() - (1 - RATE)) < 5 * np.sqrt(RATE * (1 - RATE) / images.size)
    assert len({tuple(step) for step in images.tolist()}) > 20
    for replicas in (2, 4):
        assert np.array_equal(masks(replicas, shape, "mixed_float16", steps, kind="DropPath"), one)


def test_masks_differ_between_images_replicas_steps_and_layers() -> None:
    drawn = masks(4, (8, 5, 5, 8)).reshape(3 * 8, -1)
    other = kept(layer(6)(np.ones((8, 5, 5, 8), "float32"), training=True)).reshape(8, -1)
    every = np.concatenate([drawn, other]).astype(float)
    correlation = np.corrcoef(every) - np.eye(len(every))
    assert np.abs(correlation).max() < 0.35  # 200 draws: 5 standard deviations; the same mask has 1


@pytest.mark.parametrize(("rate", "dtype"), [(0.1, "float32"), (0.5, "float64"), (0.9, "mixed_float16")])
def test_share_and_scale(rate: float, dtype: str) -> None:
    policy = keras.DTypePolicy(dtype)
    x = np.random.default_rng(0).uniform(1, 2, (50, 40, 51)).astype(policy.compute_dtype)
    y = np.asarray(layer(rate=rate, dtype=policy)(x, training=True))
    assert y.dtype == x.dtype
    assert abs(kept(y).mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / x.size)
    np.testing.assert_allclose(y[kept(y)], x[kept(y)] / (1 - rate), rtol=2 * np.finfo(x.dtype).eps)


def test_it_does_nothing_but_in_training() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")
    dropout = layer()
    assert np.array_equal(dropout(x), x)
    assert np.array_equal(dropout(x, training=False), x)
    assert np.array_equal(layer(rate=0.0)(x, training=True), x)
    assert dropout.masks.numpy().tolist() == [5, 0]
    for rate in (-0.1, 1.0):
        with pytest.raises(ValueError, match="expected a rate"):
            layer(rate=rate)


def _in_a_loop(dropout: Any, x: Any) -> Any:
    calls = tf.TensorArray(x.dtype, 3)
    for i in tf.range(3):  # a tf.while_loop, as micro-batches are
        calls = calls.write(i, dropout(x, training=True))
    return calls.stack()


def _one_by_one(dropout: Any, x: Any) -> Any:
    return tf.stack([dropout(x, training=True) for _ in range(3)])


@pytest.mark.parametrize("xla", [False, True])
def test_every_call_draws_a_mask_compiled_or_not(xla: bool) -> None:
    """XLA has other numbers than TensorFlow for the same key and counter; both repeat their own."""

    def drawn(calls: Callable[..., Any], seed: int, compiled: bool = True) -> Mask:
        x, dropout = tf.ones((2, 3, 6)), layer(seed)
        dropout.build(x.shape)
        found = kept((tf.function(calls, jit_compile=xla) if compiled else calls)(dropout, x))
        assert dropout.masks.numpy().tolist() == [seed, 3]
        return found

    first = drawn(_in_a_loop, 5)
    assert np.array_equal(first, drawn(_one_by_one, 5))
    if not xla:
        assert np.array_equal(first, drawn(_one_by_one, 5, compiled=False))
    every = np.concatenate([first, drawn(_in_a_loop, 6)]).reshape(12, -1)  # 2 seeds, 3 calls, 2 images
    assert len(np.unique(every, axis=0)) == 12


def network(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return build_model(MODEL, 3, 4)


def test_masks_go_on_where_a_checkpoint_left_them_and_an_older_one_is_not_resumed() -> None:
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    whole, resumed = network(1), network(2)
    whole(x, training=True)
    arrays = weight_arrays(whole, "model")
    expected = [np.asarray(whole(x, training=True)) for _ in range(2)]
    assign_weights(resumed, arrays, "model")
    got = [np.asarray(resumed(x, training=True)) for _ in range(2)]
    np.testing.assert_array_equal(got, expected)
    assert not np.array_equal(*expected)

    model = network(1)
    arrays = weight_arrays(model, "model")
    del arrays["model/dropout/masks"]
    arrays["model/dropout/seed_generator/seed_generator_state"] = np.zeros(2, np.uint32)
    assign_weights(model, arrays, "model", predicting=True)
    with refused(CheckpointError, where="checkpoint", got="none"):
        assign_weights(model, arrays, "model")

    model, other = network(1), network(2)
    before = model.get_layer("dropout").masks.numpy()
    kept_names, fresh = transfer_weights(model, weight_arrays(other, "model"))
    assert np.array_equal(model.get_layer("dropout").masks.numpy(), before)
    assert not any("masks" in name for name in [*kept_names, *fresh])
