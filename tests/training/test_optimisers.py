"""The recipe's optimiser: Keras' own update, to the bit, of all weights as one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.config.recipe import TrainingConfig

CONFIG = {"learning_rate": 0.01, "schedule": "cosine", "warmup": 0, "weight_decay": 0.1}
STEPS = 4


def config(**settings: Any) -> TrainingConfig:
    return TrainingConfig(**{**CONFIG, **settings})


def network(layers: int = 2) -> Any:
    """Weights of odd sizes, some that decay and some that do not, in turns."""
    import keras

    keras.utils.set_random_seed(3)
    x = image = keras.Input((8, 8, 3))
    for i in range(layers):
        x = keras.layers.Conv2D(5 + i, 3, padding="same", bias_initializer="normal", name=f"conv{i}")(x)
        x = keras.layers.LayerNormalization(name=f"norm{i}")(x)
    return keras.Model(image, x)


def gradients_of(model: Any, step: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(step)
    return [rng.normal(size=v.shape).astype(np.float32) for v in model.trainable_variables]


def trained(
    make: Callable[[Any], tuple[Any, Callable[[Any], Any]]], scales: Sequence[float] = (1,) * STEPS
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Weights and state after steps on the same gradients, each times a scale."""
    import tensorflow as tf

    model = network()
    state, apply = make(model)
    for step, scale in enumerate(scales):
        apply([tf.constant(g * np.float32(scale)) for g in gradients_of(model, step)])
    return [v.numpy() for v in model.variables], state()


def ours_of(settings: TrainingConfig) -> Callable[[Any], Any]:
    from segmenter.training.optimiser import build_optimiser

    def make(model: Any) -> Any:
        optimiser, weights = build_optimiser(settings, model, 9), model.trainable_variables
        apply = lambda gradients: optimiser.apply(optimiser.flat(gradients, weights), weights)  # noqa: E731
        return (lambda: list(optimiser.arrays().values())), apply

    return make


def keras_own(settings: TrainingConfig) -> Callable[[Any], Any]:
    """Keras' own optimiser of a recipe, on gradients as they are."""
    import keras

    from segmenter.model.stages import is_decayed
    from segmenter.training.optimiser import Schedule

    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return Schedule(settings, 9)(step)

    def make(model: Any) -> Any:
        limits = {"global_clipnorm": settings.clip_norm or None, "clipvalue": settings.clip_value or None}
        common: dict[str, Any] = {"learning_rate": Rate(), "weight_decay": settings.weight_decay, **limits}
        if settings.optimizer == "adamw":
            optimiser = keras.optimizers.AdamW(**common)
        else:
            looks_ahead = settings.nesterov and settings.momentum > 0
            optimiser = keras.optimizers.SGD(momentum=settings.momentum, nesterov=looks_ahead, **common)
        undecayed = [v for v in model.trainable_variables if not is_decayed(v.path, len(v.shape))]
        optimiser.exclude_from_weight_decay(var_list=undecayed)
        if settings.loss_scaled:
            optimiser = keras.optimizers.LossScaleOptimizer(optimiser)
        optimiser.build(model.trainable_variables)
        apply = lambda gradients: optimiser.apply(gradients, model.trainable_variables)  # noqa: E731
        return (lambda: [v.numpy() for v in optimiser.variables]), apply

    return make


def same(a: Sequence[NDArray[Any]], b: Sequence[NDArray[Any]]) -> bool:
    return all(
        x.dtype == y.dtype and x.shape == y.shape and np.array_equal(x, y) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "clip_value": 0.1},
        {"optimizer": "sgd", "clip_value": 0.1, "momentum": 0.7},
        {"optimizer": "sgd", "nesterov": False},
        {"optimizer": "sgd", "momentum": 0},
    ],
    ids=str,
)
def test_it_is_the_update_of_keras_to_the_bit(tensorflow: ModuleType, settings: dict[str, Any]) -> None:
    """State too, array by array in Keras' order: checkpoints of both are the same."""
    both = config(**settings)
    ours, theirs = trained(ours_of(both)), trained(keras_own(both))
    assert same(ours[0], theirs[0])
    assert same(ours[1], theirs[1])


