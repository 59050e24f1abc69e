"""The replicas' copies of weights and state are compared before a checkpoint is written."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.commands.gpu.bench import strategy_of
from segmenter.base.errors import TrainingError

REPLICAS = 3


class Copies:
    """Some variables with a copy on each replica, and the check of them."""

    def __init__(self, models: tuple[str, ...] = ("a card",) * REPLICAS) -> None:
        import keras

        from segmenter.devices.strategy import Devices
        from segmenter.training.learner import Agreement

        strategy = strategy_of(REPLICAS)
        used: Any = [SimpleNamespace(name=f"CPU:{i}", model=model) for i, model in enumerate(models)]
        rng = np.random.default_rng(5)
        with strategy.scope():
            plain = [keras.Variable(rng.normal(size=(5, 7)), dtype=t, name=t) for t in ("float32", "float64")]
            counter = keras.Variable(3, dtype="int64", trainable=False, name="counter")
            local = {"synchronization": "on_read", "aggregation": "only_first_replica"}
            moving = keras.Variable(rng.normal(size=9), trainable=False, name="moving", **local)
        self.variables = [*plain, counter, moving]
        self.agreement = Agreement(Devices(strategy, tuple(used)), self.variables)
        self._strategy = strategy

    def copy(self, variable: Any, replica: int) -> Any:
        return self._strategy.experimental_local_results(variable.value)[replica]


def test_equal_copies_agree_and_one_bit_of_one_copy_does_not(tensorflow: ModuleType) -> None:
    copies = Copies()
    assert copies.agreement.check(1) == ""
    for variable in copies.variables:
        copy = copies.copy(variable, 2)
        before = copy.numpy()
        changed = before + 1 if before.dtype == np.int64 else before.copy()
        if before.dtype != np.int64:
            changed.flat[-1] = np.nextafter(changed.flat[-1], np.inf, dtype=before.dtype)
        copy.assign(changed)
        line = f"step 7: expected the same .* got others on CPU:2 than on CPU:0 for {variable.path}; a device"
        with pytest.raises(TrainingError, match=line):
            copies.agreement.check(7)
        copy.assign(before)
    assert copies.agreement.check(8) == ""


def test_several_models_of_card_may_differ_and_it_is_said_once(tensorflow: ModuleType) -> None:
    copies = Copies(("RTX 2080 Ti", "RTX 2080 Ti", "TITAN RTX"))
    copies.copy(copies.variables[0], 1).assign(np.zeros((5, 7)))
    assert copies.agreement.check(7).endswith("for float32; so do RTX 2080 Ti and TITAN RTX side by side")
    assert copies.agreement.check(8) == ""
