"""Central storage: one copy of each variable on the host. That a step is that of one device: `laws/`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets.commands.gpu.laboratory import LIMIT
from segmenter.config.devices import DistributionConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices, sums_not_compiled
from tests.helpers.made_training import made, train, weights
from tests.helpers.small_training import NO_NORM, PER_PIXEL, SGD, Training, batches, central_of, difference


@pytest.mark.slow
def test_an_overflow_changes_no_weight_and_halves_the_scale_once(tensorflow: ModuleType) -> None:
    """With micro-batches, whose gradients are added up in one variable for all devices."""
    mixed = SGD.model_copy(update={"precision": "mixed_float16"})
    many = Training(
        *(NO_NORM, PER_PIXEL, 2, "mixed_float16", 0.7, mixed), strategy=central_of(2), accumulate=2
    )
    stack, before = batches(2), many.weights()
    many.optimiser.dynamic_scale.assign(2.0**126)
    found = many.at_once(stack, 1)
    assert (found.applied.numpy().tolist(), found.scale.numpy().tolist()) == ([False], [2.0**125])
    assert all(np.array_equal(a, b) for a, b in zip(many.weights(), before, strict=True))
    many.optimiser.dynamic_scale.assign(2.0**10)
    assert many.at_once(stack, 1).applied.numpy().tolist() == [True]
    assert many.optimiser.iterations.numpy() == 1
    assert not all(np.array_equal(a, b) for a, b in zip(many.weights(), before, strict=True))


def test_the_batchnorm_of_keras_fails_there(tensorflow: ModuleType) -> None:
    """Why ours says how its statistics are written."""
    import keras

    strategy = central_of(2)
    with strategy.scope():
        theirs = keras.layers.BatchNormalization()
        theirs.build((4, 8, 8, 3))
    ones = tensorflow.ones((4, 8, 8, 3))
    with pytest.raises(ValueError, match="aggregation"):
        tensorflow.function(lambda: strategy.run(lambda: theirs(ones, training=True)))()


def test_there_are_no_copies_to_compare(tensorflow: ModuleType) -> None:
    from segmenter.training.learner import Agreement

    used: Any = tuple(Device(f"CPU:{i}", "its model", "", "CPU") for i in range(2))
    devices = Devices(central_of(2), used)
    assert devices.central
    assert devices.computed_on["variables"] == "one copy, on the host"
    assert Agreement(devices, []).check(1) == ""


def test_what_it_cannot_do_is_refused() -> None:
    gpus = [Device(f"GPU:{i}", "made up", "", f"GPU:{i}") for i in range(2)]
    why = sums_not_compiled(DistributionConfig(strategy="central_storage"), gpus)
    assert why == "strategy: central_storage adds and updates on the host"


@pytest.mark.slow
def test_a_run_goes_on_mirrored_and_a_mirrored_one_there(tmp_path: Path) -> None:
    """By train.py, which validates and writes checkpoints."""
    recipe = made(tmp_path / "data")
    two = ("--logical-devices", "2", "--set", "training.precision=float64")
    central = ("--set", "distribution.strategy=central_storage", "--set", "distribution.shares=[5,3]")
    kinds_of = {"mirrored": (), "central": central}
    for first, then in (("mirrored", "central"), ("central", "mirrored")):
        run = tmp_path / first
        train(recipe, "--run", str(run), *two, *kinds_of[first])
        whole = weights(run)
        step = min(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").glob("*.npz"))
        out = train(recipe, "--run", str(run), "--resume-from", str(step), *two, *kinds_of[then]).stdout
        assert "computed otherwise, the bits of what follows may differ: " in out
        assert "variables" in out
        names = [name for name in whole if name.startswith("model/") and not name.endswith("/masks")]
        assert difference([weights(run)[n] for n in names], [whole[n] for n in names]) <= LIMIT
