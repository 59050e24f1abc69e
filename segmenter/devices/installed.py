"""Installation of TensorFlow: check and description, without importing it."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from segmenter.base.errors import DeviceError
from segmenter.base.invocation import installation


def require_tensorflow() -> None:
    """Refuse work that needs TensorFlow if it is missing.

    Raises:
        DeviceError: TensorFlow is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise DeviceError(f"TensorFlow is not installed; {how_to_install()}")


def how_to_install() -> str:
    """Return the command that installs TensorFlow, for a message."""
    return f"run {installation('cpu')}, or with NVIDIA GPUs {installation('gpu')}"


def cuda_libraries() -> str:
    """Return the versions of CUDA, cuDNN and NCCL, if installed as Python packages."""
    versions = []
    for name, package in (("CUDA", "cuda-runtime"), ("cuDNN", "cudnn"), ("NCCL", "nccl")):
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(f'nvidia-{package}-cu12')}")
    return ", ".join(versions) or "of the system"
