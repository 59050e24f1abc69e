"""Device settings made before TensorFlow starts its devices, and the list of devices.

TensorFlow reads some settings when it is imported (`load_tensorflow`) and the rest when it first computes
(`set_up_devices`); later changes in that process have no effect.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from segmenter.base.errors import DeviceError
from segmenter.base.files import gibibytes
from segmenter.base.invocation import installation
from segmenter.base.machine import machine_memory, shortages
from segmenter.base.terminal import say, stderr_held
from segmenter.config.devices import DistributionConfig, MemoryLimit, share_of_card
from segmenter.devices.driver import ask, named_gpus

_NO_MEMORY = ("OUT_OF_MEMORY", "out of memory", "ALLOC_FAILED")
"""Words of CUDA and cuDNN, in errors that are not TensorFlow's own ResourceExhaustedError."""


@contextmanager
def memory_errors(doing: str, remedy: str) -> Iterator[None]:
    """Convert TensorFlow's out-of-memory errors to one line that contains `doing` and `remedy`.

    Raises:
        DeviceError: memory is exhausted; all other errors pass unchanged.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        text = str(error)
        if not isinstance(error, tf.errors.ResourceExhaustedError) and not any(w in text for w in _NO_MEMORY):
            raise
        cause = next((line for line in text.splitlines() if "OOM" in line), text.splitlines()[0])
        raise DeviceError(f"out of memory {doing}: {remedy} ({cause.strip()})") from None


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


_LIBRARIES = {
    "CUDA": ("libcudart", "cudaRuntimeGetVersion", (1000, 10), "cuda-runtime"),
    "cuBLAS": ("libcublasLt", "cublasLtGetVersion", (10_000, 100), "cublas"),
    "cuDNN": ("libcudnn", "cudnnGetVersion", (10_000, 100), "cudnn"),
    "NCCL": ("libnccl", "ncclGetVersion", (10_000, 100), "nccl"),
}
"""Library: its file, the function that tells its version, that number's digits, its Python package."""


def cuda_libraries() -> str:
    """Return the versions of CUDA, cuBLAS, cuDNN and NCCL in this process, else of their Python packages.

    TensorFlow may find others than the packages': of the system, or by LD_LIBRARY_PATH.
    """
    found = {
        name: loaded_version(*each[:3]) or _package_version(each[3]) for name, each in _LIBRARIES.items()
    }
    return ", ".join(f"{name} {number}" for name, number in found.items() if number) or "of the system"


def loaded_version(file: str, function: str, digits: tuple[int, int]) -> str:
    """Return the version that a library loaded into this process tells; empty text if it is not loaded.

    Args:
        file: its name without version and ending, as `libcudnn`.
        function: its function without arguments that returns the version, or that writes it to an int.
        digits: what major and minor version are multiplied by in it.
    """
    paths = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    path = next((path for path in paths if Path(path).name.startswith(f"{file}.so")), None)
    if path is None:
        return ""
    number = ctypes.c_int()
    with suppress(OSError, AttributeError):
        call = getattr(ctypes.CDLL(path), function)
        if function.startswith(("cuda", "nccl")):
            call(ctypes.byref(number))
        else:
            call.restype = ctypes.c_size_t
            number.value = call()
        major, rest = divmod(number.value, digits[0])
        return ".".join(map(str, (major, *divmod(rest, digits[1]))))
    return ""


def _package_version(name: str) -> str:
    """Return the version of a Python package with a library of CUDA 12, as far as libraries tell it."""
    with suppress(PackageNotFoundError):
        return ".".join(version(f"nvidia-{name}-cu12").split(".")[:3])
    return ""


_GREETINGS = (
    *("absl::InitializeLog()", "oneDNN custom operations are on", "oneDNN supports DT_HALF only"),
    "to use available CPU instructions",
)
_MIB = 2**20
_IMPORT_BYTES = 1400 * _MIB, 512 * _MIB, 384 * _MIB
"""Address space, data and memory that importing TensorFlow 2.21 takes and starting it, at the least: measured
on two cores without a GPU, the import took 1350, 450 and, with what is read of its libraries, 560 MiB."""


