"""Conditions of all questions: place of the replicas, amount of work, data and recipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from segmenter.base.errors import TrainingError
from segmenter.config.devices import DistributionConfig, LogicalGpus
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.devices.setup import smallest_card
from segmenter.devices.strategy import Devices, load_tensorflow, make_devices

from .figures import Value

Place = Literal["cards", "parts", "logical"]
"""Replicas on cards, on parts of the first card, or on logical CPU devices."""
_PARTS = 2
_SHARE = 0.8
"""Share of a card's memory for all of its parts: the rest is CUDA's, cuDNN's and the screen's."""
_TOOLS = __package__.rpartition(".")[0]
_CODE = f"import sys; from {_TOOLS}.{{}} import main; from segmenter.base.errors import run_tool; " + (
    "sys.exit(run_tool(main))"
)
"""A tool, in a clone too, where no command is installed."""


@dataclass(frozen=True)
class Sizes:
    """Amounts of work.

    Attributes:
        images: most images of a step on each device, in a training that is repeated, and in others.
        calls: timed calls of four steps.
        epochs: of a training that is repeated, and of one that is timed.
        scenes: made scenes.
        enlarge: times that made scenes are laid side by side, for the same two.
        raster, window: sides in pixels of the mapped raster and its windows.
        chain: number of small sums over replicas one after the other, as by BatchNorm in a step.
        gradients: float32 elements of the large sum: the default U-Net's parameters.
    """

    images: tuple[int, int] = (8, 512)
    calls: int = 5
    epochs: tuple[int, int] = (1, 6)
    scenes: int = 6
    enlarge: tuple[int, int] = (2, 8)
    raster: int = 8192
    window: int = 1024
    chain: int = 36
    gradients: int = 7_855_654
    rounds: int = 7


SIZES = {
    "card": Sizes(),
    "processor": Sizes((2, 2), 1, (1, 2), 4, (1, 1), 1024, 512, rounds=3),
    "tiny": Sizes((16, 4), 1, (1, 2), 4, (1, 1), 200, 64, 4, 1000, 2),
}


@dataclass(frozen=True)
class Bench:
    """Place, devices, sizes and earlier figures for a question.

    Attributes:
        cards: number of GPUs that TensorFlow finds, or of logical devices.
        several: True: on all of them, or on parts of one; False: on the first.
        size: name in `SIZES`.
        folder: for files that several questions need.
        known: values of earlier answers by name.
    """

    place: Place
    cards: int
    size: str
    folder: Path
    several: bool = False
    known: Mapping[str, Value] = field(default_factory=dict)

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.size]

    @property
    def tiny(self) -> bool:
        return self.size == "tiny"

    @property
    def replicas(self) -> int:
        """Devices of the question."""
        return 1 if not self.several else _PARTS if self.place == "parts" else self.cards

    @property
    def noun(self) -> str:
        """Text on the devices of the question."""
        one, more = {
            "cards": ("card", "cards"),
            "parts": ("part of a card", "parts of a card"),
            "logical": ("logical CPU device", "logical CPU devices"),
        }[self.place]
        return f"{self.replicas} {one if self.replicas == 1 else more}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Bench:
        return cls(**{**given, "folder": Path(given["folder"])})

    def devices(self, number: int | None = None) -> Devices:
        """Return the first devices with their strategy, one strategy per number and process."""
        load_tensorflow(self.logical)
        return _devices(self.place, self.logical, number or self.replicas)

    @property
    def logical(self) -> int | None:
        """Parts of the CPU; None on GPUs."""
        return self.cards if self.place == "logical" else None

    # ------------------------------------------------------------------------------ data and recipes

    def scenes(self, enlarge: int = 1) -> Path:
        """Return a folder of made scenes, each laid side by side so many times, made by the first to ask."""
        from ...synthetic.make import make_potsdam

        folder = self.folder / f"scenes{enlarge}"
        if not folder.exists():
            aside = self.folder / f"{folder.name}.{os.getpid()}"
            make_potsdam(aside, scenes=self.sizes.scenes, seed=1, size=256 if self.tiny else 512)
            for path in sorted(aside.rglob("*.tif")) if enlarge > 1 else ():
                _enlarge(path, enlarge)
            aside.rename(folder)
        return folder

    def plan_recipe(self) -> dict[str, Any]:
        """Return the recipe that `segmenter start` writes here for the large scenes.

        Tiny: with the smallest net in its place; on a processor with small tiles: no speed counts there.

        Raises:
            TrainingError: it ended with an error, the message.
        """
        path, data = self.folder / "start.yaml", self.scenes(self.sizes.enlarge[1])
        if not path.exists():
            tool("start", str(data), "--output", str(path))
        made: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        if self.place == "logical":
            made["tiles"] = {"size": 128, "overlap": 0}
        if self.tiny:
            made |= {"model": {"kind": "unet", "depth": 1, "width": 2}, "tiles": {"size": 64, "overlap": 0}}
            made["training"] |= {"global_batch": 16}
        return made

    def recipe(self, name: str, changes: Mapping[str, Any], most: int) -> Path:
        """Write the planned recipe with changes in its sections, on the devices of the question.

        Args:
            most: images of a step on each device, at the most.
        """
        made = self.plan_recipe()
        for section, change in changes.items():
            made[section] = change if section == "model" else {**made.get(section, {}), **change}
        made["training"]["global_batch"] = self.replicas * min(self.images, most)
        made["distribution"] = {
            **distribution_of(self.place, self.replicas).model_dump(mode="json", exclude_unset=True),
            **made.get("distribution", {}),
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(made, allow_unicode=True), encoding="utf-8")
        return path

    @property
    def images(self) -> int:
        """Images of a step on a device, of the planned recipe."""
        batch: int = self.plan_recipe()["training"]["global_batch"]
        return min(-(-batch // (self.cards if self.place == "cards" else 1)), self.sizes.images[1])

    def settings(self) -> Recipe:
        """Return the planned recipe, validated."""
        return recipe_from({"name": "start", **self.plan_recipe()}, "segmenter start")


def tool(name: str, *words: str) -> str:
    """Run one of our tools as a user would; return what it said on both streams.

    Raises:
        TrainingError: it failed; the message is its last line.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    call = [sys.executable, "-c", _CODE.format(name), *words]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["nothing"]
        raise TrainingError(f"{name} ended with exit code {done.returncode}: {lines[-1]}")
    return done.stdout + done.stderr


