"""Tiles of a step for each device: equal, by the recipe's shares, or by a speed measurement.

The measurement precedes the training, and the choice is stored in run.json: timing differs from run to run,
but a resumed run must use the same shares.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from segmenter.base.errors import ConfigError, DeviceError, TrainingError
from segmenter.base.terminal import say
from segmenter.config.recipe import Recipe
from segmenter.devices.strategy import Devices, deal_tiles
from segmenter.model.building import build_model
from segmenter.model.normalisation import Normalisation
from segmenter.runs.run import MeasuredShares
from segmenter.training.losses import segmentation_loss
from segmenter.training.optimiser import build_optimiser
from segmenter.training.step import StepParts, make_step

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


_STEPS = 3
"""Timed on each device, after one that compiles; the quickest counts, as nothing makes a step too quick."""


def share_out(
    devices: Devices,
    recipe: Recipe,
    form: tuple[int, str],
    classes: int,
    known: MeasuredShares | None = None,
) -> Devices:
    """Return the devices with their number of tiles in a step; print measurement and choice.

    Args:
        form: number of bands and pixel type of the images.
        known: choice of the run to resume, with its devices.

    Raises:
        ConfigError: the global batch cannot be distributed by the shares.
        TrainingError: a single tile does not fit into a device's memory.
    """
    asked, training = recipe.distribution.shares, recipe.training
    if asked is None or devices.replicas == 1:
        return devices
    if asked != "auto":
        return _with(devices, deal_tiles(training.global_batch, asked, training.accumulate))
    if known is not None and known.devices == devices.models:
        say(f"shares: {_tiles(devices, known.tiles)} of each step, as this run has measured before")
        return _with(devices, known.tiles)
    probe = TimingProbe(recipe, *form, classes)
    tiles, seconds = measure_tiles(probe, devices.names, training.global_batch, training.accumulate)
    say(_shares_text(devices, tiles, seconds))
    return _with(devices, tiles)


def _with(devices: Devices, tiles: tuple[int, ...]) -> Devices:
    """Return the devices with these shares; equal shares are dropped, to give the bits of no shares."""
    return replace(devices, shares=() if len(set(tiles)) == 1 else tiles)


def measure_tiles(
    probe: TimingProbe, names: Sequence[str], global_batch: int, unit: int
) -> tuple[tuple[int, ...], list[float]]:
    """Measure the time of a tile on each device; return the tiles of a step for each, and these seconds.

    A part larger than the timed one is tried before it is chosen; a device never gets more tiles than fit its
    memory.
    """
    quickest(global_batch, [1.0] * len(names), unit)  # refuses too few tiles before minutes of measuring
    first = max(unit, global_batch // len(names) // unit * unit)
    probed = [probe.seconds(name, first, unit) for name in names]
    fits = [tiles for tiles, _ in probed]
    most: list[int | None] = [tiles // unit if tiles < first else None for tiles in fits]
    seconds = [each for _, each in probed]
    while True:
        chosen = quickest(global_batch, seconds, unit, most)
        larger = [i for i, tiles in enumerate(chosen) if tiles > fits[i] and most[i] is None]
        if not larger:
            return chosen, seconds
        for i in larger:
            fits[i] = probe.seconds(names[i], chosen[i], unit)[0]
            if fits[i] < chosen[i]:
                most[i] = fits[i] // unit


@dataclass
class TimingProbe:
    """Timed steps of a recipe's training on one device at a time, with synthetic tiles.

    Attributes:
        bands, dtype: number of bands and pixel type of the images.
        now: clock in seconds.
        changed: replaces the loss on a device; for tests.
    """

    recipe: Recipe
    bands: int
    dtype: str
    classes: int
    now: Callable[[], float] = time.perf_counter
    changed: Callable[[Any, str], Any] = field(default=lambda loss, device: loss)

    def seconds(self, device: str, tiles: int, unit: int = 1) -> tuple[int, float]:
        """Return the number of tiles that fit the memory, at most `tiles`, and the seconds of one.

        Raises:
            TrainingError: not even `unit` tiles fit.
        """
        while True:
            try:
                return tiles, self._steps(device, tiles) / tiles
            except tf.errors.ResourceExhaustedError:
                if tiles <= unit:
                    raise TrainingError(
                        "distribution.shares",
                        f"auto: out of memory at {tiles} tiles of {self.recipe.tiles.size} pixels on "
                        f"{device}: lower tiles.size or {self.recipe.model.smaller_by}",
                    ) from None
                tiles = max(unit, tiles // 2 // unit * unit)
            finally:
                gc.collect()  # its variables lie on the device

    def _steps(self, device: str, tiles: int) -> float:
        """Return the shortest time of a step, in seconds."""
        batch = self._batch(device, tiles)
        # Made once, for this batch: TensorFlow warns of a function that is made again and again.
        step = self._step(device, tiles).get_concrete_function(batch)
        float(step(batch).loss)
        times = []
        for _ in range(_STEPS):
            before = self.now()
            float(step(batch).loss)  # which waits for it
            times.append(self.now() - before)
        return min(times)

    def _step(self, device: str, tiles: int) -> Any:
        recipe, strategy = self.recipe, tf.distribute.OneDeviceStrategy(device)
        alike = {"rates": {}, "freeze_encoder": 0, "freeze_norms": "none"}
        training = recipe.training.model_copy(update=alike)
        with strategy.scope():
            policy = training.precision
            model = build_model(recipe.model, self.bands, self.classes, dtype=policy, synchronised=True)
            optimiser = build_optimiser(training, model, training.warmup + 1000)
        weighted = recipe.loss.class_weights != "none"
        loss = segmentation_loss(
            *(recipe.loss, (1.0,) * self.classes if weighted else None, tiles),
            class_shares=[1 / self.classes] * self.classes,
        )
        plain = Normalisation.of([0.0] * self.bands, [1.0] * self.bands)
        accumulate = training.accumulate if tiles % training.accumulate == 0 else 1
        return make_step(
            StepParts(
                *(strategy, model, optimiser, self.changed(loss, device), plain),
                *(recipe.sampling.min_pixels, accumulate),
                xla=training.xla is True,
            )
        )

    def _batch(self, device: str, tiles: int) -> Any:
        rng = np.random.default_rng(0)
        shape = (tiles, self.recipe.tiles.size, self.recipe.tiles.size)
        image = rng.integers(0, 100, (*shape, self.bands), np.uint8).astype(self.dtype)
        label = rng.integers(0, self.classes, shape, np.uint8)
        with tf.device(device):
            return tuple(map(tf.constant, (image, np.ones(shape, np.bool_), label)))


def _shares_text(devices: Devices, tiles: Sequence[int], seconds: Sequence[float]) -> str:
    times = ", ".join(
        f"{1000 * each:.3g} ms on {name}" for name, each in zip(devices.names, seconds, strict=True)
    )
    if len(set(tiles)) == 1:
        return f"shares: a tile takes {times}: alike, {tiles[0]} tiles of each step for every device"
    equal = sum(tiles) / len(tiles) * max(seconds)
    slowest = max(count * each for count, each in zip(tiles, seconds, strict=True))
    return (
        f"shares: a tile takes {times}: {_tiles(devices, tiles)} of each step, "
        f"{equal / slowest:.2f} times as fast as equal parts by these times"
    )


def _tiles(devices: Devices, tiles: Sequence[int]) -> str:
    of = ", ".join(f"{count} on {name}" for name, count in zip(devices.names, tiles, strict=True))
    return f"tiles {of}"