_ELSEWHERE: ContextVar[tuple[int | None] | None] = ContextVar("elsewhere", default=None)
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICE_FILES = Path("/dev")


# ------------------------------------------------------------------------------- before the import


def load_tensorflow(
    logical_devices: int | None = None,
    *,
    log_placement: bool = False,
    clustered: bool = False,
    remote: bool = False,
) -> None:
    """Import TensorFlow with the settings that it reads at import: once, late, without its greeting.

    With oneDNN several CPU replicas take a hundred times as long, and a convolution of an empty batch gets a
    wrong shape; on one device oneDNN is a third faster and stays on. The placement log has TensorFlow's level
    INFO, which is hidden otherwise. For several workers (`clustered`), TensorFlow logs each failure many
    times before it raises it; the program prints one line instead.

    Args:
        remote: this process belongs to a cluster with parameter servers: a lost process is an error at once,
            reported by the program and not by native code.

    Raises:
        DeviceError: TensorFlow is already imported although several CPU replicas or the log are requested, or
            there is too little memory.
    """
    wanted = {}
    if logical_devices is not None and logical_devices > 1:
        wanted["--logical-devices"] = ("TF_ENABLE_ONEDNN_OPTS", "0")
    if log_placement:
        wanted["distribution.log_placement"] = ("TF_CPP_MIN_LOG_LEVEL", "0")
    for setting, (variable, value) in wanted.items():
        if "tensorflow" in sys.modules and os.environ.get(variable) != value:
            raise DeviceError(setting, expected="before TensorFlow is imported", remedy="it was too late")
        os.environ[variable] = value
    if remote:
        os.environ["GRPC_FAIL_FAST"] = "use_caller"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if clustered or remote else "2")
    if "tensorflow" not in sys.modules:
        _check_room()
    try:
        with _without_greetings():
            import sqlite3  # noqa: F401 - else bound to that of TensorFlow, which lacks the index of GeoPackages

            import tensorflow
    except ImportError as error:
        raise DeviceError(f"TensorFlow cannot be imported ({error}); {how_to_install()}") from None
    tensorflow.get_logger().addFilter(_is_no_retracing)


def _is_no_retracing(record: logging.LogRecord) -> bool:
    """Return False for advice on functions compiled for several shapes, as ours are by design."""
    return "tf.function retracing" not in record.getMessage()


def greet_in_half_floats() -> None:
    """Have oneDNN say now, unheard, that it does without this processor's half floats: once a process."""
    import tensorflow as tf

    with _without_greetings(), tf.device("CPU:0"):
        tf.nn.relu(tf.zeros(1, tf.float16))


def _check_room() -> None:
    """Refuse to import TensorFlow without enough memory: it would crash or hang."""
    if lacking := next(shortages(*_IMPORT_BYTES), None):
        raise DeviceError(
            "TensorFlow cannot be imported",
            expected=f"at least {lacking}",
            remedy="raise the limit, or free memory",
        )


@contextmanager
def _without_greetings() -> Iterator[None]:
    """Hide TensorFlow's greeting on stderr, printed before its log level applies; pass everything else."""
    lines: list[str] = []
    try:
        with stderr_held() as lines:
            yield
    finally:
        for line in lines:
            if not any(greeting in line for greeting in _GREETINGS):
                say(line, aside=True)


# ------------------------------------------------------------------------------- before the start


@dataclass(frozen=True)
class Device:
    """Device that can compute a replica.

    Attributes:
        name: TensorFlow's name, such as GPU:0.
        memory: usable memory as text; empty if unknown.
        card: the physical device that it is or belongs to.
        bytes: usable memory in bytes; None: unknown. Replicas on a CPU share it.
    """

    name: str
    model: str
    memory: str
    card: str
    bytes: int | None = None


