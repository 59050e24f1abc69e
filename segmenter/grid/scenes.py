"""Scenes, and datasets as collections of scenes: the result of every loader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from segmenter.base.files import compose_accents, real
from segmenter.grid.deals import Deal
from segmenter.grid.labels import ClassMap

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Scene:
    """One raster file with its label raster.

    >>> from pathlib import Path
    >>> Scene("a", Path("a.tif"), Path("a_label.png"), group="a", split="train").split
    'train'

    Attributes:
        name: unique in the dataset; used in outputs and messages.
        image: the image file.
        label: the label file; None if the scene is only predicted.
        group: scenes of one group show the same place (or flight) and stay in one split.
        split: use of the scene: train, validation or test.
        metres_per_pixel: from the recipe, which overrides the file's georeference; None: not in the recipe.
        files: files of the image if its bands lie in several files, or if a driver must be named.
        blocks: True if its label is of some blocks of the image alone, and others are in other splits; its
            name then ends in its split.
        masks: code and file of each mask, if classes have files of their own; `label` is the first.
    """

    name: str
    image: Path
    label: Path | None
    group: str
    split: Split
    metres_per_pixel: float | None = None
    files: tuple[Path, ...] = ()
    blocks: bool = False
    masks: tuple[tuple[int, Path], ...] = ()

    @property
    def title(self) -> str:
        """Name of the image, as its user knows it."""
        return self.name.removesuffix(f"_{self.split}") if self.blocks else self.name


@dataclass(frozen=True)
class Dataset:
    """Scenes of a dataset, their class map, and rules for reading their files.

    Attributes:
        root: folder of the dataset; caches lie in it.
        bands: 1-based bands that the model sees, in order; None for all. A band listed here is data, whatever
            the file's tags are (NAIP tags near infrared as alpha).
        labels: kind of labels, for the protocol of scores: full or eroded.
        unused: files excluded by a configured rule, with the reason; always printed.
        notes: further messages of the loader, one line each, printed with the dataset.
        cache: folder for the tile index and decoded scenes, if not in the root.
        cache_bytes: bytes that decoded scenes may occupy there; None: limited by the disk only.
        cache_codec: compression of decoded scenes: `none` or `lz4`.
        leave_out: recipe key that excludes scenes, for messages.
        usual_metres: metres a pixel of scenes whose scale is in neither recipe nor georeference; None:
            unknown.
        deal: parts of the groups, or blocks, that a hash dealt; None: none were.
    """

    name: str
    root: Path
    scenes: tuple[Scene, ...]
    classes: ClassMap
    bands: tuple[int, ...] | None = None
    labels: Literal["full", "eroded"] = "full"
    unused: tuple[tuple[Path, str], ...] = ()
    notes: tuple[str, ...] = ()
    cache: Path | None = None
    cache_bytes: int | None = None
    cache_codec: Literal["none", "lz4"] = "none"
    leave_out: str = "dataset.leave_out"
    usual_metres: float | None = None
    deal: Deal | None = None

    def of(self, split: Split) -> tuple[Scene, ...]:
        """Return the scenes of one split."""
        return tuple(scene for scene in self.scenes if scene.split == split)

    def scale_of(self, scene: Scene, georeference: float | None) -> float | None:
        """Return a scene's metres a pixel: the recipe's, the georeference's or `usual_metres`; else None."""
        return scene.metres_per_pixel or georeference or self.usual_metres


@dataclass(frozen=True)
class Layout:
    """Naming scheme of a dataset's files below its root, from the recipe alone.

    Attributes:
        images, labels: patterns of relative POSIX paths; named groups of `images` are the recipe's fields.
        form: form of an image's path, for messages.
        bands: pattern → regular expression, in order, if a scene's bands lie in several files; `images` is
            the first.
        grid: pattern whose file defines the scene's grid; None: the finest.
        by_georeference: True if label rasters are aligned to images by georeference.
        classes: class map of the label rasters; None: the run's.
        masks: code of each class with a mask file; empty: each band is a mask; None: labels are no masks.
    """

    root: Path
    images: re.Pattern[str]
    labels: re.Pattern[str]
    form: str
    bands: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    grid: int | None = None
    by_georeference: bool = False
    classes: ClassMap | None = None
    masks: Mapping[str, int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(self.images.groupindex)

    def fields(self, image: Path) -> dict[str, str] | None:
        """Return an image's fields from its path below the root or another folder; None if not matching."""
        below, anywhere = self._below(image), re.compile(f"(?:.*/)?{self.images.pattern}", self.images.flags)
        for spelt in (str, compose_accents):  # as the label's name is likely to be
            match = None if below is None else self.images.fullmatch(spelt(below))
            if match := match or anywhere.fullmatch(spelt(image.as_posix())):
                return match.groupdict()
        return None

    def covers(self, folder: Path) -> bool:
        """Return whether a folder is the root or lies below it."""
        return self._below(folder) is not None

    def holds(self, path: Path) -> bool:
        """Return whether a path matches the pattern of an image or label of the dataset."""
        below = self._below(path)
        regexes = self.images, self.labels, *self.bands.values()
        return below is not None and any(regex.fullmatch(compose_accents(below)) for regex in regexes)

    def _below(self, path: Path) -> str | None:
        root, inside = (Path(str(real(each))) for each in (self.root, path))
        return inside.relative_to(root).as_posix() if inside.is_relative_to(root) else None


@dataclass(frozen=True)
class SceneMeans:
    """Means of the bands of each training scene: how much light, season and land differ from scene to scene.

    Attributes:
        scenes: number of scenes with data in every band.
        pixels: median of the scenes' sizes.
        mean, deviation, low, high: mean, deviation, minimum and maximum of the scenes' means, by band.
    """

    scenes: Annotated[int, Field(ge=2)]
    pixels: Annotated[int, Field(ge=1)]
    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Field(ge=0)], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def path_below(root: Path, path: Path) -> str:
    """Return a path below a dataset's root; elsewhere, as of made images, the name alone."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
