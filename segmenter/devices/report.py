"""Report on a machine's devices: those TensorFlow sees, why others are missing, those a run would use."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from segmenter.base.invocation import installation
from segmenter.base.machine import machine_memory, usable_cores
from segmenter.base.terminal import align_table, stderr_held
from segmenter.devices.driver import MachineGpus
from segmenter.devices.setup import Device, cuda_libraries, processor_model
from segmenter.devices.strategy import Devices

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA's major version → the oldest driver that it runs on, by NVIDIA's table (docs.nvidia.com/deploy/
cuda-compatibility/minor-version-compatibility.html)."""
_TENSOR_CORES = (7, 0)
_SHARED = Path("/dev/shm")
_SHARED_LEAST = 1 << 30
"""Shared memory that NCCL needs where cards reach each other by the host's memory alone."""
_SAYS = ("dlopen", "dynamic library", "cuda drivers", "cuInit", "CUDA_ERROR", "Ignoring visible gpu device")
"""In lines of TensorFlow's log that say why a GPU is not used."""
_PREFIX = re.compile(r"^.*?\.cc:\d+\]\s*")
_LIBRARIES = ("dlopen", "dynamic library")


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as TensorFlow sees it.

    Attributes:
        name: name such as GPU:0.
        capability: CUDA compute capability such as (7, 5); empty if unknown.
    """

    name: str
    model: str
    capability: tuple[int, ...] = ()


@dataclass(frozen=True)
class DetectedGpus:
    """The machine as TensorFlow sees it.

    Attributes:
        cuda, cudnn: versions that it was built for; empty: a build for the CPU only.
        gpus: GPUs in its order.
        said: lines of its log about GPUs, without their prefix.
    """

    cuda: str = ""
    cudnn: str = ""
    gpus: tuple[SeenGpu, ...] = ()
    said: tuple[str, ...] = ()


def look(logical_devices: int | None = None) -> DetectedGpus:
    """Import TensorFlow with a number of CPU devices, and return the GPUs and versions that it reports."""
    from segmenter.devices.setup import load_tensorflow

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # its warnings say which library it lacks
    with stderr_held() as lines:
        load_tensorflow(logical_devices)
        import tensorflow as tf

        physical = tf.config.list_physical_devices("GPU")
    build = tf.sysconfig.get_build_info()
    cuda = build["is_cuda_build"]
    said = dict.fromkeys(_PREFIX.sub("", line) for line in lines if any(word in line for word in _SAYS))
    return DetectedGpus(
        str(build.get("cuda_version", "of unknown version")) if cuda else "",
        str(build.get("cudnn_version", "")) if cuda else "",
        tuple(_gpu(gpu, tf.config.experimental.get_device_details(gpu)) for gpu in physical),
        tuple(said),
    )


def _gpu(gpu: Any, details: dict[str, Any]) -> SeenGpu:
    name = gpu.name.removeprefix("/physical_device:")
    return SeenGpu(name, str(details.get("device_name", "GPU")), tuple(details.get("compute_capability", ())))


# ------------------------------------------------------------------------------- why not more


def why_not(machine: MachineGpus, seen: DetectedGpus) -> tuple[str, bool]:
    """Return a line on why TensorFlow sees fewer GPUs than the machine has; empty text if it sees all.

    The second value is True if that is a fault: GPUs that CUDA_VISIBLE_DEVICES hides are not.
    """
    count, seen_count = machine.count, len(seen.gpus)
    if seen_count >= count:
        return "", False
    cards = f"the machine has {count} NVIDIA GPU{'s' * (count > 1)}, TensorFlow sees {seen_count or 'none'}"
    named = machine.named
    if named is not None and seen_count >= len(named):
        return f"{cards}: CUDA_VISIBLE_DEVICES={machine.hidden} names {len(named) or 'none'}; unset it", False
    causes = (_no_driver, _no_cuda, _old_driver, _no_library, _wrong_number, _silent_driver, _in_its_words)
    return f"{cards}: {next(line for cause in causes if (line := cause(machine, seen)))}", True


def _no_driver(machine: MachineGpus, seen: DetectedGpus) -> str:
    if machine.driver or machine.files:
        return ""
    if machine.container:
        return (
            "this container was not given them; start it with docker run --gpus all --shm-size=1g (with the "
            "NVIDIA Container Toolkit on the host)"
        )
    least = _least_driver(seen.cuda) or LEAST_DRIVER[12]
    return f"no NVIDIA driver is loaded; install one of at least version {least}, until nvidia-smi lists them"


def _no_cuda(machine: MachineGpus, seen: DetectedGpus) -> str:
    return (
        "" if seen.cuda else f"the one that is installed computes on the CPU only; run {installation('gpu')}"
    )


def _old_driver(machine: MachineGpus, seen: DetectedGpus) -> str:
    least, has = _least_driver(seen.cuda), machine.driver.partition(".")[0]
    if least is None or not has.isdigit() or int(has) >= least:
        return ""
    return f"its CUDA {seen.cuda} needs driver {least} or newer, this is {machine.driver}; update the driver"


def _no_library(machine: MachineGpus, seen: DetectedGpus) -> str:
    lines = [line for line in seen.said if any(word in line for word in _LIBRARIES)]
    if not lines:
        return ""
    other = os.environ.get("LD_LIBRARY_PATH")
    perhaps = f", and unset LD_LIBRARY_PATH={other}, which may name others" if other else ""
    return f"it cannot load its CUDA libraries; run {installation('gpu')}{perhaps} ({lines[0][:200]})"


def _wrong_number(machine: MachineGpus, seen: DetectedGpus) -> str:
    if machine.named is None:
        return ""
    return (
        f"CUDA_VISIBLE_DEVICES={machine.hidden} names one that is not there, at which CUDA stops; nvidia-smi "
        "-L lists them, from 0"
    )


def _silent_driver(machine: MachineGpus, seen: DetectedGpus) -> str:
    if not machine.tool_error or machine.listed:
        return ""
    return f"the driver does not answer; reboot, or install it anew ({machine.tool_error})"


def _in_its_words(machine: MachineGpus, seen: DetectedGpus) -> str:
    if seen.said:
        return f"{seen.said[0][:300]} (nvidia-smi shows their state)"
    return "it does not say why; nvidia-smi shows their state"


def _least_driver(cuda: str) -> int | None:
    major = cuda.partition(".")[0]
    return LEAST_DRIVER.get(int(major)) if major.isdigit() else None


# ------------------------------------------------------------------------------- what is printed


def describe_machine(machine: MachineGpus, seen: DetectedGpus, used: Sequence[Device]) -> list[str]:
    """Return lines on programs, driver, GPUs and processor.

    Args:
        used: devices that a run would use, with their memory.
    """
    built = f"for CUDA {seen.cuda} and cuDNN {seen.cudnn}" if seen.cuda else "for CPUs only"
    there, given = machine.count, f" ({machine.on_bus} on the bus)" * (machine.on_bus > machine.count)
    memory = {device.card: device.memory or "unknown" for device in used}
    rows = [
        (
            gpu.name,
            gpu.model,
            ".".join(map(str, gpu.capability)) or "unknown",
            memory.get(gpu.name, "not used"),
        )
        for gpu in seen.gpus
    ]
    cores, online = usable_cores(), os.cpu_count() or 1
    of_all = "" if cores == online else f" of {online}, by affinity and control group"
    built += f"; here {cuda_libraries()}" * bool(seen.cuda)
    lines = [
        f"programs    TensorFlow {_tensorflow()} {built}, Keras {version('keras')}",
        f"driver      {machine.driver or 'none'}",
        f"GPUs        {there or 'none'} in the machine{given}, {len(seen.gpus) or 'none'} seen by TensorFlow",
        *(f"  {line}" for line in (align_table(_HEAD, rows, left=len(_HEAD)) if rows else ())),
        f"processor   {processor_model()}: {cores} core{'s' * (cores > 1)}{of_all}, "
        f"{machine_memory() / 2**30:.1f} GiB",
    ]
    return [*lines, *_shared_memory(len(seen.gpus))]


_HEAD = ("device", "name", "compute capability", "memory")


def _tensorflow() -> str:
    """Return the version of TensorFlow's package: the one for GPUs, or the one for CPUs."""
    try:
        return version("tensorflow")
    except PackageNotFoundError:
        return version("tensorflow-cpu")


