"""Layers over replicas and windows: normalisation of pixels and of batches, dropout by the global batch.

Each law of batches is also held against Keras' `synchronized=True` or a naive variant where that breaks it.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.collectives import collectives_of
from segmenter.base.errors import CheckpointError
from segmenter.config.recipe import UNetConfig
from segmenter.model.batchnorm import SyncBatchNorm
from segmenter.model.building import build_model
from segmenter.model.dropout import masks_of
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import network_geometry
from segmenter.runs.checkpoints import assign_weights, transfer_weights, weight_arrays
from tests.helpers.laboratory import strategy_of
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "int32", "uint64"])
def test_far_from_zero_differences_stay(tensorflow: ModuleType, dtype: str, by_rows: bool) -> None:
    tf = tensorflow
    step = 2.0**-10 if dtype == "float64" else 1
    offsets = np.array([4_500_000, 2_000_000_000 if dtype != "float64" else -80_000])
    ramp = np.arange(1024).reshape(32, 32, 1) * step
    image = (offsets + ramp).astype(dtype)
    mean, std = image.reshape(-1, 2).mean(axis=0, dtype=np.float64), [ramp.std()] * 2
    found = Normalisation.of(mean, std).apply(tf.constant(image[None]), by_rows=by_rows).numpy()
    assert found.dtype == np.float32
    expected = (image.astype(np.float64) - mean) / std
    np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-6)
    assert len(np.unique(found[..., 1])) == 1024


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_types_that_float32_holds_keep_their_bits(tensorflow: ModuleType, dtype: str, by_rows: bool) -> None:
    tf = tensorflow
    rng = np.random.default_rng(3)
    image, valid = rng.integers(0, 120, (9, 7, 3)).astype(dtype), rng.random((9, 7)) > 0.2
    mean, std = np.float32([91.3, 7.7, -3.1]), np.float32([30.1, 2.2, 9.9])
    scale = Normalisation.of(mean, std)
    found = scale.apply(tf.constant(image), tf.constant(valid), by_rows=by_rows).numpy()
    expected = (image.astype(np.float32) - mean) / std
    np.testing.assert_array_equal(found, np.where(valid[..., None], expected, 0))


EXACT = 1e-10  # of the largest value, in float64
SPLITS = {"even": [2, 2, 2, 2], "uneven": [5, 0, 2, 1], "last": [0, 0, 0, 8]}
Arrays = dict[str, NDArray[Any]]


def images(shape: tuple[int, ...], dtype: str = "float64") -> NDArray[Any]:
    rng = np.random.default_rng(11)
    return (3 * rng.normal(size=shape) + rng.normal(size=shape[-1]) * 5).astype(dtype)


def layer_of(kind: str, shape: tuple[int, ...], **options: Any) -> Any:
    """`ours`, `keras` or `keras synchronized`, with weights that are not those it starts from."""
    import keras

    options = {"momentum": 0.9, "dtype": "float64", **options}
    if kind == "ours":
        layer = SyncBatchNorm(**options)
    else:
        layer = keras.layers.BatchNormalization(synchronized=kind == "keras synchronized", **options)
    layer.build((None, *shape[1:]))
    rng = np.random.default_rng(5)
    layer.set_weights([rng.uniform(0.5, 2, w.shape) for w in layer.weights])
    return layer


def share(layer: Any, x: Any, training: bool) -> dict[str, Any]:
    """What one replica computes of the loss Σ sin(y) and its gradients; the sum is the global loss."""
    import tensorflow as tf

    weights = [v.value for v in layer.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=training)
        loss = tf.reduce_sum(tf.sin(tf.cast(y, tf.float64)))
    dx, *gradients = tape.gradient(loss, [x, *weights])
    found = [tf.zeros(0, tf.float64), *(tf.cast(g, tf.float64) for g in gradients)]
    return {"y": y, "dx": dx, "weights": tf.concat(found, 0)}


def alone(kind: str, x: NDArray[Any], *, training: bool = True, **options: Any) -> Arrays:
    import tensorflow as tf

    with tf.device("CPU:0"):
        layer = layer_of(kind, x.shape, **options)
        result = share(layer, tf.constant(x), training)
    moving = [v.numpy() for v in layer.non_trainable_variables]
    return {k: np.asarray(v) for k, v in result.items()} | {"moving": np.concatenate(moving)}


def together(replicas: list[str], kind: str, x: NDArray[Any], split: list[int], **options: Any) -> Arrays:
    """The same with the batch dealt to the replicas; every replica's moving statistics, one a row."""
    import tensorflow as tf

    strategy = strategy_of(len(replicas))
    starts = np.cumsum([0, *split])
    with strategy.scope():
        layer = layer_of(kind, x.shape, **options)

    def dealt(values: NDArray[Any]) -> Any:
        def block(context: Any) -> Any:
            i = context.replica_id_in_sync_group
            return tf.constant(values[starts[i] : starts[i + 1]])

        return strategy.experimental_distribute_values_from_function(block)

    @tf.function
    def step(x: Any) -> Any:
        return strategy.run(lambda x: share(layer, x, True), args=(x,))

    result = {
        k: [v.numpy() for v in strategy.experimental_local_results(r)] for k, r in step(dealt(x)).items()
    }
    moving = [[part.numpy() for part in v.value.values] for v in layer.non_trainable_variables]
    return {
        "y": np.concatenate(result["y"]),
        "dx": np.concatenate(result["dx"]),
        "weights": np.sum(result["weights"], axis=0),
        "moving": np.concatenate(moving, axis=1),
    }


