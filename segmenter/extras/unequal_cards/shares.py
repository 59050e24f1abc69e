"""Shares of a step: number of tiles of the global batch for each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from segmenter.base.errors import ConfigError, DeviceError
from segmenter.devices.strategy import Devices

ALIKE = 1.1
"""Devices whose slowest takes at most so many times the fastest's time for a tile get equal parts: timings of
cards of one model differ by some percent from run to run."""


def with_given(devices: Devices, shares: Sequence[int]) -> Devices:
    """Return the devices with a recipe's shares as parts.

    Raises:
        DeviceError: there are more or fewer shares than devices.
    """
    if len(shares) != len(devices.used):
        names = ", ".join(devices.names)
        raise DeviceError(
            "distribution.shares",
            expected=f"{len(devices.used)}, one for each device ({names})",
            got=len(shares),
        )
    return replace(devices, shares=tuple(shares))


def quickest(
    tiles: int, seconds: Sequence[float], unit: int = 1, most: Sequence[int | None] = ()
) -> tuple[int, ...]:
    """Return the tiles of each device that minimise the slowest device's time; equal if speeds are equal.

    Each device gets one unit; every further unit goes to the device that would finish it first, which is
    optimal if all tiles take a device the same time.

    Args:
        tiles: tiles of the global batch, a multiple of `unit`.
        seconds: seconds of a tile on each device.
        unit: tiles that stay together, one for each micro-batch.
        most: units that fit each device's memory; None: unknown. Ignored if they add up to less than a step.

    Raises:
        ConfigError: there are fewer units than devices.
    """
    units, devices = tiles // unit, len(seconds)
    if units < devices:
        raise ConfigError(
            "distribution.shares: auto",
            expected=f"a tile of a step, and of each micro-batch, for each of {devices} devices",
            got=f"{tiles} tiles",
            remedy="raise training.global_batch, or use fewer devices",
        )
    if max(seconds) <= ALIKE * min(seconds) and units % devices == 0:
        return (units // devices * unit,) * devices
    room = [units if limit is None else limit for limit in (most or [None] * devices)]
    if sum(room) < units:
        room = [units] * devices
    counts = [1] * devices
    for _ in range(units - sum(counts)):
        free = [r for r in range(devices) if counts[r] < room[r]] or list(range(devices))
        counts[min(free, key=lambda r: ((counts[r] + 1) * seconds[r], r))] += 1
    return tuple(count * unit for count in counts)
