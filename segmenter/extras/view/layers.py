"""Layers of a map's page: values by windows of the map's own rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Literal

import numpy as np

from segmenter.base.errors import RasterError
from segmenter.base.sealed import digest
from segmenter.extras.view import colouring
from segmenter.extras.view.colouring import Coloured, Pixels
from segmenter.extras.view.open_files import OpenFiles
from segmenter.extras.written_map import WrittenMap
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap, Colour
from segmenter.grid.stretch import Stretch
from segmenter.raster import LabelRaster, Raster, open_raster

LayerKind = Literal["image", "classes", "marks", "amount"]
Bands = tuple[int, ...]
Sample = Callable[[], Pixels]
_BYTES = "uint8"


class Layer:
    """Values of a map's pixels.

    Attributes:
        id, title, kind: as the page knows it.
        size: that of the map.
        block: size of the blocks that are decoded as a whole.
        bands: names of bands that may be chosen.
        by_mean: an overview holds means of pixels; False: the most frequent value.
    """

    kind: LayerKind = "classes"
    bands: tuple[str, ...] = ()
    by_mean = False

    def __init__(self, id: str, title: str, size: Size, block: Size) -> None:
        self.id, self.title, self.size, self.block = id, title, size, block

    @property
    def identity(self) -> list[object]:
        """States of the files that it comes from, and what is read of them, as JSON."""
        raise NotImplementedError

    def key(self, bands: Bands) -> str:
        """Return a digest of all that its values depend on."""
        return digest([type(self).__name__, bands, self.identity], 24)

    def choice(self, bands: Bands) -> Bands:
        """Return the 1-based bands that are drawn if these are wished; none: the usual ones."""
        return bands

    def read(self, window: Window, bands: Bands) -> Pixels:
        """Return a window's values.

        Raises:
            SegmenterError: a file is gone, has changed or is damaged.
        """
        raise NotImplementedError

    def empty(self, window: Window) -> bool:
        """Return True if nothing is stored for a window."""
        return False

    def colour(self, pixels: Pixels, bands: Bands, sample: Sample) -> Coloured:
        """Return the colours of values; `sample` gives some of the whole scene, for a stretch."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the files."""


class ImageLayer(Layer):
    """Bands of the image.

    Args:
        bands: names of all bands.
        usual: bands that are shown at first.
        place: the map's pixels in the image.
    """

    kind: LayerKind = "image"
    by_mean = True

    def __init__(self, path: Path, bands: Sequence[str], usual: Bands, place: Window) -> None:
        self._path, self._usual, self._place = path, usual, place
        self._files: dict[Bands, OpenFiles[Raster]] = {}
        self.bands = tuple(bands)
        with self._of(usual).handle() as raster:
            super().__init__("image", "image", place.size, raster.block)
            self.dtype = raster.info.dtype

    def _of(self, bands: Bands) -> OpenFiles[Raster]:
        if bands not in self._files:
            self._files[bands] = OpenFiles(self._path, lambda: open_raster(self._path, bands))
        return self._files[bands]

    @property
    def identity(self) -> list[object]:
        return [self._of(self._usual).stamp.key, astuple(self._place)]

    def choice(self, bands: Bands) -> Bands:
        known = tuple(band for band in bands if 1 <= band <= len(self.bands))[:3]
        return known[:1] if len(known) == 2 else known or self._usual

    def read(self, window: Window, bands: Bands) -> Pixels:
        with self._of(bands).handle() as raster:
            return raster.read(window.shifted(self._place.row, self._place.col))

    def empty(self, window: Window) -> bool:
        with self._of(self._usual).handle() as raster:
            return raster.empty(window.shifted(self._place.row, self._place.col))

    def colour(self, pixels: Pixels, bands: Bands, sample: Sample) -> Coloured:
        return colouring.picture(pixels, None if self.dtype == _BYTES else Stretch.of(*sample()))

    def close(self) -> None:
        for each in self._files.values():
            each.close()


class ClassLayer(Layer):
    """Class ids as the page numbers them.

    Args:
        palette: colour of each.
    """

    def __init__(self, id: str, title: str, size: Size, block: Size, palette: Sequence[Colour]) -> None:
        super().__init__(id, title, size, block)
        self._palette = palette

    def colour(self, pixels: Pixels, bands: Bands, sample: Sample) -> Coloured:
        return colouring.classes(pixels, self._palette)


