"""Shares of a step: how many tiles of the global batch each device gets. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from segmenter.base.errors import ConfigError

ALIKE = 1.1
"""Devices whose slowest takes at most so many times the fastest's time for a tile get equal parts: timings of
cards of one model differ by some percent from run to run."""


def dealt(tiles: int, shares: Sequence[int], unit: int = 1) -> tuple[int, ...]:
    """Tiles of each device, in proportion to its share, whole ones, by the largest remainders.

    Each gets its quota rounded down; what is left goes to the largest remainders (Hamilton's method), the
    first of equal ones. The same arguments always give the same.

    Args:
        tiles: of the global batch, a multiple of `unit`.
        unit: tiles that stay together, one for each micro-batch.

    Raises:
        ConfigError: a device that has a share would get none.
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
            f"distribution.shares: expected {each} of a step for every device that has a share, got none for "
            f"device {without[0]} of {tiles} tiles by {list(shares)}; raise training.global_batch, or give "
            "it 0"
        )
    return tuple(count * unit for count in counts)


def quickest(
    tiles: int, seconds: Sequence[float], unit: int = 1, most: Sequence[int | None] = ()
) -> tuple[int, ...]:
    """Tiles of each device such that the slowest is done as early as can be; equal where they are alike.

    Each gets one unit; unit after unit goes then to the device that would be done with it first, which is
    optimal for tiles that all take a device the same time.

    Args:
        tiles: of the global batch, a multiple of `unit`.
        seconds: that a tile takes on each device.
        unit: tiles that stay together, one for each micro-batch.
        most: units that each device's memory holds; None: unknown. Where they hold less than a step takes
            together, they are not looked at.

    Raises:
        ConfigError: there are fewer units than devices.
    """
    units, devices = tiles // unit, len(seconds)
    if units < devices:
        raise ConfigError(
            f"distribution.shares: auto: expected a tile of a step, and of each micro-batch, for each of "
            f"{devices} devices, got {tiles} tiles; raise training.global_batch, or use fewer devices"
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
