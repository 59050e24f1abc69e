"""Strategies of `tf.distribute`, made here and nowhere else; `setup` prepares the devices they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from segmenter.config.devices import DistributionConfig
from segmenter.devices.control import Watch
from segmenter.devices.parameter_server import ServerCluster, connect
from segmenter.devices.setup import Device, computed_on, overlooked_gpus, set_up_devices
from segmenter.devices.setup import load_tensorflow as load_tensorflow
from segmenter.errors import ConfigError, DeviceError
from segmenter.terminal import aligned


@dataclass(frozen=True)
class Devices:
    """Devices of a training and their strategy.

    Attributes:
        strategy: the `tf.distribute.Strategy`.
        used: one device per replica.
        idle: names of the GPUs that are visible and not used.
        cpu_chosen: the CPU was asked for, whatever GPUs there are.
        cluster: workers and parameter servers that train, where `used` only validates; None without.
    """

    strategy: Any
    used: tuple[Device, ...]
    idle: tuple[str, ...] = ()
    cpu_chosen: bool = False
    cluster: ServerCluster | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """TensorFlow's name of each replica's device."""
        return tuple(device.name for device in self.used)

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.used)

    @property
    def computed_on(self) -> dict[str, str]:
        """Hardware on which the last bits depend: models, threads (`setup.computed_on`)."""
        return computed_on(self.used) | ({} if self.cluster is None else self.cluster.computed_on)

    def local_batch(self, global_batch: int) -> int:
        """Tiles of a step on each replica.

        Raises:
            ConfigError: the global batch cannot be split evenly.
        """
        if global_batch % self.replicas:
            raise ConfigError(
                f"training.global_batch: expected a multiple of {self.replicas} (devices), got {global_batch}"
            )
        return global_batch // self.replicas

    def distributed(self, batch: Any, axis: int = 0) -> Any:
        """A global batch (a tuple of tensors) as each replica's contiguous block of it, on its device.

        Not by `experimental_distribute_dataset`: its iterator ignores the dataset's options, and when it
        is let go of at the end of an epoch, it waits for its tuning thread, up to a minute, with all
        devices idle.

        Args:
            axis: the one along which the tiles are.
        """
        import tensorflow as tf

        def block(context: Any) -> Any:
            replica = context.replica_id_in_sync_group
            # Cut on the host: the first device would otherwise get, and send on, what is for all.
            with tf.device("CPU:0"):
                own = (
                    batch if self.replicas == 1 else tuple(self._part(part, replica, axis) for part in batch)
                )
            with tf.device(self.names[replica]):
                return tuple(tf.identity(part) for part in own)

        return self.strategy.experimental_distribute_values_from_function(block)

    def _part(self, tensor: Any, replica: int, axis: int) -> Any:
        if self.replicas == 1:
            return tensor
        local = tensor.shape[axis] // self.replicas
        within = slice(replica * local, (replica + 1) * local)
        return tensor[(slice(None),) * axis + (within,)]


def make_devices(
    config: DistributionConfig, logical_devices: int | None = None, watch: Watch | None = None
) -> Devices:
    """Set up TensorFlow's devices and the recipe's strategy.

    Args:
        logical_devices: split the CPU into so many, to run several replicas without a GPU.
        watch: of a chief, to connect its cluster with parameter servers.

    Raises:
        DeviceError: TensorFlow has started its devices already, or there are too few for what is asked.
    """
    import tensorflow as tf

    there = set_up_devices(config, logical_devices)
    used = _chosen(config, there)
    if config.strategy == "mirrored" and len(used) < 2:
        raise DeviceError(
            f"distribution.strategy: mirrored: expected at least two devices, found {used[0].name}; "
            "use auto, or --logical-devices N on a CPU"
        )
    cards = {device.card for device in used}
    visible = [gpu.name.removeprefix("/physical_device:") for gpu in tf.config.get_visible_devices("GPU")]
    idle = tuple(card for card in visible if card not in cards)
    cpu_chosen = logical_devices is not None or config.visible_devices == ()
    cluster = None if watch is None else connect(watch)  # before anything is made on the devices
    return Devices(_strategy(config, used), tuple(used), idle, cpu_chosen, cluster)


def _chosen(config: DistributionConfig, there: list[Device]) -> list[Device]:
    """The devices that the recipe numbers; otherwise the first, or all."""
    if config.devices is None:
        return there[:1] if config.strategy in ("one_device", "parameter_server") else there
    if missing := [number for number in config.devices if number >= len(there)]:
        names = ", ".join(device.name for device in there)
        raise DeviceError(
            f"distribution.devices: expected numbers from 0 to {len(there) - 1} ({names}), got {missing[0]}"
        )
    return [there[number] for number in config.devices]


def _strategy(config: DistributionConfig, used: list[Device]) -> Any:
    """The strategy over devices. One replica needs no mirroring; the layers are the same there."""
    import tensorflow as tf

    names = [device.name for device in used]
    if len(names) == 1:
        if config.cross_device != "auto":
            raise DeviceError(
                f"distribution.cross_device: {config.cross_device}: expected at least two devices, "
                f"found {names[0]}; use auto"
            )
        return tf.distribute.OneDeviceStrategy(names[0])
    kind = config.cross_device
    if kind == "auto" and share_a_card(used) and not _rings():
        kind = "reduction_to_one"
    return tf.distribute.MirroredStrategy(names, cross_device_ops=_cross_device(kind, names))


def share_a_card(used: Sequence[Device]) -> bool:
    """Whether some of the devices are parts of one GPU."""
    cards = [device.card for device in used if device.name.startswith("GPU")]
    return len(set(cards)) < len(cards)


def sums_not_compiled(config: DistributionConfig, used: Sequence[Device]) -> str:
    """Why sums over several devices cannot be part of what XLA compiles; empty where they can.

    TensorFlow 2.21 leaves `merge_call` out, which cannot be compiled, where all devices are GPUs and its own
    collectives sum (`MirroredExtended._use_merge_call`).
    """
    if others := [device.name for device in used if not device.name.startswith("GPU")]:
        return f"TensorFlow compiles sums over GPUs only, and {others[0]} is none"
    if share_a_card(used):
        return "TensorFlow compiles sums over cards only, and some devices are parts of one"
    if config.cross_device != "auto":
        kind = config.cross_device
        return f"TensorFlow compiles its own collectives only, not distribution.cross_device: {kind}"
    return ""


def _rings() -> bool:
    """Whether TensorFlow sees that GPUs are parts of one, and leaves NCCL, which needs a card for each.

    It compares the numbers of all cards of the machine, also of those that are not visible, and of all parts.
    """
    import tensorflow as tf

    kinds = tf.config.list_physical_devices, tf.config.list_logical_devices
    physical, logical = (len(listed("GPU")) for listed in kinds)
    return physical < logical


def _cross_device(kind: str, names: list[str]) -> Any:
    """Operation that sums over devices; None leaves it to TensorFlow."""
    import tensorflow as tf

    if kind == "nccl" and not all(name.startswith("GPU") for name in names):
        raise DeviceError(
            f"distribution.cross_device: nccl: expected GPUs, found {', '.join(names)}; use auto, "
            "hierarchical_copy or reduction_to_one"
        )
    if kind == "hierarchical_copy" and len(names) % 2:
        # TensorFlow 2.21 halves the devices and leaves the odd one's summand out, without a word.
        raise DeviceError(
            f"distribution.cross_device: hierarchical_copy: expected an even number of devices, "
            f"got {len(names)}; use auto, nccl or reduction_to_one"
        )
    ops = {
        "auto": lambda: None,
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "reduction_to_one": tf.distribute.ReductionToOneDevice,
    }
    return ops[kind]()


# ----------------------------------------------------------------------------------- what is said


def describe(devices: Devices, global_batch: int, precision: str) -> str:
    """A table of the devices, and a warning for GPUs that stay unused."""
    local = str(devices.local_batch(global_batch))
    head = ("device", "name", "memory", "local batch", "precision")
    rows = [(d.name, d.model, d.memory or "unknown", local, precision) for d in devices.used]
    cluster = [] if devices.cluster is None else [devices.cluster.describe()]
    return "\n".join([*aligned(head, rows, left=len(head)), *cluster, *_warnings(devices)])


def _warnings(devices: Devices) -> list[str]:
    """The traps of one busy GPU, or the CPU, beside idle ones."""
    found = []
    if devices.idle and not devices.cpu_chosen:
        number = f"{len(devices.idle)} visible GPU" + "s" * (len(devices.idle) > 1)
        found.append(f"warning: {number} stay unused: {', '.join(devices.idle)}")
    if line := overlooked_gpus(cpu_chosen=devices.cpu_chosen):
        found.append(f"warning: {line}")
    return found
