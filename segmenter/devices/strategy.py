"""Strategies of `tf.distribute` for one device, several, and several machines; uses `setup`.

Extras (`segmenter.extras.strategies`), unknown to the core, make further strategies: they also return
`Devices`, with a subclass of `StepEngine` if their steps are computed in another way.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from segmenter.base.errors import ConfigError, DeviceError
from segmenter.base.terminal import fit_table
from segmenter.config.devices import DistributionConfig
from segmenter.devices.machines.cluster import Cluster
from segmenter.devices.machines.workers import Workers, start_workers
from segmenter.devices.setup import Device, hardware_facts, overlooked_gpus, set_up_devices
from segmenter.devices.setup import load_tensorflow as load_tensorflow

_BFLOAT16 = 8, 0
"""Compute capability of the first cards with tensor cores for it (Ampere)."""


class StepEngine:
    """Way in which training steps are computed; in this base class, each step by all devices at once.

    A strategy that computes steps differently subclasses it.

    Attributes:
        may_profile: True if a profile of this process shows the steps.
        may_try_xla: True if the compiled step can be tried against that of TensorFlow's kernels.
        may_calibrate: True if the model can be calibrated at the end of the training.
        memory_known: True if these devices compute the steps, so that their memory is what a step takes.
        trainer: the trainer class; None: `training.trainer.Trainer`.
        computed_on: names and values of further facts that the last bits depend on, for checkpoints.
    """

    may_profile: bool = True
    may_try_xla: bool = True
    may_calibrate: bool = True
    memory_known: bool = True

    @property
    def trainer(self) -> Any:
        return None

    @property
    def computed_on(self) -> dict[str, str]:
        return {}

    def describe(self) -> str:
        """Return a line to print below the table of devices; empty for none."""
        return ""


@dataclass(frozen=True)
class Devices:
    """Devices of a training and their strategy.

    Attributes:
        used: one device per replica of this worker.
        cpu_chosen: True if the CPU was requested, whatever GPUs exist.
        shares: share of the global batch for each replica; empty: equal shares.
        workers: workers that train together; all have the same number of devices.
        predicts_on_host: True if the devices cannot compute shapes unknown in advance, so the host predicts.
    """

    strategy: Any
    used: tuple[Device, ...]
    idle: tuple[str, ...] = ()
    cpu_chosen: bool = False
    shares: tuple[int, ...] = ()
    workers: Workers = field(default_factory=Workers)
    kind: StepEngine = field(default_factory=StepEngine)
    predicts_on_host: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """TensorFlow's name of each device of this worker."""
        return tuple(device.name for device in self.used)

    @property
    def models(self) -> tuple[str, ...]:
        """Model of the card or processor of each device of this worker."""
        return tuple(device.model for device in self.used)

    @property
    def replicas(self) -> int:
        """Number of replicas, over all workers."""
        return len(self.used) * self.workers.count

    @property
    def first(self) -> int:
        """Index of this worker's first replica among all replicas."""
        return len(self.used) * self.workers.index

    def own_rows(self, batch: int) -> slice:
        """Return the part of a global batch of `batch` tiles that this worker's devices compute."""
        local = self.local_batch(batch)
        return slice(self.first * local, (self.first + len(self.used)) * local)

    @property
    def central(self) -> bool:
        """True if all replicas share one copy of each variable, in the host's memory."""
        return is_central(self.strategy)

    @property
    def computed_on(self) -> dict[str, str]:
        """Hardware facts that the last bits depend on: models, threads (`setup.hardware_facts`)."""
        facts = hardware_facts(self.used)
        if self.shares:
            facts["shares"] = ", ".join(map(str, self.shares))
        facts |= self.kind.computed_on
        return facts | ({"variables": "one copy, on the host"} if self.central else {})

    def replica_tiles(self, global_batch: int) -> tuple[int, ...]:
        """Return the number of tiles of a step on each replica: consecutive blocks of a batch.

        Raises:
            ConfigError: the global batch cannot be split evenly, or by the shares.
        """
        if self.shares:
            return deal_tiles(global_batch, self.shares)
        if global_batch % self.replicas:
            raise ConfigError(
                "training.global_batch", expected=f"a multiple of {self.replicas} (devices)", got=global_batch
            )
        return (global_batch // self.replicas,) * self.replicas

    def local_batch(self, global_batch: int) -> int:
        """Return the largest number of tiles of a step on a replica; errors as in `deal_tiles`."""
        return max(self.replica_tiles(global_batch))

    def distribute(self, batch: Any, axis: int = 0) -> Any:
        """Put each block of this worker's part of a global batch, a tuple of arrays, on its replica's device.

        Blocks are contiguous. A single worker passes the whole batch; of several workers, each passes its
        part (`own_rows`).

        `experimental_distribute_dataset` is not used: its iterator ignores the dataset's options, and when it
        is released at the end of an epoch, it waits up to a minute for its tuning thread, with all devices
        idle.
        """
        import tensorflow as tf

        blocks = self._blocks(batch[0].shape[axis]) if len(self.used) > 1 else []

        def block(context: Any) -> Any:
            replica = context.replica_id_in_sync_group - self.first
            # Cut on the host: the first device would otherwise get, and send on, what is for all.
            with tf.device("CPU:0"):
                before = (slice(None),) * axis
                own = tuple(part[(*before, blocks[replica])] for part in batch) if blocks else batch
            with tf.device(self.names[replica]):
                return tuple(tf.identity(part) for part in own)

        return self.strategy.experimental_distribute_values_from_function(block)

    def _blocks(self, tiles: int) -> list[slice]:
        """Return the block of each of this worker's replicas, as slices of the worker's own tiles."""
        own = len(self.used)
        counts = self.replica_tiles(tiles) if self.workers.count == 1 else (tiles // own,) * own
        ends = list(itertools.accumulate(counts))
        return [slice(first, stop) for first, stop in itertools.pairwise([0, *ends])]


def deal_tiles(tiles: int, shares: Sequence[int], unit: int = 1) -> tuple[int, ...]:
    """Distribute the tiles of a step to devices in proportion to their shares, by largest remainders.

    Each gets its quota rounded down; remaining tiles go to the largest remainders (Hamilton's method; ties:
    the first). The result depends on the arguments only.

    Args:
        tiles: tiles of the global batch, a multiple of `unit`.
        unit: tiles that stay together, one for each micro-batch.

    Raises:
        ConfigError: a device with a share would get no tile.
    """
    units, whole = tiles // unit, sum(shares)
    quotas = [Fraction(units * share, whole) for share in shares]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda r: (counts[r] - quotas[r], r))
    for r in by_remainder[: units - sum(counts)]:
        counts[r] += 1
    if without := [r for r, share in enumerate(shares) if share and not counts[r]]:
        each = "a tile" if unit == 1 else f"{unit} tiles, one for each micro-batch,"
        raise ConfigError(
            "distribution.shares",
            expected=f"{each} of a step for every device that has a share",
            got=f"none for device {without[0]} of {tiles} tiles by {list(shares)}",
            remedy="raise training.global_batch, or give it 0",
        )
    return tuple(count * unit for count in counts)


def make_devices(
    config: DistributionConfig,
    logical_devices: int | None = None,
    cluster: Cluster | None = None,
    kind: Callable[[], StepEngine] = StepEngine,
) -> Devices:
    """Set up TensorFlow's devices and the recipe's strategy.

    Args:
        logical_devices: parts to split the CPU into, to run several replicas without a GPU.
        cluster: the workers to train with; a single worker is treated like none.
        kind: makes the `StepEngine`, called when the devices are set up and nothing is on them yet.

    Raises:
        DeviceError: TensorFlow has already started its devices, or there are too few.
        WorkerError: not all workers connected in time.
    """
    import tensorflow as tf

    if cluster is not None and cluster.workers > 1:
        return _over_workers(config, logical_devices, cluster)
    available = set_up_devices(config, logical_devices)
    used = _listed_devices(config, available)
    if config.strategy in ("mirrored", "central_storage") and len(used) < 2:
        raise DeviceError(
            f"distribution.strategy: {config.strategy}",
            expected=f"at least two devices, found {used[0].name}",
            remedy="use auto, or --logical-devices N on a CPU",
        )
    cards = {device.card for device in used}
    visible = [gpu.name.removeprefix("/physical_device:") for gpu in tf.config.get_visible_devices("GPU")]
    idle = tuple(card for card in visible if card not in cards)
    cpu_chosen = logical_devices is not None or config.visible_devices == ()
    made = kind()
    return Devices(_strategy(config, used), tuple(used), idle, cpu_chosen, kind=made)


def _over_workers(config: DistributionConfig, logical_devices: int | None, cluster: Cluster) -> Devices:
    """Return this worker's devices, once all workers are present."""
    if logical_devices is not None:
        raise DeviceError(
            "--logical-devices: TensorFlow uses one CPU device of each of several workers; start more "
            f"instead, got {logical_devices}"
        )
    if config.devices is not None:
        raise DeviceError(
            "distribution.devices",
            "with several workers TensorFlow uses all GPUs that a worker sees",
            remedy="say distribution.visible_devices",
        )
    if config.shares is not None:
        raise DeviceError(
            "distribution.shares", "several workers get equal parts of a step; leave it out, or train on one"
        )
    made: list[tuple[Any, Workers]] = []
    resolved = cluster.resolved(os.environ)

    def start(gpus: int) -> None:
        if config.cross_device not in (("auto", "nccl") if gpus else ("auto",)):
            raise DeviceError(
                "distribution.cross_device",
                expected=f"auto with several workers of {gpus} GPUs",
                got=config.cross_device,
            )
        made.append(start_workers(resolved, config, gpus=gpus > 0))

    used = set_up_devices(config, None, start)
    ((strategy, workers),) = made
    return Devices(strategy, tuple(used), (), config.visible_devices == (), workers=workers)


def _listed_devices(config: DistributionConfig, available: list[Device]) -> list[Device]:
    """Return the devices that the recipe lists by number; else the first, or all."""
    if config.devices is None:
        return available[:1] if config.strategy == "one_device" else available
    if missing := [number for number in config.devices if number >= len(available)]:
        names = ", ".join(device.name for device in available)
        raise DeviceError(
            "distribution.devices",
            expected=f"numbers from 0 to {len(available) - 1} ({names})",
            got=missing[0],
        )
    return [available[number] for number in config.devices]


def _strategy(config: DistributionConfig, used: list[Device]) -> Any:
    """Return the strategy over devices; for one replica without mirroring, with the same layers."""
    import tensorflow as tf

    names = [device.name for device in used]
    if len(names) == 1:
        if config.cross_device != "auto":
            raise DeviceError(
                f"distribution.cross_device: {config.cross_device}",
                expected=f"at least two devices, found {names[0]}",
                remedy="use auto",
            )
        return tf.distribute.OneDeviceStrategy(names[0])
    if config.strategy == "central_storage":
        return tf.distribute.experimental.CentralStorageStrategy(names, parameter_device="CPU:0")
    kind = config.cross_device
    if kind == "auto" and share_a_card(used) and not _rings():
        kind = "reduction_to_one"
    return mirrored_strategy(names, _cross_device(kind, names))


_GROUPS = itertools.count(0, 100_000)
"""Numbers from which TensorFlow counts the sums of each mirrored strategy."""


def mirrored_strategy(names: Sequence[str], cross_device: Any = None) -> Any:
    """Return a `MirroredStrategy` whose sums have numbers of their own in this process.

    Else a later training of other shapes or on other devices, as of the next fold, would be refused: all
    strategies count from 1.
    """
    import tensorflow as tf

    tf.distribute.MirroredStrategy._collective_key_base = next(_GROUPS)
    return tf.distribute.MirroredStrategy(names, cross_device_ops=cross_device)


def is_central(strategy: Any) -> bool:
    """Return True if all replicas share one copy of each variable, in the host's memory."""
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)


