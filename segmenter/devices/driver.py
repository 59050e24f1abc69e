"""NVIDIA GPUs of the machine, as reported by the PCI bus, the driver and nvidia-smi, without TensorFlow."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_BUS = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
"""Vendor, and the beginning of the class of cards that draw or compute."""
_FILES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia/version")
_CONTAINER = (Path("/.dockerenv"), Path("/run/.containerenv"))
_NUMBER = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
_SECONDS = 10


@dataclass(frozen=True)
class SmiAnswer:
    """Answer of nvidia-smi.

    Attributes:
        rows: the requested fields, one row for each GPU.
        error: nvidia-smi's message if it failed; else empty.
    """

    rows: tuple[tuple[str, ...], ...] = ()
    error: str = ""


def ask(*fields: str) -> SmiAnswer:
    """Query fields of each GPU, by nvidia-smi's names; only the first may contain commas, as `name` does."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return SmiAnswer(error="there is no nvidia-smi")
    command = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return SmiAnswer(error=f"nvidia-smi cannot be run: {error}")
    if done.returncode:
        output = " ".join((done.stdout + done.stderr).split())
        return SmiAnswer(error=f"nvidia-smi fails: {output[:200] or f'exit code {done.returncode}'}")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    rows = [tuple(cell.strip() for cell in line.rsplit(",", len(fields) - 1)) for line in lines]
    if any(len(row) != len(fields) for row in rows):
        return SmiAnswer(error="nvidia-smi answers otherwise than it was asked")
    return SmiAnswer(tuple(rows))


@dataclass(frozen=True)
class MachineGpus:
    """GPUs of the machine, whether or not TensorFlow can use them.

    Attributes:
        on_bus: number of NVIDIA cards on the PCI bus; a container also sees those of its host.
        files: number of device files, /dev/nvidia0 and so on: the GPUs given to a container.
        listed: models that nvidia-smi lists.
        driver: version of the driver; empty if none is loaded.
        container: True if this process runs in a container.
        hidden: CUDA_VISIBLE_DEVICES; None: not set.
    """

    on_bus: int = 0
    files: int = 0
    listed: tuple[str, ...] = ()
    driver: str = ""
    tool_error: str = ""
    container: bool = False
    hidden: str | None = None

    @property
    def count(self) -> int:
        """Number of GPUs that a program here might use: those given to it, else those on the bus."""
        return len(self.listed) or self.files or self.on_bus

    @property
    def named(self) -> tuple[str, ...] | None:
        """Names in CUDA_VISIBLE_DEVICES up to the first that is empty or -1; None if it is not set."""
        return _names(self.hidden)


def named_gpus() -> tuple[str, ...] | None:
    """Return the names in CUDA_VISIBLE_DEVICES, up to the first that is not there; None: it is not set."""
    return _names(os.environ.get("CUDA_VISIBLE_DEVICES"))


def _names(visible: str | None) -> tuple[str, ...] | None:
    """Return names up to the first that is empty or -1: CUDA ignores what comes after it."""
    if visible is None:
        return None
    names = (name.strip() for name in visible.split(","))
    return tuple(itertools.takewhile(lambda name: name not in ("", "-1"), names))


def machine_gpus() -> MachineGpus:
    """Return the GPUs of this machine."""
    answer = ask("name", "driver_version")
    driver = answer.rows[0][1] if answer.rows else _loaded_driver()
    return MachineGpus(
        on_bus=sum(map(_is_gpu, _BUS.glob("*"))),
        files=len(list(_FILES.glob("nvidia[0-9]*"))),
        listed=tuple(name for name, _ in answer.rows),
        driver=driver,
        tool_error=answer.error,
        container=any(path.exists() for path in _CONTAINER),
        hidden=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _is_gpu(device: Path) -> bool:
    with suppress(OSError):
        vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
        return vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return False


def _loaded_driver() -> str:
    """Return the version of the loaded kernel module; empty text if none is loaded."""
    with suppress(OSError):
        match = _NUMBER.search(_DRIVER.read_text(encoding="utf-8", errors="replace"))
        return match[1] if match else "of unknown version"
    return ""
