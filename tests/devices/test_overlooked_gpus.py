"""A machine with GPUs never computes on its CPU without a word, unless that was asked for."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.devices import DistributionConfig
from segmenter.devices import setup
from segmenter.extras.strategies import cards_expected

HIDES = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def machine(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`machine(4, found=0, cuda=False)`: a machine with so many GPUs, and what TensorFlow makes of them."""

    def make(gpus: int, found: int = 0, cuda: bool = False) -> None:
        monkeypatch.setattr(setup, "_ask_driver", lambda: [("a card", 2**30)] * gpus)
        monkeypatch.setattr(setup, "_DRIVER", Path("/nowhere"))
        monkeypatch.setattr(setup, "_DEVICE_FILES", Path("/nowhere"))
        monkeypatch.setattr(tensorflow.config, "list_physical_devices", lambda _: [None] * found)
        monkeypatch.setattr(tensorflow.test, "is_built_with_cuda", lambda: cuda)
        monkeypatch.delenv(HIDES, raising=False)

    return make


@pytest.mark.parametrize(
    ("cuda", "why"),
    [
        (False, "the TensorFlow that is installed computes on the CPU only"),
        (True, "TensorFlow finds none of them: its CUDA libraries, or the driver, do not work"),
    ],
)
def test_gpus_that_tensorflow_cannot_use_are_said_with_the_remedy(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, cuda: bool, why: str
) -> None:
    machine(4, cuda=cuda)
    line = f"this machine has 4 GPUs, {why}; install the one for GPUs: make setup GPU=1"
    assert setup.overlooked_gpus() == line
    monkeypatch.setenv(HIDES, "0,1")  # names some, which are not found either
    assert setup.overlooked_gpus() == line


def test_nothing_is_said_where_the_cpu_was_asked_for_or_all_is_well(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(4)
    assert setup.overlooked_gpus(cpu_chosen=True) == ""
    for hidden in ("", "-1"):
        monkeypatch.setenv(HIDES, hidden)
        assert setup.overlooked_gpus() == ""
    machine(0)
    assert setup.overlooked_gpus() == ""
    machine(4, found=4)
    assert setup.overlooked_gpus() == ""
    machine(4, found=2)
    assert setup.overlooked_gpus().startswith("this machine has 4 GPUs, TensorFlow finds 2 of them; ")
    monkeypatch.setenv(HIDES, "0,1")
    assert setup.overlooked_gpus() == ""


def test_gpus_are_found_by_tool_driver_or_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver, files = tmp_path / "gpus", tmp_path / "dev"
    files.mkdir()
    monkeypatch.setattr(setup, "_DRIVER", driver)
    monkeypatch.setattr(setup, "_DEVICE_FILES", files)
    monkeypatch.setattr(setup, "_ask_driver", list)
    assert setup.cards_listed() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (files / name).touch()
    assert setup.cards_listed() == 2
    for bus in ("0000:3b:00.0", "0000:af:00.0", "0000:d8:00.0"):
        (driver / bus).mkdir(parents=True)
    assert setup.cards_listed() == 3
    monkeypatch.setattr(setup, "_ask_driver", lambda: [("a card", 2**30)])
    assert setup.cards_listed() == 1


def test_prediction_says_it_too_once(
    call: Callable[..., int],
    make_geotiff: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    machine: Callable[..., None],
) -> None:
    machine(1)
    paths: list[Any] = [make_geotiff(f"{n}.tif", np.full((40, 50, 3), 9, np.uint8)) for n in "ab"]
    assert call(*paths) == 0
    assert capsys.readouterr().err.count("1 GPU") == 1
    monkeypatch.setenv(HIDES, "-1")
    assert call(*paths, "--redo") == 0
    assert "GPU" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("named", "settings", "gpus"),
    [
        (None, {}, 4),
        ("", {}, 0),
        ("0,-1,2", {}, 1),
        (None, {"visible_devices": []}, 0),
        (None, {"visible_devices": [1, 2]}, 2),
        (None, {"strategy": "mirrored", "devices": [0, 1, 3]}, 3),
        (None, {"strategy": "one_device"}, 1),
        (None, {"strategy": "tpu"}, 8),
    ],
)
def test_cards_that_are_listed_count_as_far_as_they_are_not_hidden(
    named: str | None, settings: dict[str, Any], gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "cards_listed", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    config = DistributionConfig.model_validate(settings)
    assert cards_expected(config) == gpus
    assert cards_expected(config, logical_devices=4) == 0
