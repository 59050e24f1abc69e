"""Facts that figures depend on: cards, driver, CUDA, TensorFlow, bus and cores."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import takewhile

from segmenter.devices.driver import machine_gpus
from segmenter.devices.report import describe_machine, look
from segmenter.devices.strategy import has_kernels

from .bench import Bench
from .figures import Figure

_QUERY = (
    *("name", "memory.total", "driver_version", "pcie.link.gen.max", "pcie.link.width.current"),
    *("clocks.max.sm", "power.limit"),
)


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield facts, and whether TensorFlow has machine code for the cards."""
    devices = bench.devices()
    import tensorflow as tf

    for line in describe_machine(machine_gpus(), look(), devices.used):
        name, _, text = line.partition("  ")
        yield Figure(name.strip() or "device", text.strip())
    yield Figure("system", f"{platform.platform()}, Python {platform.python_version()}")
    code = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", ())
    for number, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        if capability := details.get("compute_capability"):
            own = has_kernels(capability, code)
            note = "" if own else "each kernel is compiled at its first use on a machine"
            text = ".".join(map(str, capability))
            yield Figure(
                f"compute capability of GPU {number}", text, "", f"code for {', '.join(code)}", own, note=note
            )
    for number, line in enumerate(
        ask("nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader")
    ):
        values = zip(_QUERY, (word.strip() for word in line.split(",")), strict=False)
        yield Figure(f"card {number}", "; ".join(f"{key} {value}" for key, value in values))
    for line in takewhile(lambda line: not line.startswith("Legend"), ask("nvidia-smi", "topo", "-m")):
        if words := re.sub(r"\x1b\[[\d;]*m", "", line).strip():
            yield Figure("topology", words)


def ask(*command: str) -> list[str]:
    """Return the lines that a tool prints; none if it is missing, fails, or does not answer."""
    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