def set_up_devices(
    config: DistributionConfig,
    logical_devices: int | None = None,
    before_start: Callable[[int], None] | None = None,
) -> list[Device]:
    """Apply the recipe's device settings, start TensorFlow's devices, and return those that can compute.

    These are the visible GPUs, or the parts of a split GPU; without a GPU, or if `logical_devices` splits the
    CPU, the CPU's parts. With several workers, only this worker's devices.

    Args:
        before_start: called with the number of visible GPUs after the settings and before the start.

    Raises:
        DeviceError: TensorFlow has already started its devices, or a GPU does not exist.
    """
    import tensorflow as tf

    if config.deterministic:
        # Parts of a card share a cuBLAS handle, whose sums depend on its other streams without this (cuBLAS
        # documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        tf.config.experimental.enable_op_determinism()
    tf.config.set_soft_device_placement(config.soft_placement)
    if config.log_placement:
        tf.debugging.set_log_device_placement(True)
    gpus = _see(config, logical_devices)
    _give_memory(config, gpus, logical_devices)
    if logical_devices is not None:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * logical_devices
        _before_start("--logical-devices", tf.config.set_logical_device_configuration, cpu, parts)
    if before_start is not None:
        before_start(len(gpus))
    if logical_devices is not None or not gpus:
        memory, model = machine_memory(), processor_model()
        shared = f"{gibibytes(memory)}, shared"
        return [Device(name, model, shared, "CPU", memory) for name in _logical_names("CPU")]
    return _gpu_devices(config, gpus)


def let_memory_grow() -> None:
    """Let TensorFlow allocate GPU memory on demand, if this can still be set; for predicting.

    A program that has already started its devices keeps its own choice.
    """
    import tensorflow as tf

    for gpu in tf.config.get_visible_devices("GPU"):
        with suppress(RuntimeError, ValueError):
            tf.config.experimental.set_memory_growth(gpu, True)
    greet_in_half_floats()


def _see(config: DistributionConfig, logical_devices: int | None) -> list[Any]:
    """Return the visible GPUs, as physical devices."""
    import tensorflow as tf

    gpus = list(tf.config.list_physical_devices("GPU"))
    wanted = config.visible_devices
    if wanted is None or (logical_devices is not None and not gpus):
        return gpus
    if missing := [number for number in wanted if number >= len(gpus)]:
        found = f"0 to {len(gpus) - 1}" if gpus else "none"
        raise DeviceError(
            "distribution.visible_devices",
            expected=f"numbers of GPUs, found {found}",
            got=missing[0],
            remedy="leave it out, or see nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    visible = [gpus[number] for number in sorted(wanted)]  # the order in which TensorFlow numbers them anew
    _before_start("distribution.visible_devices", tf.config.set_visible_devices, visible, "GPU")
    return visible


def _give_memory(config: DistributionConfig, gpus: Sequence[Any], logical_devices: int | None) -> None:
    import tensorflow as tf

    part = tf.config.LogicalDeviceConfiguration
    split = config.logical_gpus
    if split is not None and logical_devices is None:
        if len(gpus) != 1:
            raise DeviceError(
                f"distribution.logical_gpus: expected one visible GPU to split, found {len(gpus)}"
                + ("; name one with distribution.visible_devices" if gpus else "; try --logical-devices")
            )
        parts = [part(memory_limit=split.memory)] * split.number
        _before_start("distribution.logical_gpus", tf.config.set_logical_device_configuration, gpus[0], parts)
        return
    for gpu, limit in zip(gpus, _limits(config, gpus), strict=True):
        if limit is not None:
            limits = [part(memory_limit=limit)]
            _before_start(
                "distribution.memory_limit", tf.config.set_logical_device_configuration, gpu, limits
            )
        else:
            growth = tf.config.experimental.set_memory_growth
            _before_start("distribution.memory_growth", growth, gpu, config.memory_growth)


def _limits(config: DistributionConfig, gpus: Sequence[Any]) -> list[int | None]:
    return memory_limits(config.memory_limit, list(map(_model_of, gpus)), _card_memory())


def memory_limits(
    asked: MemoryLimit | tuple[MemoryLimit, ...] | None, models: Sequence[str], totals: Mapping[str, int]
) -> list[int | None]:
    """Return the limit in MiB of each visible GPU; None: no limit.

    Args:
        totals: bytes by model, as far as the driver reports them.

    Raises:
        DeviceError: the number of limits is wrong, a limit exceeds a card's memory, or is a share of an
            unknown memory.
    """
    if not isinstance(asked, tuple):
        asked = () if asked is None else (asked,) * len(models)
        if not asked:
            return [None] * len(models)
    if models and len(asked) != len(models):
        raise DeviceError(
            "distribution.memory_limit", expected=f"{len(models)}, one for each visible GPU", got=len(asked)
        )
    return [_mebibytes(limit, model, totals.get(model)) for limit, model in zip(asked, models, strict=False)]


def _mebibytes(limit: MemoryLimit, model: str, total: int | None) -> int:
    percent = share_of_card(limit)
    if percent is not None and total is None:
        raise DeviceError(
            f"distribution.memory_limit: {limit}",
            expected=f"nvidia-smi to tell the memory of {model}, it does not",
            remedy="give MiB",
        )
    if percent is not None and total is not None:
        return total * percent // (100 * _MIB)
    if total is not None and int(limit) * _MIB > total:
        raise DeviceError(
            "distribution.memory_limit", expected=f"at most the {total // _MIB} MiB of {model}", got=limit
        )
    return int(limit)


def _model_of(gpu: Any) -> str:
    import tensorflow as tf

    return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))