def test_a_loss_scale_is_that_of_keras_to_the_bit(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite, two overflows, and as many steps as double it."""
    import keras

    from segmenter.training.optimiser import LossScale

    monkeypatch.setattr(LossScale, "growth_steps", 2)
    initial = keras.optimizers.LossScaleOptimizer.__init__
    monkeypatch.setattr(
        keras.optimizers.LossScaleOptimizer,
        "__init__",
        lambda self, inner, **options: initial(self, inner, dynamic_growth_steps=2, **options),
    )
    both, scales = config(precision="mixed_float16"), (1, np.inf, 1, np.nan, 1, 1, 1)
    ours, theirs = trained(ours_of(both), scales), trained(keras_own(both), scales)
    assert same(ours[0], theirs[0])
    assert same(ours[1], theirs[1])
    assert all(np.isfinite(array).all() for array in ours[0])


def test_clipping_by_norm_is_that_of_keras_but_for_the_order_of_a_sum(tensorflow: ModuleType) -> None:
    both, free = config(clip_norm=0.5), config()
    (ours, _), (theirs, _), (unclipped, _) = (
        trained(ours_of(both)),
        trained(keras_own(both)),
        trained(ours_of(free)),
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)
    sgd = config(optimizer="sgd", clip_norm=0.5)
    assert max(np.abs(a - b).max() for a, b in zip(trained(ours_of(sgd))[0], unclipped, strict=True)) > 1e-3


def test_state_survives_a_checkpoint_and_one_of_keras_goes_on(tensorflow: ModuleType) -> None:
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import assign_optimiser, optimiser_arrays

    both = config(precision="mixed_float16")
    _, state = trained(keras_own(both))
    arrays = {f"optimiser/{i:05d}": array for i, array in enumerate(state)}
    optimiser = build_optimiser(both, network(), 9)
    assign_optimiser(optimiser, arrays)
    again = optimiser_arrays(optimiser)
    assert list(again) == list(arrays)
    assert same(list(again.values()), state)
    with pytest.raises(ValueError, match="expected shape"):
        assign_optimiser(optimiser, {**arrays, "optimiser/00007": np.zeros(3)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 0.5}, r"adamw \[type=training.momentum"),
        ({"nesterov": False}, r"adamw \[type=training.nesterov"),
        ({"optimizer": "sgd", "momentum": 0, "nesterov": False}, "momentum above 0"),
    ],
)
def test_settings_of_sgd_that_would_do_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_plain_sgd_keeps_nothing_beside_the_weights(tensorflow: ModuleType) -> None:
    _, state = trained(ours_of(config(optimizer="sgd", momentum=0)))
    assert [array.shape for array in state] == [()]  # the count of the steps


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_number_of_operations_does_not_depend_on_that_of_weights(
    tensorflow: ModuleType, optimizer: str
) -> None:
    few, many = (operations(config(optimizer=optimizer, clip_norm=1.0), layers) for layers in (2, 4))
    assert few == many <= 25


def operations(settings: TrainingConfig, layers: int) -> int:
    """Count those of an update that compute with vectors: assignments and reshapes launch nothing."""
    import tensorflow as tf

    from segmenter.training.optimiser import build_optimiser

    model = network(layers)
    optimiser, weights = build_optimiser(settings, model, 9), model.trainable_variables

    @tf.function
    def update(gradient: Any) -> Any:
        return optimiser.apply(gradient, weights)

    size = sum(int(np.prod(v.shape)) for v in weights)
    graph = update.get_concrete_function(tf.TensorSpec((size,))).graph
    moves = ("AssignVariableOp", "Const", "Identity", "NoOp", "Placeholder", "ReadVariableOp", "Reshape")
    computing = (op for op in graph.get_operations() if op.type not in moves)
    return sum(any(t.shape.rank for t in (*op.inputs, *op.outputs)) for op in computing)
