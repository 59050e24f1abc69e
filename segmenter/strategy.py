"""The one place where a `tf.distribute` strategy is made, and where TensorFlow's devices are set up.

What must be said before TensorFlow is imported is said by `load_tensorflow`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from segmenter.errors import ConfigError, DeviceError
from segmenter.schema import DistributionConfig

_GREETINGS = ("absl::InitializeLog()", "oneDNN custom operations are on", "to use available CPU instructions")


def load_tensorflow(logical_devices: int | None = None) -> None:
    """Import TensorFlow with what it reads at its import: once, late, and without its greetings.

    Several CPU replicas under oneDNN take a hundred times as long as without it, and a convolution of an
    empty batch gets a wrong shape; on one device oneDNN is a third faster, and stays.

    Raises:
        DeviceError: TensorFlow is imported already, and several CPU replicas are asked for.
    """
    if logical_devices is not None and logical_devices > 1:
        if "tensorflow" in sys.modules:
            raise DeviceError("--logical-devices: expected before TensorFlow is imported; it was too late")
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with _without_greetings():
            import tensorflow  # noqa: F401
    except ImportError as error:
        raise DeviceError(
            f"TensorFlow cannot be imported ({error}); run make setup, or make setup GPU=1"
        ) from None


@contextmanager
def _without_greetings() -> Iterator[None]:
    """Hold back what native code writes to stderr before its log level counts; anything else passes."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held.read().decode(errors="replace").splitlines():
                if not any(greeting in line for greeting in _GREETINGS):
                    print(line, file=sys.stderr)


@dataclass(frozen=True)
class Devices:
    """What a training runs on.

    Attributes:
        strategy: the `tf.distribute.Strategy`.
        names: one device per replica.
        idle: GPUs that are visible and not used.
    """

    strategy: Any
    names: tuple[str, ...]
    idle: tuple[str, ...]

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.names)

    def local_batch(self, global_batch: int) -> int:
        """Tiles of a step on each replica.

        Raises:
            ConfigError: the global batch cannot be dealt evenly.
        """
        if global_batch % self.replicas:
            raise ConfigError(
                f"training.global_batch: expected a multiple of {self.replicas} (devices), got {global_batch}"
            )
        return global_batch // self.replicas

    def dealt(self, batch: Any) -> Any:
        """A global batch (a tuple of tensors) as each replica's contiguous block of it.

        Not by `experimental_distribute_dataset`: its iterator ignores the dataset's options, and when it
        is let go of at the end of an epoch, it waits for its tuning thread, up to a minute, with all
        devices idle.
        """
        if self.replicas == 1:
            return batch

        def block(context: Any) -> Any:
            local = batch[0].shape[0] // self.replicas
            first = context.replica_id_in_sync_group * local
            return tuple(part[first : first + local] for part in batch)

        return self.strategy.experimental_distribute_values_from_function(block)


def make_devices(config: DistributionConfig, logical_devices: int | None = None) -> Devices:
    """Set up TensorFlow's devices and the recipe's strategy.

    Args:
        logical_devices: split the CPU into so many, to run several replicas without a GPU.

    Raises:
        DeviceError: TensorFlow has started its devices already, or there are too few.
    """
    import tensorflow as tf

    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        _before_start(tf.config.experimental.set_memory_growth, gpu, True)
    if logical_devices is not None:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * logical_devices
        _before_start(tf.config.set_logical_device_configuration, cpu, parts)
    kind = "CPU" if logical_devices is not None or not gpus else "GPU"
    names = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices(kind)]
    used = names[:1] if config.strategy == "one_device" else names
    if config.strategy == "mirrored" and len(used) < 2:
        raise DeviceError(
            f"distribution.strategy: mirrored: expected at least two devices, found {', '.join(used)}; "
            "use auto, or --logical-devices N on a CPU"
        )
    # One replica needs no mirroring, and Keras' plain BatchNorm is the faster there.
    strategy = (
        tf.distribute.MirroredStrategy(used) if len(used) > 1 else tf.distribute.OneDeviceStrategy(used[0])
    )
    idle = tuple(gpu.name for gpu in gpus[len(used) if kind == "GPU" else 0 :])
    return Devices(strategy, tuple(used), idle)


def _before_start(call: Any, *args: Any) -> None:
    try:
        call(*args)
    except RuntimeError as error:
        raise DeviceError(f"devices: expected to be set up before TensorFlow starts them: {error}") from None


def describe(devices: Devices, global_batch: int, precision: str) -> str:
    """A table of the devices, and a warning for GPUs that stay unused."""
    local = devices.local_batch(global_batch)
    lines = [f"{'device':<10} {'local batch':>11}  precision"]
    lines += [f"{name:<10} {local:>11}  {precision}" for name in devices.names]
    if devices.idle:
        lines.append(f"warning: {len(devices.idle)} visible GPUs stay unused: {', '.join(devices.idle)}")
    return "\n".join(lines)