def unequal_copies(strategy: Any, variables: Iterable[Any]) -> int:
    """Count the Keras variables whose copies differ between replicas in any bit."""
    copies = (strategy.experimental_local_results(variable.value) for variable in variables)
    return sum(len({np.asarray(copy).tobytes() for copy in each}) > 1 for each in copies)


def distribution_of(place: Place, number: int) -> DistributionConfig:
    """Return the recipe's section `distribution` for the first `number` devices."""
    strategy: Literal["one_device", "mirrored"] = "one_device" if number == 1 else "mirrored"
    chosen: dict[str, Any] = {"strategy": strategy, "devices": tuple(range(number))}
    if place == "parts":
        memory = int((smallest_card() or 8 * 2**30) * _SHARE / _PARTS / 2**20)
        parts = LogicalGpus(number=_PARTS, memory=memory)
        chosen |= {"visible_devices": (0,), "memory_growth": False, "logical_gpus": parts}
    return DistributionConfig(**chosen)


@cache
def _devices(place: Place, logical: int | None, number: int) -> Devices:
    return make_devices(distribution_of(place, number), logical)


def _enlarge(path: Path, times: int) -> None:
    """Lay a made scene side by side, so many times in both directions; it keeps its place in the grid."""
    import rasterio

    from segmenter.grid.geometry import Size
    from segmenter.raster import RasterSpec, write_raster

    from ...synthetic.make import potsdam_transform

    with rasterio.open(path) as file:
        pixels = np.tile(file.read().transpose(1, 2, 0), (times, times, 1))
        crs, names = file.crs, [name for name in file.descriptions if name]
    place = "_".join(path.stem.split("_")[2:4])
    transform = potsdam_transform(place, Size(*pixels.shape[:2]))
    write_raster(path, pixels, RasterSpec(crs=crs, transform=transform, descriptions=names))
