"""A machine with GPUs never computes on its CPU without a word: of which kind, and what to do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets.commands.devices import main
from segmenter.base.errors import run_script
from segmenter.config.devices import DistributionConfig
from segmenter.devices import driver, report, setup
from segmenter.devices.driver import MachineGpus, machine_gpus
from segmenter.devices.report import DetectedGpus, SeenGpu, why_not
from segmenter.extras.strategies import cards_expected

MODEL = "NVIDIA GeForce RTX 2080 Ti"
FOUR = MachineGpus(on_bus=4, files=4, listed=(MODEL,) * 4, driver="550.54.15")
CUDA = DetectedGpus(cuda="12.5.1", cudnn="9")
LIBRARY = "Cannot dlopen some GPU libraries. Please make sure the missing libraries are installed properly"
BROKEN = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
SILENT, UNKNOWN = f"nvidia-smi fails: {BROKEN}", "failed call to cuInit: CUDA_ERROR_UNKNOWN"


def seen(count: int, **changes: Any) -> DetectedGpus:
    gpus = tuple(SeenGpu(f"GPU:{number}", MODEL, (7, 5)) for number in range(count))
    return replace(CUDA, gpus=gpus, **changes)


@pytest.mark.parametrize(
    ("machine", "found", "line"),
    [
        (MachineGpus(on_bus=4), CUDA, "no NVIDIA driver is loaded; install one of at least version 525"),
        (MachineGpus(on_bus=4, container=True), CUDA, "start it with docker run --gpus all --shm-size=1g"),
        (FOUR, DetectedGpus(), "the one that is installed computes on the CPU only; run make setup GPU=1"),
        (replace(FOUR, driver="470.82.01"), CUDA, "CUDA 12.5.1 needs driver 525 or newer, this is 470.82.01"),
        (FOUR, seen(0, said=(LIBRARY,)), f"load its CUDA libraries; run make setup GPU=1 ({LIBRARY})"),
        (replace(FOUR, hidden="0,9,1"), seen(1), "sees 1: CUDA_VISIBLE_DEVICES=0,9,1 names one that is not"),
        (replace(FOUR, listed=(), tool_error=SILENT), CUDA, f"or install it anew ({SILENT})"),
        (FOUR, seen(3, said=(UNKNOWN,)), f"sees 3: {UNKNOWN} (nvidia-smi shows their state)"),
        (FOUR, seen(2), "sees 2: it does not say why; nvidia-smi shows their state"),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_be_used_is_a_fault_with_its_remedy(
    machine: MachineGpus, found: DetectedGpus, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    text, fault = why_not(machine, found)
    assert text.startswith("the machine has 4 NVIDIA GPUs, TensorFlow sees ")
    assert line in text
    assert fault


def test_what_was_hidden_on_purpose_or_is_all_used_is_no_fault() -> None:
    assert why_not(FOUR, seen(4)) == ("", False)
    assert why_not(MachineGpus(), DetectedGpus()) == ("", False)
    assert why_not(replace(FOUR, on_bus=8), seen(4)) == ("", False)  # the container was given four of eight
    for hidden, found, names in (("", 0, "none"), ("-1", 0, "none"), ("2,0", 2, "2"), ("1,-1,0", 1, "1")):
        text, fault = why_not(replace(FOUR, hidden=hidden), seen(found))
        assert f"CUDA_VISIBLE_DEVICES={hidden} names {names}; unset it" in text
        assert not fault


def test_the_machines_gpus_are_those_of_bus_driver_files_and_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, files, loaded = tmp_path / "bus", tmp_path / "dev", tmp_path / "version"
    for name, kinds in (("a", ("0x10de", "0x030000")), ("b", ("0x10de", "0x030200")),
                        ("sound", ("0x10de", "0x040300")), ("other", ("0x1002", "0x030000"))):  # fmt: skip
        (bus / name).mkdir(parents=True)
        for file, text in zip(("vendor", "class"), kinds, strict=True):
            (bus / name / file).write_text(text + "\n")
    (bus / "gone").mkdir()
    files.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (files / name).touch()
    loaded.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    )
    tool = tmp_path / "nvidia-smi"
    for name, value in (("_BUS", bus), ("_FILES", files), ("_DRIVER", loaded), ("_CONTAINER", (loaded,))):
        monkeypatch.setattr(driver, name, value)
    monkeypatch.setattr(driver.shutil, "which", lambda _: str(tool))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 1, 0,-1,3")

    def answer(script: str) -> MachineGpus:
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        return machine_gpus()

    found = answer(f"echo '{MODEL}, 550.54.15'; echo 'A, B, 550.54.15'")
    assert found == MachineGpus(2, 2, (MODEL, "A, B"), "550.54.15", "", True, " 1, 0,-1,3")
    assert found.named == ("1", "0")
    found = answer(f'echo "{BROKEN}"; exit 9')
    assert (found.listed, found.driver, found.count) == ((), "535.104.05", 2)
    assert found.tool_error == f"nvidia-smi fails: {BROKEN}"
    loaded.unlink()
    monkeypatch.setattr(driver.shutil, "which", lambda _: None)
    found = machine_gpus()
    assert (found.driver, found.container, found.tool_error) == ("", False, "there is no nvidia-smi")


@pytest.fixture
def machine(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`machine(MachineGpus, Seen)`: what the command finds; the devices are four of the CPU."""

    def make(there: MachineGpus, found: DetectedGpus) -> None:
        monkeypatch.setattr(driver, "machine_gpus", lambda: there)
        monkeypatch.setattr(report, "look", lambda _: found)

    return make