def _before_start(setting: str, call: Callable[..., None], *args: Any) -> None:
    try:
        call(*args)
    except RuntimeError as error:
        raise DeviceError(
            setting,
            expected="to be set before TensorFlow starts its devices",
            remedy=f"it was too late ({error})",
        ) from None
    except ValueError as error:  # an earlier setting of the same process that excludes this one
        raise DeviceError(setting, f"TensorFlow refuses it: {error}") from None


def _logical_names(kind: str) -> list[str]:
    """Return names such as GPU:0; starts TensorFlow's devices."""
    import tensorflow as tf

    try:
        devices = tf.config.list_logical_devices(kind)
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        raise DeviceError(f"TensorFlow cannot start its devices: {error}") from None
    # With several workers, each knows of all devices, its own first.
    worker, names = devices[0].name.rpartition("/device:")[0] if devices else "", []
    for device in devices:
        of, _, name = device.name.rpartition("/device:")
        names += [name] if of == worker else []
    return names


# ------------------------------------------------------------------------------- what is there


def _gpu_devices(config: DistributionConfig, gpus: Sequence[Any]) -> list[Device]:
    """Return the logical GPUs in TensorFlow's order: by physical GPU, each with its parts."""
    totals = _card_memory()
    parts = config.logical_gpus.number if config.logical_gpus is not None else 1
    split = config.logical_gpus
    limits = _limits(config, gpus) if split is None else [split.memory] * len(gpus)
    devices = []
    for position, name in enumerate(_logical_names("GPU")):
        gpu, limit = gpus[position // parts], limits[position // parts]
        model = _model_of(gpu)
        total = totals.get(model)
        memory = f"{limit} MiB, fixed" if limit is not None else "" if total is None else gibibytes(total)
        size = total if limit is None else limit * _MIB
        devices.append(Device(name, model, memory, gpu.name.removeprefix("/physical_device:"), size))
    return devices


def cards_listed() -> int:
    """Count the NVIDIA GPUs in the machine: by nvidia-smi, the driver, or device files."""
    by_driver = len(list(_DRIVER.glob("*"))) if _DRIVER.is_dir() else 0
    return len(_ask_driver()) or by_driver or len(list(_DEVICE_FILES.glob("nvidia[0-9]*")))


def gpus_expected(config: DistributionConfig, logical_devices: int | None = None) -> int:
    """Count the GPUs that a run will use, by recipe, CUDA_VISIBLE_DEVICES and driver.

    Args:
        logical_devices: number of CPU parts; no GPU is used if set.
    """
    if logical_devices is not None:
        return 0
    limits = [cards_listed()]
    if (named := named_gpus()) is not None:
        limits.append(len(named))
    limits += [len(numbers) for numbers in (config.visible_devices, config.devices) if numbers is not None]
    if config.strategy == "one_device":
        limits.append(1)
    return min(limits)


def overlooked_gpus(*, cpu_chosen: bool = False) -> str:
    """Return a warning if the machine has GPUs that TensorFlow cannot use; else empty text.

    Also empty if CUDA_VISIBLE_DEVICES hides all GPUs, or names exactly those that TensorFlow finds.
    TensorFlow is imported only if the machine has GPUs.

    Args:
        cpu_chosen: True if the CPU was chosen by another setting.
    """
    named = named_gpus()
    count = 0 if cpu_chosen or named == () else cards_listed()
    if not count:
        return ""
    import tensorflow as tf

    seen = len(tf.config.list_physical_devices("GPU"))
    if seen >= count or (seen and named is not None):
        return ""
    machine = f"this machine has {count} GPU{'s' * (count > 1)}"
    if seen:
        return f"{machine}, TensorFlow finds {seen} of them; nvidia-smi shows their state"
    if tf.test.is_built_with_cuda():
        why = "TensorFlow finds none of them: its CUDA libraries, or the driver, do not work"
    else:
        why = "the TensorFlow that is installed computes on the CPU only"
    return f"{machine}, {why}; install the one for GPUs: {installation('gpu')}"


def smallest_card() -> int | None:
    """Return the bytes of the smallest GPU that TensorFlow may use; None if it may use no GPU.

    TensorFlow is not started: the driver reports it, and CUDA_VISIBLE_DEVICES may hide all GPUs; within
    `computing_on`, its `card` is returned.
    """
    if (elsewhere := _ELSEWHERE.get()) is not None:
        return elsewhere[0]
    if named_gpus() == ():
        return None
    return min((size for _, size in _ask_driver()), default=None)


@contextmanager
def computing_on(card: int | None) -> Iterator[None]:
    """Make `smallest_card` return the GPU memory of remote machines in the block; None: no GPU."""
    token = _ELSEWHERE.set((card,))
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)


