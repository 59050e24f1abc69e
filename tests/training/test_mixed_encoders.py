"""A step in 16 bits with an encoder of the literature: the network of 32 bits, to their rounding."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import LossConfig
from tests.helpers.encoder_pairs import DECODERS, RATE, pair
from tests.helpers.small_encoders import SMALL, small_encoder
from tests.helpers.small_training import SGD, Training, batches

SIDE = 64


def trained(decoder: str, precision: str, replicas: int) -> tuple[Training, list[Any], list[float]]:
    """A training after two steps, its weights before them, and the losses."""
    settings = SGD.model_copy(update={"learning_rate": RATE, "precision": precision})
    training = Training(pair(SMALL, decoder), LossConfig(), replicas, dtype=precision, training=settings)
    before = [variable.numpy() for variable in training.model.variables]
    return training, before, training.each(batches(2, SIDE))


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_mixed_step_is_that_of_32_bits_to_the_rounding(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, decoder: str
) -> None:
    from segmenter.model import encoders

    monkeypatch.setitem(encoders.ENCODERS, SMALL, small_encoder())
    mixed, start, losses = trained(decoder, "mixed_float16", 2)
    plain, same, expected = trained(decoder, "float32", 1)
    for one, other in zip(start, same, strict=True):
        np.testing.assert_array_equal(one, other)

    layers = [layer for layer in mixed.model.layers if "Conv" in type(layer).__name__]
    assert {layer.compute_dtype for layer in layers if layer.name != "logits"} == {"float16"}
    assert {variable.dtype for variable in mixed.model.trainable_variables} == {"float32"}
    assert mixed.model.outputs[0].dtype == "float32"

    np.testing.assert_allclose(losses, expected, rtol=0.01)
    strategy = mixed.parts.strategy
    for variable in mixed.model.variables:
        copies = [np.asarray(part) for part in strategy.experimental_local_results(variable.value)]
        for copy in copies:
            assert np.isfinite(copy).all()
            np.testing.assert_array_equal(copy, copies[0])
    moved, wanted = (_moved(each, start) for each in (mixed, plain))
    assert moved @ wanted > 0.95 * np.linalg.norm(moved) * np.linalg.norm(wanted)


def _moved(training: Training, start: list[Any]) -> Any:
    """How far the steps moved all weights that train, as one vector."""
    both = zip(training.model.variables, start, strict=True)
    return np.concatenate([(v.numpy() - was).ravel() for v, was in both if v.trainable])