def share_a_card(used: Sequence[Device]) -> bool:
    """Return True if some devices are parts of the same GPU."""
    cards = [device.card for device in used if device.name.startswith("GPU")]
    return len(set(cards)) < len(cards)


def sums_not_compiled(config: DistributionConfig, used: Sequence[Device], workers: int = 1) -> str:
    """Return why XLA cannot compile sums over several devices; empty text if it can.

    TensorFlow 2.21 avoids `merge_call`, which cannot be compiled, only if all devices are GPUs and its own
    collectives sum (`MirroredExtended._use_merge_call`).
    """
    if workers > 1:
        return "compiled sums over several workers were never tried"
    if config.strategy == "central_storage":
        return "strategy: central_storage adds and updates on the host"
    if others := [device.name for device in used if not device.name.startswith("GPU")]:
        return f"TensorFlow compiles sums over GPUs only, and {others[0]} is none"
    if share_a_card(used):
        return "TensorFlow compiles sums over cards only, and some devices are parts of one"
    if config.cross_device != "auto":
        kind = config.cross_device
        return f"TensorFlow compiles its own collectives only, not distribution.cross_device: {kind}"
    return ""


def _rings() -> bool:
    """Return True if TensorFlow detects that GPUs are parts of one card, and so avoids NCCL.

    It compares the number of all cards of the machine, including invisible ones, with that of all parts.
    """
    import tensorflow as tf

    kinds = tf.config.list_physical_devices, tf.config.list_logical_devices
    physical, logical = (len(listed("GPU")) for listed in kinds)
    return physical < logical