def off(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Largest |a − b|, of the largest |b|."""
    return float(np.abs(a - b).max() / np.abs(b).max())


CASES: dict[str, dict[str, Any]] = {
    "images": {},
    "vectors": {"shape": (33, 5)},
    "channels first": {"shape": (4, 5, 6, 7), "axis": 1},
    "no scale": {"scale": False, "epsilon": 0.5, "momentum": 0.5},
    "no centre": {"center": False},
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_one_device_is_keras(case: str, training: bool) -> None:
    options = dict(CASES[case])
    x = images(options.pop("shape", (4, 6, 7, 5)))
    ours, keras = (alone(kind, x, training=training, **options) for kind in ("ours", "keras"))
    for name, value in keras.items():
        assert off(ours[name], value) <= EXACT, name


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("case", ["images", "no scale", "no centre"])
@pytest.mark.parametrize(("mean", "limit"), [(0, 3e-5), (600, 5e-3)])
def test_one_device_in_float32_is_keras_in_float64(mean: int, limit: float, case: str, xla: bool) -> None:
    """One kernel computes the gradient there; a mean of 200 deviations takes two of seven digits."""
    import tensorflow as tf

    x = images((3, 33, 41, 5), "float32") + np.float32(mean)
    exact = alone("keras", x.astype(np.float64), **CASES[case])
    layer = layer_of("ours", x.shape, **CASES[case], dtype="float32")
    found = tf.function(lambda x: share(layer, x, True), jit_compile=xla)(tf.constant(x))
    for name in found:
        assert off(found[name].numpy().astype(np.float64), exact[name]) <= limit, name


def test_one_device_without_an_image_has_no_gradient() -> None:
    found = alone("ours", images((0, 6, 7, 5), "float32"), dtype="float32")
    assert found["weights"].shape == (10,)
    assert (found["weights"] == 0).all()


@pytest.mark.parametrize("split", SPLITS)
def test_replicas_are_one_device(four_replicas: list[str], split: str) -> None:
    x = images((8, 6, 7, 5))
    one, many = alone("keras", x), together(four_replicas, "ours", x, SPLITS[split])
    for name in ("y", "dx", "weights"):
        assert off(many[name], one[name]) <= EXACT, name
    # Each replica wrote the same, to the bit, and once: a second update would move it further.
    assert (many["moving"] == many["moving"][0]).all()
    assert off(many["moving"][0], one["moving"]) <= EXACT
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))  # the biased variance
    before = np.concatenate(layer_of("keras", x.shape).get_weights()[2:])
    assert off(many["moving"][0], 0.9 * before + 0.1 * np.concatenate([mean, variance])) <= EXACT


@pytest.mark.slow
def test_a_batch_without_pixels_teaches_nothing(four_replicas: list[str]) -> None:
    empty = together(four_replicas, "ours", images((0, 6, 7, 5)), [0, 0, 0, 0])
    before = np.concatenate(layer_of("keras", (0, 6, 7, 5)).get_weights()[2:])
    assert (empty["moving"] == before).all()
    assert (empty["weights"] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [pytest.param("float32", marks=pytest.mark.slow), "mixed_float16"])
def test_sound_from_the_first_step(four_replicas: list[str], policy: str) -> None:
    """Mean 1000, deviation 1: float32 has 7 digits, of which the mean takes 3.

    Held against float64 statistics of the same quantised input (float16 has steps of 0.5 there). Tolerance:
    4 roundings of the mean (6.1e-5 each), 1e-5 of the variance; the outputs are off by the mean's error in
    deviations, and in float16 by their own rounding.
    """
    rng = np.random.default_rng(3)
    dtype = "float16" if "16" in policy else "float32"
    x = (1000 + rng.normal(size=(8, 64, 64, 3))).astype(dtype)
    mean, variance = (f(x.astype(np.float64), axis=(0, 1, 2)) for f in (np.mean, np.var))
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    rounding = 5e-4 * np.abs(expected).max() if dtype == "float16" else 0

    def errors(kind: str) -> tuple[float, float, float]:
        options = {"momentum": 0.0, "dtype": policy, "scale": False, "center": False, "epsilon": 1e-3}
        result = together(four_replicas, kind, x, SPLITS["even"], **options)
        assert result["y"].dtype == x.dtype
        return (
            float(np.abs(result["moving"][0, :3] - mean).max()),
            float(np.abs(result["moving"][0, 3:] / variance - 1).max()),
            float(np.abs(result["y"].astype(np.float64) - expected).max()),
        )

    ours, keras = errors("ours"), errors("keras synchronized")
    limits = (2.5e-4, 1e-5, 3e-4 + rounding)
    assert all(error <= limit for error, limit in zip(ours, limits, strict=True)), ours
    # E[x²] − E[x]² is off by a thousand times as much: the digits of 1000² leave none for 1.
    assert keras[1] > 1e-2
    assert keras[2] > 10 * limits[2]


def test_mixed_precision_keeps_what_it_is_given() -> None:
    """float16 in and out, float32 between: the gradient too is off by no more than roundings to float16."""
    x = images((4, 6, 7, 5), "float16")
    mixed, exact = alone("ours", x, dtype="mixed_float16"), alone("keras", x.astype(np.float64))
    assert mixed["y"].dtype == mixed["dx"].dtype == np.float16
    assert mixed["moving"].dtype == np.float32
    for name, limit in {"y": 1e-3, "dx": 3e-3, "weights": 3e-3, "moving": 1e-6}.items():
        assert off(mixed[name].astype(np.float64), exact[name]) <= limit, name


def models(policy: str = "float32") -> tuple[Any, Any]:
    """The same U-Net with Keras' layers and with ours."""
    config = UNetConfig(depth=2, width=4)
    return tuple(build_model(config, 3, 4, dtype=policy, synchronised=s) for s in (False, True))  # type: ignore[return-value]


def test_weights_are_keras_by_name_and_order() -> None:
    keras, ours = models()
    assert [w.path for w in ours.weights] == [w.path for w in keras.weights]
    norm = ours.get_layer("down0_norm0")
    assert [w.name for w in norm.weights] == ["gamma", "beta", "moving_mean", "moving_variance"]
    for variable in keras.weights:
        variable.assign(np.random.default_rng(1).uniform(0.5, 2, variable.shape))
    assign_weights(ours, weight_arrays(keras, "model"), "model")
    x = images((2, 16, 16, 3), "float32")
    assert np.array_equal(ours(x, training=False), keras(x, training=False))


@pytest.mark.slow
def test_prediction_is_the_same_graph(tensorflow: ModuleType) -> None:
    def graph(model: Any) -> Any:
        spec = tensorflow.TensorSpec((None, 32, 32, 3))
        return tensorflow.function(lambda x: model(x, training=False)).get_concrete_function(spec)

    keras, ours = (graph(model) for model in models())
    assert [op.type for op in ours.graph.get_operations()] == [op.type for op in keras.graph.get_operations()]
    assert collectives_of(ours) == 0
    assert network_geometry(models()[1]) == network_geometry(models()[0])


def test_frozen_it_predicts() -> None:
    layer, x = layer_of("ours", (2, 4, 4, 3)), images((2, 4, 4, 3))
    predicted = layer(x, training=False)
    layer.trainable = False
    before = layer.get_weights()
    np.testing.assert_allclose(layer(x, training=True), predicted, rtol=1e-14)
    assert all(np.array_equal(a, b) for a, b in zip(before, layer.get_weights(), strict=True))


def test_what_is_not_offered_is_refused(tensorflow: ModuleType) -> None:
    tf, x = tensorflow, tensorflow.constant(images((2, 4, 4, 3)))
    with pytest.raises(ValueError, match=r"expected renorm=False"):
        SyncBatchNorm(renorm=True)
    layer = layer_of("ours", x.shape)
    with tf.GradientTape() as outer:
        outer.watch(x)
        gradient = share(layer, x, True)["dx"]
    with pytest.raises(LookupError, match="first derivatives"):
        outer.gradient(gradient, x)


RATE = 0.3
MODEL = UNetConfig(depth=1, width=4, dropout=RATE)
Mask = NDArray[np.bool_]


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


def test_dropout_does_nothing_but_in_training() -> None:
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


@pytest.mark.slow
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