class MapLayer(ClassLayer):
    """Class ids of a written map.

    Args:
        block: size of its blocks.
        ids: id on the page of each id in the map.
        place: pixels that are shown of it.
    """

    def __init__(
        self,
        id: str,
        title: str,
        path: Path,
        block: Size,
        ids: Sequence[int],
        palette: Sequence[Colour],
        place: Window,
    ) -> None:
        self._files = OpenFiles(path, lambda: WrittenMap(path, with_confidence=False))
        self._ids = np.full(256, IGNORE, np.uint8)
        self._ids[: len(ids)] = ids
        self._place = place
        super().__init__(id, title, place.size, block, palette)

    @property
    def identity(self) -> list[object]:
        return [self._files.stamp.key, astuple(self._place), self._ids.tolist()]

    def read(self, window: Window, bands: Bands) -> Pixels:
        with self._files.handle() as opened:
            ids_HW = self._ids[opened.read(window.shifted(self._place.row, self._place.col))[0]]
        return ids_HW[..., None], ids_HW != IGNORE

    def empty(self, window: Window) -> bool:
        with self._files.handle() as opened:
            return opened.empty(window.shifted(self._place.row, self._place.col))

    def close(self) -> None:
        self._files.close()


class LabelLayer(ClassLayer):
    """Classes of a label raster; values that are none of the classes are no data.

    Args:
        classes: class map of the label, in the order of the map's classes.
        ids_K: id of each class in the page.
        place: the map's pixels in the label.
    """

    def __init__(
        self, path: Path, classes: ClassMap, ids_K: Sequence[int], palette: Sequence[Colour], place: Window
    ) -> None:
        self._files = OpenFiles(path, lambda: LabelRaster(path, classes))
        self._place, self._classes = place, classes
        self._ids = np.full(256, IGNORE, np.uint8)
        self._ids[: len(ids_K)] = ids_K
        with self._files.handle() as label:
            block = Size(min(label.info.size.height, 256), label.info.size.width)
        super().__init__("label", "label", place.size, block, palette)

    @property
    def identity(self) -> list[object]:
        shown = [self._classes.to_dict(), self._ids.tolist()]
        return [self._files.stamp.key, astuple(self._place), *shown]

    def read(self, window: Window, bands: Bands) -> Pixels:
        ids_HW = np.full((window.height, window.width), IGNORE, np.uint8)
        with self._files.handle() as label:
            wanted = window.shifted(self._place.row, self._place.col)
            inside = wanted.intersection(Window.of(label.info.size))
            if inside.size.pixels:
                raw, void = label.stored_values(inside)
                known = self._classes.decode_known(raw, str(label.info.path), void)
                ids_HW[inside.relative_to(wanted).slices()] = self._ids[known]
        return ids_HW[..., None], ids_HW != IGNORE

    def close(self) -> None:
        self._files.close()


class DifferenceLayer(Layer):
    """Pixels where two layers of classes differ, of those with both."""

    kind: LayerKind = "marks"
    by_mean = True

    def __init__(self, id: str, title: str, one: ClassLayer, other: ClassLayer) -> None:
        super().__init__(id, title, one.size, one.block)
        self.one, self.other = one, other

    @property
    def identity(self) -> list[object]:
        return [self.one.identity, self.other.identity]

    def read(self, window: Window, bands: Bands) -> Pixels:
        (one, has_one), (other, has_other) = (each.read(window, ()) for each in (self.one, self.other))
        return np.where(one != other, np.uint8(255), np.uint8(0)), has_one & has_other

    def empty(self, window: Window) -> bool:
        return self.one.empty(window) or self.other.empty(window)

    def colour(self, pixels: Pixels, bands: Bands, sample: Sample) -> Coloured:
        return colouring.marks(pixels)


class ShareLayer(Layer):
    """Confidence, or the probability of a class, in 1/255."""

    kind: LayerKind = "amount"
    by_mean = True

    def __init__(self, id: str, title: str, path: Path, size: Size, bands: Sequence[str] = ()) -> None:
        self._files = OpenFiles(path, lambda: open_raster(path, tuple(range(1, max(1, len(bands)) + 1))))
        with self._files.handle() as raster:
            if raster.info.size != size:
                raise RasterError(path, expected=f"{size} pixels as its map has", got=raster.info.size)
            super().__init__(id, title, size, raster.block)
        self.bands = tuple(bands)

    @property
    def identity(self) -> list[object]:
        return [self._files.stamp.key]

    def choice(self, bands: Bands) -> Bands:
        return tuple(band for band in bands if 1 <= band <= len(self.bands))[:1] or (1,)

    def read(self, window: Window, bands: Bands) -> Pixels:
        """Return a band's values, or with none those of all bands."""
        with self._files.handle() as raster:
            values, valid = raster.read(window)
        picked = values[..., [band - 1 for band in bands]] if bands else values
        return np.rint(255 * np.clip(np.nan_to_num(picked), 0, 1)).astype(np.uint8), valid

    def empty(self, window: Window) -> bool:
        with self._files.handle() as raster:
            return raster.empty(window)

    def colour(self, pixels: Pixels, bands: Bands, sample: Sample) -> Coloured:
        return colouring.ramp(pixels)

    def close(self) -> None:
        self._files.close()
