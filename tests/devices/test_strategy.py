"""Devices for real, made of the CPU: each choice of them in a process, where they can be set up once."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import DeviceError
from segmenter.config.recipe import UNetConfig
from segmenter.devices.setup import let_memory_grow, memory_errors
from segmenter.devices.strategy import load_tensorflow
from tests.helpers.exact_network import fake_run, run_predict
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.made_runs import RECIPE
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run

ROOT = Path(__file__).resolve().parents[2]

# Two steps of a training on a made batch; prints what a comparison needs.
_STEPS = """
import json, sys
import numpy as np
from segmenter.config.recipe import DistributionConfig, LossConfig, UNetConfig, TrainingConfig
from segmenter.devices.strategy import describe, load_tensorflow, make_devices

config, logical = DistributionConfig(**json.loads(sys.argv[1])), json.loads(sys.argv[2])
load_tensorflow(logical, log_placement=config.log_placement)
devices = make_devices(config, logical)
print(describe(devices, 12, "float64"))

import keras
from segmenter.training.losses import segmentation_loss
from segmenter.model.building import build_model
from segmenter.model.normalisation import Normalisation
from segmenter.training.optimiser import build_optimiser
from segmenter.training.step import StepParts, make_step

keras.utils.set_random_seed(1)
with devices.strategy.scope():
    model = build_model(
        UNetConfig(depth=1, width=4), 3, 4, dtype="float64", synchronised=devices.replicas > 1
    )
    training = TrainingConfig(global_batch=12, optimizer="sgd", learning_rate=0.1, clip_norm=0.1, warmup=0)
    optimiser = build_optimiser(training, model, 10)
loss = segmentation_loss(LossConfig(dice=1), None, 12)
normalisation = Normalisation.of([120.0] * 3, [60.0] * 3)
step = make_step(StepParts(devices.strategy, model, optimiser, loss, normalisation, 8))
rng = np.random.default_rng(7)
image, valid = rng.integers(0, 256, (12, 8, 8, 3), np.uint8), rng.random((12, 8, 8)) > 0.1
label = rng.integers(0, 4, (12, 8, 8), np.uint8)
label[0] = 255
losses = [float(step(devices.distributed((image, valid, label)))[0]) for _ in range(2)]
weights = np.concatenate([v.numpy().ravel() for v in model.variables])
print("RESULT", json.dumps({"names": devices.names, "losses": losses, "weights": weights.tolist()}))
"""


def steps(logical: int | None, **settings: Any) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    command = [sys.executable, "-c", _STEPS, json.dumps(settings), json.dumps(logical)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done, json.loads(done.stdout.partition("RESULT ")[2])


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    """What one device computes."""
    result = steps(4, strategy="one_device", devices=[2])[1]
    assert result["names"] == ["CPU:2"]
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("logical", "settings", "names"),
    [
        (
            4,
            {"strategy": "mirrored", "devices": [3, 0, 1], "soft_placement": False, "log_placement": True},
            ["CPU:3", "CPU:0", "CPU:1"],
        ),
        (4, {"cross_device": "hierarchical_copy"}, ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]),
        (3, {"cross_device": "reduction_to_one"}, ["CPU:0", "CPU:1", "CPU:2"]),
    ],
    ids=str,
)
def test_every_choice_of_devices_computes_what_one_does(
    one: dict[str, Any], logical: int, settings: dict[str, Any], names: list[str]
) -> None:
    done, got = steps(logical, **settings)
    assert got["names"] == names
    for kind in ("losses", "weights"):
        largest = np.abs(one[kind]).max()
        assert np.abs(np.subtract(got[kind], one[kind])).max() / largest <= 1e-10, kind
    heading, _, table = done.stdout.partition("device  ")[2].partition("\n")
    assert heading.split() == ["name", "memory", "local", "batch", "precision"]
    for name, line in zip(names, table.splitlines(), strict=False):
        assert line.startswith(name)
        assert f"GiB, shared  {12 // len(names)} " in line
    if settings.get("log_placement"):
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