def test_the_report_fits_a_screen_is_of_a_recipe_and_its_exit_code_tells_a_fault(
    machine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(MachineGpus(), DetectedGpus())
    assert run_script(lambda: main([])) == 0
    out, err = capsys.readouterr()
    assert "GPUs        none in the machine, none seen by TensorFlow\n" in out
    assert "MirroredStrategy on CPU:0, CPU:1, CPU:2, CPU:3; " in out
    assert err == ""
    machine(FOUR, seen(3))
    assert run_script(lambda: main([])) == 2
    out, err = capsys.readouterr()
    assert "GPUs        4 in the machine, 3 seen by TensorFlow\n" in out
    assert f"  GPU:2   {MODEL}  7.5                 not used\n" in out
    assert "training.precision: mixed_float16 would use the tensor cores" in out
    assert err.startswith("error: the machine has 4 NVIDIA GPUs, TensorFlow sees 3: ")
    assert len(out.splitlines()) < 24

    # What the recipe asks for in vain is told after what the machine has.
    machine(MachineGpus(), DetectedGpus())
    recipe = ["configs/potsdam.yaml", "--set", "distribution.visible_devices=[3]"]
    assert run_script(lambda: main(recipe)) == 2
    out, err = capsys.readouterr()
    assert "GPUs        none in the machine" in out
    assert err.startswith("error: distribution.visible_devices: expected numbers of GPUs, found none, got 3")
    recipe = ["configs/potsdam.yaml", "--set", "training.precision=mixed_float16"]
    assert run_script(lambda: main(recipe)) == 0
    out, _ = capsys.readouterr()
    assert "local batch  precision" in out
    assert "16           mixed_float16" in out
    machine(replace(FOUR, hidden=""), DetectedGpus())
    assert run_script(lambda: main([])) == 0
    assert "note: the machine has 4 NVIDIA GPUs, TensorFlow sees none: CUDA_VISIBLE_DEVICES= names none" in (
        capsys.readouterr().out
    )


HIDES = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def machine_of(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
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
    machine_of: Callable[..., None], monkeypatch: pytest.MonkeyPatch, cuda: bool, why: str
) -> None:
    machine_of(4, cuda=cuda)
    line = f"this machine has 4 GPUs, {why}; install the one for GPUs: make setup GPU=1"
    assert setup.overlooked_gpus() == line
    monkeypatch.setenv(HIDES, "0,1")  # names some, which are not found either
    assert setup.overlooked_gpus() == line


def test_nothing_is_said_where_the_cpu_was_asked_for_or_all_is_well(
    machine_of: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(4)
    assert setup.overlooked_gpus(cpu_chosen=True) == ""
    for hidden in ("", "-1"):
        monkeypatch.setenv(HIDES, hidden)
        assert setup.overlooked_gpus() == ""
    machine_of(0)
    assert setup.overlooked_gpus() == ""
    machine_of(4, found=4)
    assert setup.overlooked_gpus() == ""
    machine_of(4, found=2)
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
    machine_of: Callable[..., None],
) -> None:
    machine_of(1)
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
