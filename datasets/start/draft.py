"""Draft of a recipe: what is chosen so far, and the facts that rules ask for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from segmenter.base.machine import machine_memory
from segmenter.base.threads import in_threads
from segmenter.config.datasets import FolderConfig
from segmenter.config.devices import DistributionConfig
from segmenter.config.models import ModelConfig
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.devices.setup import gpus_expected, load_tensorflow, smallest_card
from segmenter.grid.labels import class_pixels
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference.memory import SHARE_OF_MACHINE
from segmenter.model.receptive_field import NetworkGeometry, network_geometry
from segmenter.raster import RasterInfo, raster_info
from segmenter.tiles.index import TileIndex, build_index

from .. import load_dataset
from ..contents import Contents
from .choice import Choice, nest_choices
from .groups import Groups, groups_of
from .samples import LabelSample, has_fixed_orientation, label_range, samples_of

GIB = 2**30


class ModelSize(NamedTuple):
    """Size of a model in training; `tile_bytes` is the memory that a tile adds to a step."""

    network: NetworkGeometry
    parameters: int
    tile_bytes: int


class Draft:
    """Choices made so far, and facts of the data, each found once when it is asked for."""

    def __init__(
        self,
        choices: Sequence[Choice],
        name: str,
        hours: float | None,
        gpus: tuple[int, ...] | None,
        contents: Contents,
    ) -> None:
        """Begin with the choices of the dataset section; the others are as for `plan`."""
        self.choices, self.name, self.hours, self.gpus = list(choices), name, hours, gpus
        self.contents = contents

    @property
    def recipe(self) -> Recipe:
        """Recipe of the choices so far, with defaults for the rest."""
        return recipe_from({"name": self.name, **nest_choices(self.choices)}, "the planned recipe")

    @property
    def pretrained(self) -> bool:
        """True if the model begins with an encoder's weights."""
        return self.recipe.model.kind == "encoder_decoder"

    # ------------------------------------------------------------------------------------------ scenes

    @functools.cached_property
    def dataset(self) -> Dataset:
        """Dataset as it was given, before a split is planned."""
        return load_dataset(self.recipe)

    @property
    def free(self) -> tuple[Scene, ...]:
        """Scenes that a split may deal: those that are held out for nothing yet."""
        return self.dataset.of("train")

    @property
    def folder(self) -> bool:
        """True if any split can be planned; loaders of published data only name scenes."""
        return isinstance(self.recipe.dataset, FolderConfig)

    @functools.cached_property
    def infos(self) -> dict[Scene, RasterInfo]:
        """Header of each scene's image."""
        images = [scene.image for scene in self.dataset.scenes]
        infos = in_threads(raster_info, images, description="looking at images", unit="scene")
        return dict(zip(self.dataset.scenes, infos, strict=True))

    @functools.cached_property
    def samples(self) -> list[LabelSample]:
        """Labels of some scenes."""
        return samples_of(self.dataset, self.contents.files)

    @functools.cached_property
    def apart(self) -> tuple[float, bool]:
        """Pixels over which labels are alike, and True if the scenes are long enough to tell."""
        return label_range(self.samples)

    @functools.cached_property
    def groups(self) -> Groups:
        """Groups of the free scenes that show one place."""
        infos = [self.infos[scene] for scene in self.free]
        places = infos, self.apart[0], self.dataset.bands, self.contents
        return groups_of(self.dataset.root, self.free, *places)

    @functools.cached_property
    def up(self) -> tuple[bool, float]:
        """True if images have an up, and how much classes differ between above and below."""
        placed = all(info.georeferenced for info in self.infos.values())
        return (False, 0.0) if placed else has_fixed_orientation(self.samples)

    @property
    def bands(self) -> int:
        """Number of bands that the model sees."""
        return len(self.dataset.bands or ()) or min(i.count - len(i.alpha) for i in self.infos.values())

    # ------------------------------------------------------------------------------------------- tiles

    @functools.cached_property
    def split_dataset(self) -> Dataset:
        """Dataset with the planned split; asked for once that is chosen."""
        return load_dataset(self.recipe)

    @functools.cached_property
    def index(self) -> TileIndex:
        """Training tiles; asked for once split and size of tiles are chosen."""
        return build_index(self.split_dataset, "train", self.recipe.tiles, files=self.contents.files)

    @functools.cached_property
    def rarest(self) -> int:
        """Class that the fewest pixels of the samples show, of those that any shows."""
        counts = np.sum([class_pixels(s.fine, len(self.dataset.classes)) for s in self.samples], axis=0)
        return int(np.argmin(np.where(counts > 0, counts, np.iinfo(np.int64).max)))

    # ------------------------------------------------------------------------------------------ machine

    @functools.cached_property
    def cards(self) -> tuple[float, ...]:
        """GiB of each card; empty: the processor computes."""
        if self.gpus is not None:
            return self.gpus
        card = smallest_card()
        return (card / GIB,) * gpus_expected(DistributionConfig()) if card else ()

    @property
    def budget(self) -> float:
        """Bytes that a step may take on each card, or of the machine."""
        return min(self.cards) * GIB if self.cards else machine_memory() * SHARE_OF_MACHINE

    def size_of(self, model: ModelConfig) -> ModelSize:
        """Return the size of a model for these bands, classes, tiles and precision."""
        recipe = self.recipe
        facts = self.bands, len(self.dataset.classes), recipe.tiles.size, recipe.training.precision
        return _size_of(model, *facts)


@functools.cache
def _size_of(model: ModelConfig, bands: int, classes: int, side: int, precision: str) -> ModelSize:
    load_tensorflow()
    from segmenter.model.building import build_model
    from segmenter.model.size import training_bytes_per_image

    built = build_model(model, bands, classes, dtype=precision, synchronised=True)
    of_tile = training_bytes_per_image(built, side, side, mixed=precision.startswith("mixed"))
    return ModelSize(network_geometry(built), built.count_params(), of_tile)
