"""The benchmark of several GPUs, on logical CPU devices: that it runs, not how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import scaling
from datasets.commands.gpu import steps
from datasets.commands.gpu.replicas import strategy_of
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices

TINY = UNetConfig(depth=1, width=2)


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "_gpus", lambda: 0)
    scaling.main([])
    assert json.loads(capsys.readouterr().out) == {
        "benchmark": "scaling",
        "devices": 0,
        "measured": False,
        "why": "TensorFlow finds no GPU on this machine",
    }


def test_each_number_of_devices_is_a_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []

    def process(command: list[str], text: bool) -> str:
        called.append(command[3:])
        return f"a line of TensorFlow's\n{10.0 * int(command[-2]) ** 0.5}\n"

    monkeypatch.setattr(scaling.subprocess, "check_output", process)
    scaling.main(["--logical", "4", "--side", "16"])
    line = json.loads(capsys.readouterr().out)
    assert called[0] == ["--logical", "4", "--side", "16", "--one", "1", "float32"]
    assert [tuple(c[-2:]) for c in called] == [(str(n), p) for p in scaling.PRECISIONS for n in (1, 2, 3, 4)]
    assert line["kind"] == "logical CPU"
    assert line["mixed_float16"] == {
        "images_per_second": [10.0, 14.1, 17.3, 20.0],
        "efficiency": [1.0, 0.707, 0.577, 0.5],
    }


@pytest.mark.parametrize(("count", "strategy"), [(1, "one_device"), *((n, "mirrored") for n in (2, 3, 4))])
def test_on_gpus_it_takes_the_first_ones(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, count: int, strategy: str
) -> None:
    """All that one process does up to its first operation, as on a machine with four GPUs."""
    gpus = [Device(f"GPU:{i}", "made up", "", f"GPU:{i}") for i in range(4)]
    made, measured = [], []
    monkeypatch.setattr("segmenter.devices.strategy.set_up_devices", lambda *_: gpus)
    monkeypatch.setattr(
        "segmenter.devices.strategy._strategy",
        lambda config, used: made.append((config, [device.name for device in used])),
    )
    monkeypatch.setattr(scaling, "rate_of", lambda *given: measured.append(given) or 7.0)
    settings = ["--set", "model.depth=3", "--set", "training.steps_per_call=2"]
    scaling.main(["--local", "3", *settings, "--one", str(count), "mixed_float16"])
    ((config, names),), ((devices, model, _, training, *_),) = made, measured
    assert (model.depth, training.steps_per_call) == (3, 2)
    assert (config.strategy, config.devices) == (strategy, tuple(range(count)))
    assert names == [f"GPU:{i}" for i in range(count)]
    assert devices.replicas == count
    assert (training.global_batch, training.precision) == (3 * count, "mixed_float16")


def test_the_rate_counts_the_images_of_all_devices(
    tensorflow: ModuleType, four_replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that says a second a call."""
    ticks = iter([0.0, 5.0])
    monkeypatch.setattr(steps.time, "perf_counter", lambda: next(ticks))
    devices = Devices(strategy_of(2), tuple(SimpleNamespace(name=f"CPU:{i}") for i in range(2)))  # type: ignore[arg-type]
    training = TrainingConfig(global_batch=6, steps_per_call=3, precision="mixed_float16")
    assert steps.rate_of(devices, TINY, LossConfig(), training, 16, 5) == pytest.approx(3 * 6)


@pytest.mark.slow
def test_in_processes_of_its_own(tmp_path: Path) -> None:
    tiny = ["configs/demo.yaml", "--set", "model.depth=1", "--set", "model.width=2", "--local", "2"]
    command = [sys.executable, "-m", "benchmarks.scaling", *tiny, "--side", "16", "--calls", "1"]
    done: Any = subprocess.run(
        [*command, "--logical", "2"], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    line = json.loads(done.stdout)
    assert [len(line[p]["efficiency"]) for p in scaling.PRECISIONS] == [2, 2]
    assert line["float32"]["efficiency"][0] == 1
