"""Layers of a map's page: values by windows of the map's own rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from segmenter.base.sealed import digest
from segmenter.extras.view import colouring
from segmenter.extras.view.colouring import Coloured, Pixels, Stretch
from segmenter.extras.view.open_files import OpenFiles
from segmenter.extras.written_map import WrittenMap
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, Colour
from segmenter.raster import Raster, open_raster
from segmenter.raster.stamps import Stamp

LayerKind = Literal["image", "classes", "marks", "amount"]
Bands = tuple[int, ...]
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
    def stamps(self) -> list[Stamp]:
        """States of the files that it comes from."""
        raise NotImplementedError

    def key(self, bands: Bands) -> str:
        """Return a digest of the files' states, and of what is read of them."""
        return digest([type(self).__name__, bands, *(stamp.key for stamp in self.stamps)], 24)

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

    def coloured(self, pixels: Pixels, bands: Bands, sample: Pixels) -> Coloured:
        """Return the colours of values; `sample`: some of the whole scene, which a stretch comes from."""
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
    def stamps(self) -> list[Stamp]:
        return [self._of(self._usual).stamp]

    def choice(self, bands: Bands) -> Bands:
        known = tuple(band for band in bands if 1 <= band <= len(self.bands))[:3]
        return known[:1] if len(known) == 2 else known or self._usual

    def read(self, window: Window, bands: Bands) -> Pixels:
        with self._of(bands).handle() as raster:
            return raster.read(window.shifted(self._place.row, self._place.col))

    def empty(self, window: Window) -> bool:
        with self._of(self._usual).handle() as raster:
            return raster.empty(window.shifted(self._place.row, self._place.col))

    def coloured(self, pixels: Pixels, bands: Bands, sample: Pixels) -> Coloured:
        return colouring.picture(pixels, None if self.dtype == _BYTES else Stretch.of(*sample))

    def close(self) -> None:
        for each in self._files.values():
            each.close()


class MapLayer(Layer):
    """Class ids of a written map.

    Args:
        ids: id on the page of each id in the map.
    """

    def __init__(
        self, id: str, title: str, path: Path, ids: Sequence[int], palette: Sequence[Colour]
    ) -> None:
        self._files = OpenFiles(path, lambda: WrittenMap(path, with_confidence=False))
        self._ids = np.full(256, IGNORE, np.uint8)
        self._ids[: len(ids)] = ids
        self._palette = palette
        with self._files.handle() as opened:
            super().__init__(id, title, opened.info.size, opened.block)

    @property
    def stamps(self) -> list[Stamp]:
        return [self._files.stamp]

    def read(self, window: Window, bands: Bands) -> Pixels:
        with self._files.handle() as opened:
            ids_HW = self._ids[opened.read(window)[0]]
        return ids_HW[..., None], ids_HW != IGNORE

    def empty(self, window: Window) -> bool:
        with self._files.handle() as opened:
            return opened.empty(window)

    def coloured(self, pixels: Pixels, bands: Bands, sample: Pixels) -> Coloured:
        return colouring.classes(pixels, self._palette)

    def close(self) -> None:
        self._files.close()
