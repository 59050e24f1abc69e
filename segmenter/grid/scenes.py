"""Scenes, and the dataset they make up: the result of every loader."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
        name: unique in its dataset; outputs and messages use it.
        image: the image file.
        label: the label file; None where a scene is only predicted.
        group: scenes of one group show one place (or flight) and are never split.
        split: what the scene is used for.
        metres_per_pixel: as the recipe says it, which goes before the file's georeference; None: it does not.
        files: that the image is made of, where its bands lie in several, or a driver has to be named.
    """

    name: str
    image: Path
    label: Path | None
    group: str
    split: Split
    metres_per_pixel: float | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """The scenes of a dataset, their class map and how their files are read.

    Attributes:
        root: folder of the dataset; caches lie in it.
        bands: 1-based bands of the image files that the model sees, in order; None for all. A band that
            is named here is data, whatever its file calls it (NAIP tags near infrared as alpha).
        labels: which labels these are, for the protocol of scores: full or eroded.
        unused: files that a configured rule left out, with the reason; printed, never silent.
        notes: further messages of the loader, a line each; printed where the dataset is announced.
        cache: folder for the tile index and decoded scenes, where not in the root.
        cache_bytes: that decoded scenes may take there; None: as the disk allows.
        cache_codec: `none` or `lz4`, by which they are stored.
        leave_out: the recipe's key that leaves scenes out, for messages.
        usual_metres: a pixel's side of scenes that neither the recipe nor their georeference tells the scale
            of; None: unknown.
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

    def of(self, split: Split) -> tuple[Scene, ...]:
        """Return the scenes of one split."""
        return tuple(scene for scene in self.scenes if scene.split == split)

    def scale_of(self, scene: Scene, georeference: float | None) -> float | None:
        """Return a scene's metres a pixel: the recipe's, else its georeference's; None if neither says."""
        return scene.metres_per_pixel or georeference or self.usual_metres


@dataclass(frozen=True)
class Layout:
    """File names of a dataset below its root, by the recipe alone.

    Attributes:
        images, labels: match relative posix paths; named groups of `images` are the recipe's fields.
        form: of an image's path, for messages.
        bands: pattern → its regular expression, of the files of a scene whose bands lie in several, in their
            order; `images` is the first.
        grid: which of those has the grid of the scene; None: the finest.
        by_georeference: whether label rasters are placed on images by it.
        classes: what these hold; None: what a run says.
    """

    root: Path
    images: re.Pattern[str]
    labels: re.Pattern[str]
    form: str
    bands: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    grid: int | None = None
    by_georeference: bool = False
    classes: ClassMap | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(self.images.groupindex)

    def fields(self, image: Path) -> dict[str, str] | None:
        """Return the fields of an image, by its path below the root or another folder; None if none fits."""
        below = self._below(image)
        match = None if below is None else self.images.fullmatch(below)
        if match is None:
            match = re.fullmatch(f"(?:.*/)?{self.images.pattern}", image.as_posix(), self.images.flags)
        return None if match is None else match.groupdict()

    def covers(self, folder: Path) -> bool:
        """Return whether a folder is the root or lies below it."""
        return self._below(folder) is not None

    def holds(self, path: Path) -> bool:
        """Return whether a file of that name would be taken for an image or label of the dataset."""
        below = self._below(path)
        regexes = self.images, self.labels, *self.bands.values()
        return below is not None and any(regex.fullmatch(below) for regex in regexes)

    def _below(self, path: Path) -> str | None:
        root, real = (Path(os.path.realpath(each)) for each in (self.root, path))
        return real.relative_to(root).as_posix() if real.is_relative_to(root) else None
