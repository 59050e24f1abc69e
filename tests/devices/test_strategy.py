"""Devices for real, made of the CPU: each choice computes the same; memory grows, or is too little."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import DeviceError
from segmenter.config.recipe import DistributionConfig, LossConfig, UNetConfig
from segmenter.devices.setup import let_memory_grow, memory_errors
from segmenter.devices.strategy import Devices, describe, load_tensorflow, make_devices
from tests.helpers.exact_network import fake_run, run_predict
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.laboratory import BATCH, LIMIT
from tests.helpers.made_runs import RECIPE
from tests.helpers.made_training import ROOT
from tests.helpers.refusals import refused
from tests.helpers.small_training import NORM, SGD, Training, batches, difference
from tests.helpers.trained_run import bare_run

CLIPPED = SGD.model_copy(update={"clip_norm": 0.1})


def trained(**settings: Any) -> tuple[Devices, list[float], list[Any]]:
    """Return the devices of a recipe, and the losses and weights of two steps on them."""
    devices = make_devices(DistributionConfig(**settings))
    training = Training(NORM, LossConfig(dice=1), strategy=devices.strategy, training=CLIPPED)
    training.devices = replace(devices, shares=(1,) * devices.replicas)
    losses = training.each(batches(2))
    return training.devices, losses, training.weights()


@pytest.fixture(scope="module")
def one(four_replicas: list[str]) -> tuple[Any, ...]:
    """What one device computes."""
    devices, *found = trained(strategy="one_device", devices=[2])
    assert devices.names == ("CPU:2",)
    return tuple(found)


def test_trainings_of_one_process_differ_in_devices_and_in_shapes(
    tensorflow: ModuleType, four_replicas: list[str]
) -> None:
    for numbers, length in (([0, 1], 3), ([0, 1], 5), ([0, 1, 2], 5)):  # as folds stopped at other steps
        strategy = make_devices(DistributionConfig(strategy="mirrored", devices=numbers)).strategy

        def summed(length: int = length) -> Any:
            context = tensorflow.distribute.get_replica_context()
            return context.all_reduce("SUM", tensorflow.ones((length,)))

        got = strategy.experimental_local_results(tensorflow.function(strategy.run)(summed))
        np.testing.assert_array_equal(np.stack(got), np.full((len(numbers), length), len(numbers)))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"strategy": "mirrored", "devices": [3, 0]}, ["CPU:3", "CPU:0"]),
        *(
            pytest.param({"cross_device": kind}, [f"CPU:{i}" for i in range(4)], marks=pytest.mark.slow)
            for kind in ("hierarchical_copy", "reduction_to_one")
        ),
    ],
    ids=str,
)
def test_every_choice_of_devices_computes_what_one_does(
    one: tuple[Any, ...], settings: dict[str, Any], names: list[str]
) -> None:
    devices, losses, weights = trained(**settings)
    np.testing.assert_allclose(losses, one[0], rtol=LIMIT)
    assert difference(weights, one[1]) <= LIMIT
    heading, _, table = describe(devices, BATCH, "float64").partition("device  ")[2].partition("\n")
    assert heading.split() == ["name", "memory", "local", "batch", "precision"]
    assert [line.split()[0] for line in table.splitlines()[: len(names)]] == names
    assert table.count(f"GiB, shared  {BATCH // len(names)} ") == len(names)


_LOGGED = """
from segmenter.config.devices import DistributionConfig
from segmenter.devices.strategy import load_tensorflow, make_devices
load_tensorflow(log_placement=True)
make_devices(DistributionConfig(log_placement=True))
import tensorflow
tensorflow.constant(1) + 1
"""


_QUIET = """
from segmenter.devices.setup import let_memory_grow, load_tensorflow
load_tensorflow()
let_memory_grow()
import tensorflow as tf
half = tf.function(tf.nn.relu)(tf.zeros([1, 4, 4, 2], tf.float16))
for side in range(9):
    tf.function(lambda x: x + 1)(tf.zeros(side))