def _cross_device(kind: str, names: list[str]) -> Any:
    """Return the operation that sums over devices; None: TensorFlow chooses."""
    import tensorflow as tf

    if kind == "nccl" and not all(name.startswith("GPU") for name in names):
        raise DeviceError(
            "distribution.cross_device: nccl",
            expected=f"GPUs, found {', '.join(names)}",
            remedy="use auto, hierarchical_copy or reduction_to_one",
        )
    if kind == "hierarchical_copy" and len(names) % 2:
        # TensorFlow 2.21 halves the devices and leaves the odd one's summand out, without a word.
        raise DeviceError(
            "distribution.cross_device: hierarchical_copy",
            expected="an even number of devices",
            got=len(names),
            remedy="use auto, nccl or reduction_to_one",
        )
    ops = {
        "auto": lambda: None,
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "reduction_to_one": tf.distribute.ReductionToOneDevice,
    }
    return ops[kind]()


# ----------------------------------------------------------------------------------- what is said


def describe(devices: Devices, global_batch: int, precision: str, *, to_measure: bool = False) -> str:
    """Return a table of the devices, and a warning for GPUs that stay unused.

    Args:
        to_measure: True if each device's share of the batch is still to be measured.
    """
    tiles = ["to be measured"] * devices.replicas if to_measure else devices.replica_tiles(global_batch)
    own = tiles[devices.first : devices.first + len(devices.used)]
    head = ("device", "name", "memory", "local batch", "precision")
    rows = [
        (d.name, d.model, d.memory or "unknown", str(local), precision)
        for d, local in zip(devices.used, own, strict=True)
    ]
    lines = fit_table(head, rows, left=len(head))
    if devices.workers.count > 1:
        each = f"{len(devices.used)} device{'s' * (len(devices.used) > 1)}"
        lines.append(
            f"multi_worker_mirrored: {devices.workers.count} workers of {each} each; these are of "
            f"{devices.workers.name()}"
        )
    if line := devices.kind.describe():
        lines.append(line)
    slow = _without_bfloat16(devices) if precision == "mixed_bfloat16" else []
    return "\n".join([*lines, *_warnings(devices), *slow])