def _shared_memory(gpus: int) -> list[str]:
    try:
        size = shutil.disk_usage(_SHARED).total
    except OSError:
        return []
    line = f"/dev/shm    {size / 2**20:.0f} MiB"
    if gpus > 1 and size < _SHARED_LEAST:
        line += "; NCCL may need more between cards: in Docker --shm-size=1g"
    return [line]


def describe_run(devices: Devices, precision: str, seen: DetectedGpus) -> list[str]:
    """Return lines on the devices and precision of a run."""
    names = ", ".join(devices.names)
    kind = type(devices.strategy).__name__
    lines = [f"a run       {kind} on {names}; {sums(devices)}; {precision}"]
    cores = [gpu for gpu in seen.gpus if gpu.capability >= _TENSOR_CORES]
    if cores and precision == "float32":
        lines.append("            training.precision: mixed_float16 would use the tensor cores")
    return lines


def sums(devices: Devices) -> str:
    """Return text on how a strategy sums over its devices, as TensorFlow has chosen."""
    if devices.replicas == 1:
        return "nothing to sum over"
    if devices.central:
        return "sums and updates on the host"
    ops = getattr(devices.strategy.extended, "_cross_device_ops", None)
    named = {
        "NcclAllReduce": "by NCCL",
        "HierarchicalCopyAllReduce": "by copies in pairs",
        "ReductionToOneDevice": "on one device",
    }
    if type(ops).__name__ in named:
        return f"sums {named[type(ops).__name__]}"
    how = str(getattr(getattr(ops, "_options", None), "implementation", ""))
    if how.endswith("RING") or not _all_cards(devices):
        return "sums in a ring through the host's memory"
    return "sums by NCCL"


def _all_cards(devices: Devices) -> bool:
    """Return True if each replica has a separate GPU."""
    cards = {device.card for device in devices.used if device.name.startswith("GPU")}
    return len(cards) == devices.replicas
