"""Masks, a file or a band for each class, made into one label raster for each scene.

The rule: a mask is set where its value is neither 0 nor no data, and has one such value. A pixel has the code
of the last mask that is set there, in the order of the classes, and 0 where none is. It has no label where a
mask has no data, unless the file marks that by 0 or by transparency, as files do whose mask is not set there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, LabelError
from segmenter.base.sealed import digest
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap, pack_colours, rasterised_classes
from segmenter.raster.ground import alignment_errors
from segmenter.raster.label import LabelRaster
from segmenter.raster.made import MadeLabels
from segmenter.raster.opening import files_behind
from segmenter.raster.reading import Raster, open_raster
from segmenter.raster.validity import void_in_bands
from segmenter.raster.write import BLOCK

_VERSION = 2
"""Version of the rule; it is part of the name."""
UNLABELLED = 0xFFFF
"""Stands for no label; no class has that code."""

MaskFiles = Sequence[tuple[int, Path]]
"""Code and file of each mask, in the order of the classes; code 0: of a file whose bands are masks 1, 2, …"""


class Masks(contextlib.ExitStack):
    """Open masks of one scene; a context manager, for one thread.

    Attributes:
        info: header of the first file.
        several: pixels read so far that are set in several masks.
    """

    def __init__(self, files: MaskFiles, drivers: Sequence[str] = ()) -> None:
        """Open the files (SegmenterError: one cannot be opened, or lies elsewhere than the first)."""
        super().__init__()
        self.several, self._set = 0, dict[tuple[Path, int], set[Any]]()
        self._rasters = list[tuple[int, LabelRaster | Raster]]()
        with contextlib.ExitStack() as undo:
            undo.push(self)
            for code, path in files:
                self._rasters.append((code, raster := _open_masks(code, path, drivers)))
                self.callback(raster.close)
                self.info = self._rasters[0][1].info
                if wrong := alignment_errors(self.info, raster.info):
                    where = f"the size and place of {self.info.path}, another mask of the scene"
                    raise DatasetError(path, expected=where, got=f"another {wrong[0][0]}")
            undo.pop_all()

    def read(self, window: Window) -> NDArray[np.uint16]:
        """Return the (H, W) codes of a window, `UNLABELLED` where a mask has no data.

        Raises:
            LabelError: a mask has several values beside 0.
            RasterError: the window cannot be read.
        """
        codes_HW, times_HW = np.zeros((2, window.height, window.width), np.uint16)
        void_HW = np.zeros(codes_HW.shape, np.bool_)
        for code, raster in self._rasters:
            values_HWC, none_HWC = _read(raster, window)
            for band, set_HW in enumerate(np.moveaxis((values_HWC != 0) & ~none_HWC, 2, 0)):
                self._check(raster.info.path, band, values_HWC[..., band][set_HW])
                codes_HW[set_HW] = code or band + 1
                times_HW += set_HW
            if 0 not in raster.info.nodata and not (code and raster.info.alpha):
                void_HW |= none_HWC.any(axis=2)
        self.several += int((times_HW > 1).sum())
        codes_HW[void_HW] = UNLABELLED
        return codes_HW

    def strips(self) -> Iterator[tuple[Window, NDArray[np.uint16]]]:
        """Yield the codes from the top, in strips of the whole width."""
        size = self.info.size
        for row in range(0, size.height, BLOCK):
            window = Window(row, 0, min(BLOCK, size.height - row), size.width)
            yield window, self.read(window)

    def _check(self, path: Path, band: int, values: NDArray[Any]) -> None:
        """Refuse a mask that has been set by several values."""
        known = self._set.setdefault((path, band), set())
        known |= {values.min(), values.max()} if values.size else set()
        if len(known) > 1:
            raise LabelError(
                path,
                expected="0 and one other value, as masks have",
                got=" and ".join(map(str, sorted(known))),
                remedy="write a lossy or soft one anew (gdal_calc.py --calc='255*(A>127)'); labels of "
                "several values are dataset.encoding: codes",
            )


def _read(raster: LabelRaster | Raster, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return (H, W, C) values of a window, and where they are no data."""
    if isinstance(raster, LabelRaster):
        stored, void_HW = raster.stored_values(window)
        values_HWC = pack_colours(stored)[..., None]
        return values_HWC, np.zeros(values_HWC.shape, np.bool_) if void_HW is None else void_HW[..., None]
    values_HWC, valid_HW = raster.read(window)
    none_HWC = np.repeat(~valid_HW[..., None], values_HWC.shape[2], axis=2)
    void_HWC = void_in_bands(values_HWC, valid_HW, raster.void_values)
    return values_HWC, none_HWC if void_HWC is None else none_HWC | void_HWC


def _open_masks(code: int, path: Path, drivers: Sequence[str]) -> LabelRaster | Raster:
    """Open a file with one mask, or with one in each of its bands."""
    if code:
        return LabelRaster(path, drivers=drivers)
    with open_raster(path, (1,), drivers=drivers) as raster:
        bands = tuple(range(1, raster.info.count + 1))
    return open_raster(path, bands, drivers=drivers)


class MaskLabels(MadeLabels):
    """Makes labels of masks; safe to use from several threads, and by several processes."""

    def __init__(self, folder: Path, classes: ClassMap, drivers: Sequence[str] = ()) -> None:
        """Store a folder, `classes` with the codes of the masks, and `drivers` as in `open_raster`."""
        super().__init__(folder, digest([_VERSION, classes.to_dict()], 64))
        self._theirs, self._drivers = classes, tuple(drivers)
        self.classes = rasterised_classes(classes)

    def join(self, name: str, files: MaskFiles) -> Path:
        """Return the label of a scene, made if necessary; `name`: of the scene, or a path.

        Raises:
            SegmenterError: the files are no masks of one scene, or pixels have a code of no class.
        """
        sources = [behind for _, path in files for behind in files_behind(path, self._drivers)]
        which = " ".join(str(code) for code, _ in files)  # files of several classes may have one name
        made = self.get(f"{which}/{name}", sources, lambda path: self._make(path, files))
        assert made is not None, "it is always made"
        return made

    def _make(self, path: Path, files: MaskFiles) -> bool:
        tags = {"MASKS": ", ".join("/".join(file.parts[-2:]) for _, file in files)}
        with Masks(files, self._drivers) as masks:
            where = f"{masks.info.path}, code 0 where no mask is set"
            ids = ((w, self._theirs.decode(codes, where, codes == UNLABELLED)) for w, codes in masks.strips())
            return self.write(path, masks.info, tags, ids, lambda: True)
