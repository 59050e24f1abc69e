"""Conditions of all sections: place of the replicas, and amount of work."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from segmenter.config.devices import DistributionConfig, LogicalGpus
from segmenter.config.recipe import UNetConfig
from segmenter.devices.setup import smallest_card
from segmenter.devices.strategy import Devices, load_tensorflow, make_devices, mirrored

from .figures import Value


@functools.cache
def strategy_of(replicas: int) -> Any:
    """Return one strategy for each number of logical CPU devices in a process."""
    import tensorflow as tf

    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return mirrored([f"CPU:{i}" for i in range(replicas)])


def unequal_copies(strategy: Any, variables: Iterable[Any]) -> int:
    """Count the Keras variables whose copies differ between replicas in any bit."""
    copies = (strategy.experimental_local_results(variable.value) for variable in variables)
    return sum(len({np.asarray(copy).tobytes() for copy in each}) > 1 for each in copies)


Place = Literal["cards", "parts", "logical"]
"""Replicas on cards, on parts of the first card, or on logical CPU devices."""
PARTS = 4
_SHARE = 0.85
"""Share of a card's memory for all of its parts: the rest is CUDA's, cuDNN's and the screen's."""


@dataclass(frozen=True)
class Sizes:
    """Amounts of work in a section.

    Attributes:
        images: images of a step on each device, side × side pixels.
        chain: number of small consecutive sums over replicas, as by BatchNorm in a step.
        gradients: float32 elements of the large sum: the default model's parameters.
        rounds: repetitions, whose range is printed.
        calls: timed calls of four steps.
        rows: rows of the equivalence matrix, with shallow models for tiny sizes.
        epochs: epochs of the training that is stopped and resumed.
        raster, window: sides in pixels of the mapped raster and its windows.
    """

    tiny: bool = False
    model: UNetConfig = field(default_factory=UNetConfig)
    side: int = 256
    images: int = 16
    chain: int = 36
    gradients: int = 7_855_654
    rounds: int = 7
    calls: int = 5
    rows: tuple[str, ...] = (
        *("cross-entropy, nothing ignored", "sum of all", "these per pixel, with weights"),
        "clipped by norm",
    )
    raster: int = 8192
    window: int = 1024
    feed: int = 12


TINY = Sizes(
    tiny=True,
    model=UNetConfig(depth=1, width=2),
    side=16,
    images=2,
    chain=4,
    gradients=1000,
    rounds=2,
    calls=1,
    rows=("clipped by norm",),
    raster=200,
    window=64,
    feed=1,
)


@dataclass(frozen=True)
class Bench:
    """Place, devices, sizes and earlier figures for a section.

    Attributes:
        cards: number of GPUs that TensorFlow finds, or of logical devices.
    """

    place: Place
    cards: int
    sizes: Sizes
    folder: Path
    known: Mapping[str, Value] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """Number of devices here."""
        return PARTS if self.place == "parts" else self.cards

    @property
    def numbers(self) -> list[int]:
        """1, 2 and 4 replicas, if there are as many devices."""
        return [
            number for number in (1, 2, 4) if number <= self.most and not (self.sizes.tiny and number == 2)
        ]

    def devices(self, number: int) -> Devices:
        """Return the first `number` devices with their strategy, one strategy per number and process."""
        self.start()
        return _devices(self.place, self.cards, number)

    def start(self) -> None:
        """Import TensorFlow with the devices of this place."""
        load_tensorflow(_logical(self.place, self.cards))

    @property
    def device_noun(self) -> str:
        """Text on the place."""
        names = {"cards": "GPUs", "parts": "parts of one GPU", "logical": "logical CPU devices"}
        return names[self.place]


def distribution(place: Place, number: int) -> DistributionConfig:
    """Return the recipe's section `distribution` for the first `number` devices."""
    strategy: Literal["one_device", "mirrored"] = "one_device" if number == 1 else "mirrored"
    chosen: dict[str, Any] = {"strategy": strategy, "devices": tuple(range(number))}
    if place == "parts":
        memory = int((smallest_card() or 8 * 2**30) * _SHARE / PARTS / 2**20)
        parts = LogicalGpus(number=PARTS, memory=memory)
        chosen |= {"visible_devices": (0,), "memory_growth": False, "logical_gpus": parts}
    return DistributionConfig(**chosen)


def _logical(place: Place, cards: int) -> int | None:
    return cards if place == "logical" else None


@cache
def _devices(place: Place, cards: int, number: int) -> Devices:
    """Return one strategy for each number of devices in a process."""
    return make_devices(distribution(place, number), _logical(place, cards))
