"""Strategies outside the core: parameter servers, TPU, unequal cards; imported only if used.

Their names and rules are registered when this module is imported, which `import segmenter` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.config.strategies import STRATEGIES, OtherSettings, Problem, StrategyRules

if TYPE_CHECKING:
    from segmenter.config.devices import DistributionConfig
    from segmenter.config.recipe import Recipe
    from segmenter.devices.machines.cluster import Cluster
    from segmenter.devices.strategy import Devices
    from segmenter.extras.parameter_servers.control import Watch

_CORES = 8
"""Cores of a TPU host (v2, v3), each as hungry as a card."""
_SERVED, _TPU = "parameter_server", "tpu"


def _unserved_settings(others: OtherSettings) -> Iterator[Problem]:
    """Yield settings of other sections that asynchronous workers cannot follow."""
    if others.xla:
        yield (
            "training.xla",
            "expected false with distribution.strategy: parameter_server (its step reads from and writes to "
            "other machines, which XLA cannot compile), got true",
        )
    if others.per_call:
        yield (
            "training.steps_per_call",
            "expected the default with distribution.strategy: parameter_server, where a worker is given one "
            "step at a time",
        )
    if others.planned_per_replica:
        yield (
            "sampling.per_replica",
            "expected best_effort or off with distribution.strategy: parameter_server, where each step is "
            "one worker's, got guarantee",
        )


def _not_of_a_tpu(others: OtherSettings) -> Iterator[Problem]:
    """Yield settings of other sections that a TPU does not know."""
    if others.precision == "mixed_float16":
        yield (
            "training.precision",
            "expected mixed_bfloat16 or float32 with distribution.strategy: tpu, got mixed_float16",
        )
    if others.xla:
        yield (
            "training.xla",
            "expected false with distribution.strategy: tpu, which compiles all, got true",
        )


_WHY_UNSERVED = {
    "devices": "each worker computes on one device",
    "shares": "each worker computes whole steps",
    "cross_device": "nothing is summed over devices",
    "logical_gpus": "each worker computes on one device",
    "memory_limit": "workers take memory as they need it",
    "deterministic": "updates come in any order, so that no run repeats another's bits",
    "log_placement": "the workers' operations are not the chief's to log",
}
_UNREAD_BY_A_TPU = (
    *("devices", "shares", "cross_device", "visible_devices", "memory_growth", "memory_limit"),
    *("logical_gpus", "deterministic"),
)
"""A TPU's cores work in step, with equal parts and separate memory."""

STRATEGIES[_SERVED] = StrategyRules(
    {
        key: f"{why} under strategy: parameter_server: expected the default, got {{got}}"
        for key, why in _WHY_UNSERVED.items()
    },
    misfits=_unserved_settings,
)
STRATEGIES[_TPU] = StrategyRules(
    dict.fromkeys(_UNREAD_BY_A_TPU, "strategy: tpu has no use for it, got {got}"),
    own=("tpu",),
    misfits=_not_of_a_tpu,
)


def role_of(config: DistributionConfig) -> Callable[..., None] | None:
    """Return what runs a process in its role (`parameter_servers.strategy.run_role`); None: without roles."""
    if config.strategy != _SERVED:
        return None
    from segmenter.extras.parameter_servers.strategy import run_role

    return run_role


def devices_of(
    config: DistributionConfig,
    logical_devices: int | None = None,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> Devices:
    """Set up TensorFlow's devices and a recipe's strategy, of the core (`make_devices`) or of an extra.

    Args:
        logical_devices, cluster: as in `segmenter.devices.strategy.make_devices`; also the errors.
        watch: watch of a chief, to connect its cluster with parameter servers.
    """
    from segmenter.devices import strategy

    if config.strategy == _TPU:
        from segmenter.extras.strategies.tpu import make_tpu

        return make_tpu(config, logical_devices)
    if config.strategy == _SERVED:
        from segmenter.extras.parameter_servers.strategy import make_chief

        return make_chief(config, logical_devices, watch)
    devices = strategy.make_devices(config, logical_devices, cluster)
    if isinstance(config.shares, tuple):
        from segmenter.extras.strategies.unequal_cards import with_given

        return with_given(devices, config.shares)
    return devices


def share_tiles(
    devices: Devices, recipe: Recipe, form: tuple[int, str], classes: int, resumed: Path | None
) -> Devices:
    """Return the devices with their number of tiles in a step; print a table.

    Args:
        form: number of bands and pixel type of the images.
        resumed: run to resume, whose measured shares are kept.
    """
    from segmenter.base.terminal import say
    from segmenter.devices.strategy import describe

    if recipe.distribution.shares is not None:
        from segmenter.extras.strategies.unequal_cards import share_out
        from segmenter.runs.run import load_run

        known = None if resumed is None else load_run(resumed).shares
        devices = share_out(devices, recipe, form, classes, known)
    say(describe(devices, recipe.training.global_batch, recipe.training.precision))
    return devices


def cards_expected(
    config: DistributionConfig, logical_devices: int | None = None, watch: Watch | None = None
) -> int:
    """Return the number of cards that a training will feed, without TensorFlow; 0: the CPU computes."""
    from segmenter.devices.setup import gpus_expected

    if watch is not None:  # the chief's cores are free for what its workers need
        return len(watch.roles.workers)
    if config.strategy == _TPU and logical_devices is None:
        return _CORES
    return gpus_expected(config, logical_devices)
