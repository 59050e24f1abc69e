"""The recipe's optimiser: Keras' own update, to the bit; its learning rates against values by hand."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.config.recipe import TrainingConfig
from segmenter.model.stages import is_decayed
from segmenter.training.optimiser import LossScale, Schedule, build_optimiser, describe_schedule, peak_of
from segmenter.training.step import assign_optimiser, optimiser_arrays

pytestmark = pytest.mark.usefixtures("tensorflow")

CONFIG = {"learning_rate": 0.01, "schedule": "cosine", "warmup": 0, "weight_decay": 0.1}
STEPS = 4


def config(**settings: Any) -> TrainingConfig:
    return TrainingConfig(**{**CONFIG, **settings})


def network(layers: int = 2) -> Any:
    """Weights of odd sizes, some that decay and some that do not, in turns."""
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
    model = network()
    state, apply = make(model)
    for step, scale in enumerate(scales):
        apply([tf.constant(g * np.float32(scale)) for g in gradients_of(model, step)])
    return [v.numpy() for v in model.variables], state()


def ours_of(settings: TrainingConfig) -> Callable[[Any], Any]:
    def make(model: Any) -> Any:
        optimiser, weights = build_optimiser(settings, model, 9), model.trainable_variables
        apply = lambda gradients: optimiser.apply(optimiser.flat(gradients, weights), weights)  # noqa: E731
        return (lambda: list(optimiser.arrays().values())), apply

    return make


def keras_own(settings: TrainingConfig) -> Callable[[Any], Any]:
    """Keras' own optimiser of a recipe, on gradients as they are."""

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
def test_it_is_the_update_of_keras_to_the_bit(settings: dict[str, Any]) -> None:
    """State too, array by array in Keras' order: checkpoints of both are the same."""
    both = config(**settings)
    ours, theirs = trained(ours_of(both)), trained(keras_own(both))
    assert same(ours[0], theirs[0])
    assert same(ours[1], theirs[1])


def test_a_loss_scale_is_that_of_keras_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_clipping_is_that_of_keras_but_for_the_order_of_a_sum_and_plain_sgd_keeps_no_state() -> None:
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

    _, state = trained(ours_of(config(optimizer="sgd", momentum=0)))
    assert [array.shape for array in state] == [()]  # the count of the steps


def test_state_survives_a_checkpoint_and_one_of_keras_goes_on() -> None:
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


def rates(steps: Any, total: int = 1000, **settings: Any) -> list[float]:
    schedule = Schedule(TrainingConfig(**settings), total)
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize(
    ("scaling", "batch", "reference", "peak"),
    [
        ("none", 64, None, 0.001),
        ("linear", 64, 16, 0.004),
        ("sqrt", 64, 16, 0.002),
        ("sqrt", 8, 16, 0.001 / math.sqrt(2)),
    ],
)
def test_the_peak_follows_the_rule(scaling: str, batch: int, reference: int | None, peak: float) -> None:
    config = TrainingConfig(global_batch=batch, scaling=scaling, reference_batch=reference)
    assert peak_of(config) == pytest.approx(peak, rel=1e-15)
    common = {"global_batch": batch, "scaling": scaling, "reference_batch": reference, "warmup": 10}
    # Scaled alike: the warm-up, the peak, and what follows.
    for schedule, share in (("constant", 1.0), ("poly", 0.5**0.9)):
        assert rates([4, 505], 1000, schedule=schedule, **common) == pytest.approx(
            [0.5 * peak, share * peak], rel=1e-6
        )


def test_schedules_by_hand() -> None:
    common = {"learning_rate": 2.0, "warmup": 10}
    assert rates([0, 4, 9], 110, **common) == pytest.approx([0.2, 1.0, 2.0], rel=1e-6)
    assert rates([10, 60, 110, 500], 110, **common) == pytest.approx([2, 2 * 0.5**0.9, 0, 0], rel=1e-6)
    cosine = rates([10, 35, 60, 110], 110, schedule="cosine", **common)
    assert cosine == pytest.approx([2, 1 + math.sqrt(0.5), 1, 0], rel=1e-6, abs=1e-6)
    assert rates([10, 10_000], 110, schedule="constant", **common) == [2, 2]
    decaying = {**common, "schedule": "exponential", "decay_rate": 0.25, "decay_steps": 20}
    assert rates([9, 10, 20, 30, 50], 110, **decaying) == pytest.approx([2, 2, 1, 0.5, 0.125], rel=1e-6)
    stairs = rates([9, 10, 29, 30, 49, 50], 110, staircase=True, **decaying)
    assert stairs == pytest.approx([2, 2, 2, 0.5, 0.5, 0.125], rel=1e-6)
    pieces = {**common, "schedule": "piecewise", "boundaries": [20, 40], "values": [1, 0.5, 0.25]}
    assert rates([0, 9, 20, 21, 40, 41, 999], 110, **pieces) == pytest.approx([0.2, 2, 2, 1, 1, 0.5, 0.5])


def test_a_short_warm_up_and_a_boundary_beyond_the_end_are_said() -> None:
    assert "190 steps of warm-up" in describe_schedule(TrainingConfig(warmup=500), 1900)  # a tenth at most
    late = TrainingConfig(schedule="piecewise", boundaries=[1000, 2000], values=[1, 0.1, 0.01])
    assert "ends before boundary 2000" in describe_schedule(late, 2000)


def test_a_staircase_falls_on_the_step_for_long_trainings_too() -> None:
    settings = {"schedule": "exponential", "decay_rate": 0.999, "decay_steps": 7919, "staircase": True}
    edges = 7919 * np.arange(1, 200, 7)
    before = rates(edges - 1, 10**7, warmup=0, **settings)
    after = rates(edges, 10**7, warmup=0, **settings)
    np.testing.assert_allclose(after, 1e-3 * 0.999 ** (edges // 7919), rtol=1e-5)
    np.testing.assert_allclose(np.divide(after, before), 0.999, rtol=1e-5)