"""


@pytest.mark.slow
def test_tensorflow_s_remarks_on_half_floats_and_retracing_stay_away() -> None:
    done = subprocess.run([sys.executable, "-c", _QUIET], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_placements_are_logged_where_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", _LOGGED], cwd=ROOT, capture_output=True, text=True)
    assert "/device:CPU:0" in done.stderr
    assert "placed" in done.stderr or "Executing op" in done.stderr


def test_the_log_of_placements_is_refused_when_it_is_too_late(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    with refused(DeviceError, where="distribution.log_placement", expected="before TensorFlow"):
        load_tensorflow(log_placement=True)


def test_predicting_lets_memory_grow(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, bool]] = []

    def grow(gpu: Any, enable: bool) -> None:
        told.append((gpu, enable))
        if gpu == "second":
            raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(tensorflow.config, "get_visible_devices", lambda kind: ["first", "second", "third"])
    monkeypatch.setattr(tensorflow.config.experimental, "set_memory_growth", grow)
    let_memory_grow()  # a program that has started its devices goes on with what it chose
    assert told == [("first", True), ("second", True), ("third", True)]


def test_a_run_is_loaded_with_growing_memory(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from segmenter.devices import setup
    from segmenter.inference.loading import load_predictor

    order: list[str] = []
    monkeypatch.setattr(setup, "let_memory_grow", lambda: order.append("grow"))
    monkeypatch.setattr("segmenter.runs.run.load_arrays", lambda _: order.append("weights") or {})
    monkeypatch.setattr("segmenter.inference.loading.check_weights", lambda *_: order.append("check"))
    monkeypatch.setattr("segmenter.inference.loading.assign_weights", lambda *_, **__: order.append("assign"))
    (tmp_path / "best.npz").touch()
    run = bare_run(tmp_path, recipe=RECIPE.model_copy(update={"model": UNetConfig(depth=1, width=1)}))
    load_predictor(run)
    assert order == ["weights", "check", "grow", "assign"]

    def full(*_: Any, **__: Any) -> None:
        raise tensorflow.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: no")

    monkeypatch.setattr("segmenter.inference.loading.assign_weights", full)
    with refused(DeviceError, fault="another program"):
        load_predictor(run)


def test_too_little_memory_is_one_line_and_other_errors_keep_their_traceback(tensorflow: ModuleType) -> None:
    """A batch that no memory holds: TensorFlow's own error, from its own allocator."""
    from segmenter.inference.function import predict_function
    from segmenter.model.normalisation import Normalisation

    def greedy(pixels: Any, training: bool) -> Any:
        side = tensorflow.shape(pixels)[1] * 2**16
        return tensorflow.zeros((1, 8, 8, 4)) + tensorflow.reduce_sum(tensorflow.random.uniform((side,) * 3))

    predict = predict_function(greedy, Normalisation.of([0.0] * 3, [1.0] * 3))
    image, valid = np.zeros((1, 8, 8, 3), np.uint8), np.ones((1, 8, 8), bool)
    with pytest.raises(DeviceError) as caught:
        predict(image, valid)
    text = str(caught.value)
    assert "1 windows of 8×8 pixels: lower prediction.batch" in text
    assert "allocating tensor" in text
    assert "\n" not in text

    with pytest.raises(tensorflow.errors.InvalidArgumentError), memory_errors("", ""):
        raise tensorflow.errors.InvalidArgumentError(None, None, "shapes")
    with pytest.raises(ValueError, match="memory"), memory_errors("", ""):
        raise ValueError("out of memory")


def test_predict_ends_with_that_line_and_without_a_map(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, make_classes: Callable[..., Any],
    make_geotiff: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def predict(image: Any, valid: Any) -> Any:
        with memory_errors("at 4 windows", "lower --batch"):
            raise tensorflow.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nDetails")

    source = make_geotiff("in/a.tif", np.ones((40, 50, 3), np.uint8))
    run = fake_run(make_classes(4), predictor=lambda *_, **__: FunctionPredictor(predict))
    assert run_predict(monkeypatch, run, source, "--output", tmp_path / "maps") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "4 windows: lower --batch (OOM" in error
    assert "Details" not in error
    assert not (tmp_path / "maps").exists()