def _card_memory() -> dict[str, int]:
    """Return the memory in bytes of each GPU model; models with several sizes are left out.

    By model, not by index: CUDA and the driver use different orders.
    """
    sizes: dict[str, set[int]] = {}
    for model, size in _ask_driver():
        sizes.setdefault(model, set()).add(size)
    return {model: found.pop() for model, found in sizes.items() if len(found) == 1}


@functools.cache
def _ask_driver() -> list[tuple[str, int]]:
    """Query (model, bytes) of each GPU from nvidia-smi: TensorFlow does not report a card's memory."""
    try:
        return [(model, int(mebibytes) * _MIB) for model, mebibytes in ask("name", "memory.total").rows]
    except ValueError:
        return []  # the table then lacks a column; nothing depends on it


def hardware_facts(used: Sequence[Device]) -> dict[str, str]:
    """Return names and values of hardware facts that the last bits of a computation depend on.

    Sums are split over threads, and the processor's instructions decide how many numbers are added at once.
    Call after `set_up_devices`.
    """
    import tensorflow as tf

    cores = str(len(os.sched_getaffinity(0)))  # TensorFlow's default
    libraries = {} if all(d.name.startswith("CPU") for d in used) else {"libraries": cuda_libraries()}
    within = tf.config.threading.get_intra_op_parallelism_threads()
    between = tf.config.threading.get_inter_op_parallelism_threads()
    return {
        "processor": processor_model(),
        "devices": ", ".join(sorted({"CPU" if d.name.startswith("CPU") else d.model for d in used})),
        "threads of an operation": str(within or os.environ.get("TF_NUM_INTRAOP_THREADS", cores)),
        "operations at a time": str(between or os.environ.get("TF_NUM_INTEROP_THREADS", cores)),
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "not set"),
        **libraries,
    }


def processor_model() -> str:
    """Return the processor's name as text."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