def compiling(devices: Devices) -> str:
    """Return what is done before the first step, for a line while it takes long."""
    import tensorflow as tf

    code = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", ())
    models = {model for model, capability in _capabilities(devices) if not has_kernels(capability, code)}
    if not models:
        return "compiling the training step"
    return (
        f"compiling the training step and TensorFlow's kernels for {' and '.join(sorted(models))}, which has "
        "none of its own in it (once on a machine: CUDA keeps them in ~/.nv/ComputeCache)"
    )


def has_kernels(capability: tuple[int, ...], code: Sequence[str]) -> bool:
    """Return whether a build of TensorFlow has machine code for a card: `sm_70` runs on 7.x from 7.0 on.

    For others the driver compiles `compute_90` and the like at the first use of each kernel.
    """
    numbers = [name.removeprefix("sm_") for name in code if name.startswith("sm_")]
    return any(capability[0] == int(n[:-1]) and capability[1] >= int(n[-1]) for n in numbers if n.isdigit())


def _capabilities(devices: Devices) -> list[tuple[str, tuple[int, ...]]]:
    """Return model with compute capability, and the capability, of each used card that tells it."""
    import tensorflow as tf

    cards, found = {device.card for device in devices.used}, []
    for gpu in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capability = details.get("compute_capability")
        if capability and gpu.name.removeprefix("/physical_device:") in cards:
            model = f"{details.get('device_name', 'GPU')} ({'.'.join(map(str, capability))})"
            found.append((model, tuple(capability)))
    return found


def _without_bfloat16(devices: Devices) -> list[str]:
    """Return a warning for each GPU model that emulates bfloat16 without hardware units."""
    models = {model for model, capability in _capabilities(devices) if capability < _BFLOAT16}
    return [
        f"warning: training.precision: mixed_bfloat16: expected compute capability 8.0 or more, {model} has "
        "no units for it; mixed_float16 is quicker there"
        for model in sorted(models)
    ]


def _warnings(devices: Devices) -> list[str]:
    """Return warnings about GPUs that stay idle."""
    lines = []
    if devices.idle and not devices.cpu_chosen:
        number = f"{len(devices.idle)} visible GPU" + "s" * (len(devices.idle) > 1)
        lines.append(f"warning: {number} stay unused: {', '.join(devices.idle)}")
    if line := overlooked_gpus(cpu_chosen=devices.cpu_chosen):
        lines.append(f"warning: {line}")
    return lines
