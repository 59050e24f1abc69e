"""Whether TensorFlow is installed, and what installs it; found out without importing it."""

from __future__ import annotations

import importlib.util

from segmenter.errors import DeviceError
from segmenter.invocation import installation


def require_tensorflow() -> None:
    """Refuse work that would be in vain without TensorFlow.

    Raises:
        DeviceError: it is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise DeviceError(f"TensorFlow is not installed; {how_to_install()}")


def how_to_install() -> str:
    """What installs TensorFlow, for a message."""
    return f"run {installation('cpu')}, or with NVIDIA GPUs {installation('gpu')}"
