"""Strategies outside the core: parameter servers, TPU, unequal cards; imported only if used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.terminal import say
from segmenter.config.devices import DistributionConfig
from segmenter.devices.setup import gpus_expected

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.devices.machines.cluster import Cluster
    from segmenter.devices.strategy import Devices
    from segmenter.extras.parameter_servers.control import Watch

_CORES = 8
"""Cores of a TPU host (v2, v3), each as hungry as a card."""


def make_devices(
    config: DistributionConfig,
    logical_devices: int | None = None,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> Devices:
    """Set up TensorFlow's devices and a recipe's strategy.

    Args:
        logical_devices, cluster: as in `segmenter.devices.strategy.make_devices`; also the errors.
        watch: watch of a chief, to connect its cluster with parameter servers.
    """
    from segmenter.devices import strategy

    if config.strategy == "tpu":
        from segmenter.extras.tpu import make_tpu

        return make_tpu(config, logical_devices)
    if config.strategy == "parameter_server":
        from segmenter.extras.parameter_servers.strategy import make_chief

        return make_chief(config, logical_devices, watch)
    devices = strategy.make_devices(config, logical_devices, cluster)
    if isinstance(config.shares, tuple):
        from segmenter.extras.unequal_cards.measured import with_given

        return with_given(devices, config.shares)
    return devices


def shared_out(
    devices: Devices, recipe: Recipe, form: tuple[int, str], classes: int, resumed: Path | None
) -> Devices:
    """Return the devices with their number of tiles in a step; print a table.

    Args:
        form: number of bands and pixel type of the images.
        resumed: run to resume, whose measured shares are kept.
    """
    from segmenter.devices.strategy import describe

    if recipe.distribution.shares is not None:
        from segmenter.extras.unequal_cards.measured import share_out
        from segmenter.runs.run import load_run

        known = None if resumed is None else load_run(resumed).shares
        devices = share_out(devices, recipe, form, classes, known)
    say(describe(devices, recipe.training.global_batch, recipe.training.precision))
    return devices


def cards_expected(
    config: DistributionConfig, logical_devices: int | None = None, watch: Watch | None = None
) -> int:
    """Return the number of cards that a training will feed, without TensorFlow; 0: the CPU computes."""
    if watch is not None:  # the chief's cores are free for what its workers need
        return len(watch.roles.workers)
    if config.strategy == "tpu" and logical_devices is None:
        return _CORES
    return gpus_expected(config, logical_devices)
