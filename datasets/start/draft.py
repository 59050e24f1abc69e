"""Draft of a recipe: what is chosen so far, and the facts that rules ask for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from segmenter.base.threads import in_threads
from segmenter.config.datasets import FolderConfig, FolderSplit
from segmenter.config.models import ModelConfig
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.grid.scenes import Dataset, Split
from segmenter.model.receptive_field import NetworkGeometry, network_geometry
from segmenter.raster import RasterInfo, raster_info
from segmenter.tiles.index import TileIndex, build_index

from .. import load_dataset
from .choice import Choice, Request, nested
from .groups import Groups, groups_of
from .samples import Sample, area_of, has_an_up, label_range, samples_of

GIB = 2**30
_SHARE_OF_MACHINE = 0.5
"""Share of the memory of a machine without cards: other programs run beside a training."""


@dataclass(frozen=True)
class ModelSize:
    """Size of a model in training.

    Attributes:
        tile_bytes: of memory that a tile adds to a step.
    """

    network: NetworkGeometry
    parameters: int
    tile_bytes: int


class Draft:
    """Choices made so far, and facts of the data, each found once when it is asked for."""

    def __init__(self, choices: Sequence[Choice], request: Request) -> None:
        """Begin with the choices of the dataset section."""
        self.request, self.choices = request, list(choices)
        self.given = {choice.key for choice in choices}

    def add(self, choices: Iterable[Choice]) -> None:
        """Add choices, but for keys that were given beforehand."""
        self.choices += [choice for choice in choices if choice.key not in self.given]

    @property
    def recipe(self) -> Recipe:
        """Recipe of the choices so far, with defaults for the rest."""
        return recipe_from({"name": self.request.name, **nested(self.choices)}, "the planned recipe")

    @property
    def held_out(self) -> bool:
        """True if the dataset was given with a way to hold out validation scenes."""
        split = getattr(self.recipe.dataset, "split", None)
        return bool(isinstance(split, FolderSplit) and (split.by_hash or split.validation))

    @property
    def folder(self) -> bool:
        """True if any split can be planned."""
        return isinstance(self.recipe.dataset, FolderConfig)

    # ------------------------------------------------------------------------------------------ scenes

    @functools.cached_property
    def dataset(self) -> Dataset:
        """Dataset as it was given, before a split is planned."""
        return load_dataset(self.recipe)

    @functools.cached_property
    def infos(self) -> list[RasterInfo]:
        """Header of each scene's image."""
        images = [scene.image for scene in self.dataset.scenes]
        return list(in_threads(raster_info, images, description="looking at images", unit="scene"))

    @functools.cached_property
    def samples(self) -> list[Sample]:
        """Labels of some scenes."""
        return samples_of(self.dataset)

    @functools.cached_property
    def apart(self) -> tuple[float, bool]:
        """Pixels over which labels are alike, and True if the scenes are long enough to tell."""
        return label_range(self.samples)

    @functools.cached_property
    def groups(self) -> Groups:
        """Groups of scenes that show one place."""
        return groups_of(self.dataset.root, self.dataset.scenes, self.infos, self.apart[0])

    @functools.cached_property
    def up(self) -> tuple[bool, float]:
        """True if images have an up, and how much classes differ between above and below."""
        if all(info.georeferenced for info in self.infos):
            return False, 0.0
        return has_an_up(self.samples)

    @property
    def bands(self) -> int:
        """Number of bands that the model sees."""
        if self.dataset.bands is not None:
            return len(self.dataset.bands)
        return min(info.count - len(info.alpha) for info in self.infos)

    @property
    def sides(self) -> NDArray[np.int64]:
        """Shorter side of each scene in pixels."""
        return np.array([min(info.size.height, info.size.width) for info in self.infos])

    @functools.cached_property
    def metres(self) -> list[float]:
        """Metres a pixel of the scenes whose scale is known."""
        scales = (
            self.dataset.scale_of(scene, info.metres_per_pixel)
            for scene, info in zip(self.dataset.scenes, self.infos, strict=True)
        )
        return [metres for metres in scales if metres]

    # ------------------------------------------------------------------------------------------- tiles

    def counts_SK(self) -> NDArray[np.int64]:
        """Return the labelled pixels of each class in each scene."""
        scenes = tuple(replace(scene, split="train") for scene in self.dataset.scenes)
        tiles = self.recipe.tiles.model_copy(update={"min_labelled": 0.0})
        index = build_index(replace(self.dataset, scenes=scenes), "train", tiles)
        counts = np.zeros((len(scenes), index.counts_NK.shape[1]), np.int64)
        np.add.at(counts, index.scene_N, index.counts_NK)
        return counts

    @functools.cached_property
    def split_dataset(self) -> Dataset:
        """Dataset with the planned split; asked for once that is chosen."""
        return load_dataset(self.recipe)

    @functools.cached_property
    def index(self) -> TileIndex:
        """Training tiles; asked for once split and size of tiles are chosen."""
        split: Split = "train"
        return build_index(self.split_dataset, split, self.recipe.tiles)

    @functools.cached_property
    def rarest(self) -> int:
        """Class that the fewest pixels of the samples show, of those that any shows."""
        counts = np.sum([np.bincount(s.fine.reshape(-1), minlength=256) for s in self.samples], axis=0)
        classes = counts[: len(self.dataset.classes)]
        return int(np.argmin(np.where(classes > 0, classes, np.iinfo(np.int64).max)))

    @functools.cached_property
    def rare_area(self) -> float | None:
        """Median pixels of an area of the rarest class."""
        return area_of(self.samples, self.rarest)

    # ------------------------------------------------------------------------------------------ machine

    @functools.cached_property
    def cards(self) -> tuple[float, ...]:
        """GiB of each card; empty: the processor computes."""
        if self.request.gpus is not None:
            return tuple(map(float, self.request.gpus))
        from segmenter.config.devices import DistributionConfig
        from segmenter.devices.setup import gpus_expected, smallest_card

        card = smallest_card() if (count := gpus_expected(DistributionConfig())) else None
        return (card / GIB,) * count if card else ()

    @property
    def budget(self) -> float:
        """Bytes that a step may take on each card, or of the machine."""
        from segmenter.base.machine import machine_memory

        return min(self.cards) * GIB if self.cards else machine_memory() * _SHARE_OF_MACHINE

    def size_of(self, model: ModelConfig) -> ModelSize:
        """Return the size of a model for these bands, classes, tiles and precision."""
        recipe = self.recipe
        return _size_of(
            *(model, self.bands, len(self.dataset.classes), recipe.tiles.size, recipe.training.precision)
        )


@functools.lru_cache(maxsize=16)
def _size_of(model: ModelConfig, bands: int, classes: int, side: int, precision: str) -> ModelSize:
    from segmenter.devices.setup import load_tensorflow

    load_tensorflow()
    from segmenter.model.building import build_model
    from segmenter.model.size import training_bytes_per_image

    built = build_model(model, bands, classes, dtype=precision, synchronised=True)
    mixed = precision.startswith("mixed")
    of_tile = training_bytes_per_image(built, side, side, mixed=mixed)
    return ModelSize(network_geometry(built), built.count_params(), of_tile)
