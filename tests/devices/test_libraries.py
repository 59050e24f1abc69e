"""CUDA's libraries, on whose versions bits depend."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest

from segmenter.devices.setup import Device, computed_on


def test_a_checkpoint_names_the_libraries_of_gpus_alone(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"nvidia-cudnn-cu12": "9.28.0.42", "nvidia-nccl-cu12": "2.32.3"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("segmenter.devices.installed.version", version)
    cpu, gpu = Device("CPU:0", "its model", "", "CPU"), Device("GPU:0", "a card", "", "GPU:0")
    assert "libraries" not in computed_on([cpu])
    assert computed_on([gpu])["libraries"] == "cuDNN 9.28.0.42, NCCL 2.32.3"
    installed.clear()
    assert computed_on([gpu])["libraries"] == "of the system"
