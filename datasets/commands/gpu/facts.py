"""Facts that figures depend on: cards, driver, CUDA, TensorFlow, bus, shared memory and cores."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from segmenter.devices.driver import machine_gpus
from segmenter.devices.report import describe_machine, look

from .bench import Bench
from .figures import Figure

_QUERY = (
    *("name", "memory.total", "driver_version", "pcie.link.gen.current", "pcie.link.gen.max"),
    *("pcie.link.width.current", "pcie.link.width.max", "clocks.max.sm", "power.limit"),
)


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield facts, and checks that TensorFlow has code for the card and that shared memory suffices."""
    devices = bench.devices(bench.numbers[-1])
    import tensorflow as tf

    build: dict[str, Any] = tf.sysconfig.get_build_info()
    for line in describe_machine(machine_gpus(), look(), devices.used):
        name, _, text = line.partition("  ")
        yield Figure(name.strip() or "device", text.strip())
    yield Figure("system", f"{platform.platform()}, Python {platform.python_version()}")
    yield Figure("computed on", f"{len(devices.used)} {bench.device_noun}: {devices.used[0].model}")
    for number, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        yield from _card(number, tf.config.experimental.get_device_details(gpu), build)
    for number, line in enumerate(
        ask("nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader")
    ):
        values = zip(_QUERY, (word.strip() for word in line.split(",")), strict=False)
        yield Figure(f"card {number}", "; ".join(f"{key} {value}" for key, value in values))
    for line in takewhile(lambda line: not line.startswith("Legend"), ask("nvidia-smi", "topo", "-m")):
        if words := re.sub(r"\x1b\[[\d;]*m", "", line).strip():
            yield Figure("topology", words)


def _card(number: int, details: dict[str, Any], build: dict[str, Any]) -> Iterator[Figure]:
    capability = details.get("compute_capability")
    if capability is None:
        return
    supported = has_code(tuple(capability), build.get("cuda_compute_capabilities", ()))
    name = f"compute capability of GPU {number}"
    code = ", ".join(build.get("cuda_compute_capabilities", ()))
    yield Figure(name, ".".join(map(str, capability)), "", f"code for {code}", supported)


def has_code(capability: tuple[int, ...], code: Any) -> bool:
    """Return whether a build has machine code for a card's generation, or older intermediate code.

    `sm_70` runs on 7.x from 7.0 on; `compute_90` is compiled by the driver for all cards from 9.0 on.
    """
    for name in code:
        kind, _, digits = str(name).partition("_")
        if not digits.isdigit():
            continue
        major, minor = int(digits[:-1]), int(digits[-1])
        if kind == "compute" and capability >= (major, minor):
            return True
        if kind == "sm" and capability[0] == major and capability[1] >= minor:
            return True
    return False


def ask(*command: str) -> list[str]:
    """Return the lines that a tool prints; none if it is missing, fails, or does not answer."""
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
