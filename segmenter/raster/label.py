"""Windows of a label raster: class ids, or the stored codes (one band) or colours (three bands)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import MaskFlags

from segmenter.base.errors import DatasetError, LabelError, RasterError
from segmenter.base.files import Closing
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.raster.gdal.faults import FAULTS, gdal_window, naming
from segmenter.raster.ground import alignment_errors
from segmenter.raster.header import RasterInfo
from segmenter.raster.kept import KeptPixels, nearest
from segmenter.raster.reading import checked_dataset
from segmenter.raster.remote.settings import patiently
from segmenter.raster.validity import NO_MEASUREMENT, holds, usable


class LabelRaster(Closing):
    """An open label raster; a context manager, for one thread.

    If read from top to bottom, it is decoded only once, whatever its layout.

    The rule for pixels to ignore: **a pixel has no label if mask, alpha or a transparent palette entry marks
    it, if it equals the nodata value, or if it is NaN, infinite or beyond ±1e30**. If the nodata value is
    also a class's value, files use both meanings, and the class map must decide.

    Attributes:
        info: the header.
    """

    def __init__(
        self,
        path: Path,
        classes: ClassMap | None = None,
        *,
        expand_palette: bool = False,
        drivers: Sequence[str] = (),
    ) -> None:
        """Open the file without reading pixels.

        Args:
            classes: class map for `ids`; None: only `stored` may be used.
            expand_palette: see `read_label`; with `classes`, their encoding decides.
            drivers: see `open_raster`.

        Raises:
            RasterError: the file cannot be opened, declares more than it can contain, has blocks too large to
                be read in pieces, or has neither one band nor three of 8 bits (not counting alpha).
            LabelError: the nodata value is also a class's value.
        """
        with checked_dataset(path, drivers) as (opened, info):
            if (info.count == 2 and info.alpha != (2,)) or (info.count > 2 and info.dtype != "uint8"):
                got = "two" if info.count == 2 else f"{info.count} of {info.dtype}"
                raise RasterError(
                    path,
                    expected="a label of one band, or of three for colours",
                    got=got,
                    remedy="write the band that holds the classes alone (gdal_translate -b N)",
                )
            self._hold(opened.dataset, info, classes, expand_palette)

    @classmethod
    def checked(
        cls, dataset: Any, info: RasterInfo, classes: ClassMap | None, expand_palette: bool = False
    ) -> LabelRaster:
        """Return a label raster for an open dataset whose file was checked before."""
        label = cls.__new__(cls)
        label._hold(dataset, info, classes, expand_palette)
        return label

    def _hold(
        self, dataset: Any, info: RasterInfo, classes: ClassMap | None, expand_palette: bool = False
    ) -> None:
        self._dataset, self.info, self._classes = dataset, info, classes
        self._bands = (1, 2, 3) if info.count >= 3 else (1,)
        self._grey = classes is not None and classes.encoding == "codes" and len(self._bands) == 3
        if classes is not None:
            expand_palette = classes.encoding == "colours"
        self._expand = expand_palette and len(self._bands) == 1
        palette = _palette(dataset)
        self._palette = palette[:, :3] if self._expand and palette is not None else None
        self._void = _Void(dataset, info, self._bands, palette)
        if classes is not None and self._void.nodata is not None:
            self._settle_nodata(classes)

    def _settle_nodata(self, classes: ClassMap) -> None:
        """Decide whether the nodata value means no label; if a class has it too, the class map decides."""
        assert self._void.nodata is not None
        raw = np.array(self._void.nodata, self._dataset.dtypes[0]).reshape(1, 1, -1)
        name = classes.class_of(self._map_colours(raw))
        if name is None or classes.nodata == "ignore":
            return
        if classes.nodata == "ask":
            value = ", ".join(f"{value:g}" for value in self._void.nodata)
            raise LabelError(
                self.info.path,
                f"declares {value} as nodata, which stands for the class {name} too",
                remedy="set dataset.label_nodata to `ignore`, where such pixels are not labelled, or to "
                f"`class`, where they are {name}",
            )
        self._void.nodata = None

    def close(self) -> None:
        """Close the file; `with` does this too."""
        self._dataset.close()

    def pack(self) -> KeptPixels | None:
        """Return all pixels packed, to open them again without the file; None if a mask or alpha tells more.

        Also if they cannot be read: who reads the label then learns why.
        """
        if self.info.alpha or self._void.masked:
            return None
        with contextlib.suppress(*FAULTS):
            data_CHW, palette = self._dataset.read(self._bands), None
            with contextlib.suppress(ValueError):
                palette = tuple(sorted(self._dataset.colormap(1).items()))
            return KeptPixels.of(data_CHW, [self._dataset.mask_flag_enums[0]] * len(data_CHW), palette)
        return None

    def ids(self, window: Window | None = None, *, shape: Size | None = None) -> NDArray[np.uint8]:
        """Return (H, W) class ids of a window; `IGNORE` where the label has no class.

        Args:
            window: window within the raster; None reads all of it.
            shape: (rows, columns) of a coarser grid, read by nearest neighbour; for pictures.

        Raises:
            LabelError: a value is not in the class map.
            RasterError: the window cannot be read.
        """
        assert self._classes is not None, "opened with a class map"
        raw, void = self.stored_values(window, shape=shape)
        return self._classes.decode(raw, str(self.info.path), void)

    def stored_values(
        self, window: Window | None = None, *, shape: Size | None = None, overviews: bool = False
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return stored values as `read_label` does, and an (H, W) mask without label; None: all labelled.

        Args:
            overviews: a coarser grid may come from the file's overviews, which may hold means.
        """
        size, path = self.info.size, self.info.path
        window = Window.of(size) if window is None else window
        if not Window.of(size).contains(window):
            raise RasterError(path, expected=f"a label of at least {window}", got=f"one of {size} pixels")
        wanted = shape or window.size

        def read() -> tuple[Any, NDArray[np.bool_] | None]:
            out = (len(self._bands), wanted.height, wanted.width)
            if wanted != window.size and not overviews and self._dataset.overviews(1):
                return self._picked(window, wanted)
            data_CHW = self._dataset.read(self._bands, window=gdal_window(window), out_shape=out)
            return data_CHW, self._void.of(data_CHW, window)

        with naming(path, f"cannot read {window}", "the file is damaged or incomplete"):
            data_CHW, void = patiently(path, read)
        return self._map_colours(np.moveaxis(data_CHW, 0, 2)), void

    def _picked(self, window: Window, wanted: Size) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Read stored values of a coarser grid row by row, without overviews: means are no classes."""
        rows = nearest(window.row, window.row_stop, wanted.height)
        cols = nearest(0, window.width, wanted.width)
        data_CHW = np.empty((len(self._bands), wanted.height, wanted.width), self._dataset.dtypes[0])
        void_HW = np.zeros((wanted.height, wanted.width), np.bool_)
        for i, row in enumerate(rows.tolist()):
            line = Window(row, window.col, 1, window.width)
            out = (len(self._bands), 1, window.width)
            data = self._dataset.read(self._bands, window=gdal_window(line), out_shape=out)
            void = self._void.of(data, line)
            data_CHW[:, i] = data[:, 0, cols]
            void_HW[i] = False if void is None else void[0, cols]
        return data_CHW, void_HW if void_HW.any() else None

    def _map_colours(self, data_HWC: NDArray[Any]) -> NDArray[Any]:
        """Return (H, W) codes, or (H, W, 3) colours, of (H, W, 1 or 3) stored values.

        Three equal bands are codes where the class map has codes.
        """
        if self._grey and (data_HWC == data_HWC[..., :1]).all():
            return np.ascontiguousarray(data_HWC[..., 0])
        if len(self._bands) == 3:
            return np.ascontiguousarray(data_HWC)
        if self._palette is not None:
            return self._palette[data_HWC[..., 0]]
        return np.repeat(data_HWC, 3, axis=2) if self._expand else np.ascontiguousarray(data_HWC[..., 0])


class _Void:
    """Pixels of a label file that have no label.

    Attributes:
        nodata: value of each band read; a pixel has no label if all bands match. None: no such value.
        masked: a mask of the file tells which pixels have a label.
    """

    def __init__(
        self, dataset: Any, info: RasterInfo, bands: tuple[int, ...], palette: NDArray[np.uint8] | None
    ) -> None:
        self._dataset, self._alpha = dataset, info.alpha[:1] if info.count > len(bands) else ()
        flags = dataset.mask_flag_enums[0]
        # A colour without data (NODATA_VALUES) has the flag of a mask beside that of nodata.
        has_mask = MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags
        self.masked = not self._alpha and (not flags or has_mask)
        values = [usable(info.nodata[band - 1], dataset.dtypes[0]) for band in bands]
        self.nodata = None if None in values else tuple(value for value in values if value is not None)
        # A TIFF's palette has no transparency: GDAL gives that of its nodata value.
        clear = np.zeros(1, np.bool_) if palette is None else palette[:, 3] == 0
        entry = 0 if self.nodata is None else int(self.nodata[0]) % len(clear)
        if info.driver == "GTiff" and self.nodata is not None and len(bands) == 1:
            clear[entry] = False
        elif self.nodata is not None and clear[entry]:
            self.nodata = None  # a PNG's transparent entry, which is no question
        self._clear = clear if clear.any() else None

    def of(self, data_CHW: NDArray[Any], window: Window) -> NDArray[np.bool_] | None:
        """Return an (H, W) mask of a window's pixels without label; None: all labelled."""
        shape, parts = data_CHW.shape[1:], []
        where = {"window": gdal_window(window), "out_shape": shape}
        if self._alpha:
            parts.append(self._dataset.read(self._alpha[0], **where) == 0)
        if self.masked:
            parts.append(self._dataset.read_masks(1, **where) == 0)
        if self._clear is not None:
            parts.append(self._clear[data_CHW[0]])
        if data_CHW.dtype.kind == "f":
            parts.append(~(np.abs(data_CHW) < NO_MEASUREMENT).all(axis=0))
        if self.nodata is not None:
            held = [holds(band, value) for band, value in zip(data_CHW, self.nodata, strict=True)]
            parts.append(np.logical_and.reduce(held))
        return np.logical_or.reduce(parts) if parts else None


def read_label(
    path: Path, window: Window | None = None, *, expand_palette: bool = False, shape: Size | None = None
) -> NDArray[Any]:
    """Return the stored values of a label raster: (H, W) codes, or (H, W, 3) colours of three or more bands.

    Args:
        window: window within the raster; None reads all of it.
        expand_palette: return the colours of a palette image, (H, W, 3), instead of its indices (grey images
            without a palette become three equal bands).
        shape: (rows, columns) of a coarser grid, by nearest neighbour, from overviews if the file has any;
            for pictures of our own maps.

    Raises:
        RasterError: the window cannot be read.
    """
    with LabelRaster(path, expand_palette=expand_palette) as label:
        return label.stored_values(window, shape=shape, overviews=True)[0]


class LabelIds:
    """Class ids of a label by windows; the file is opened once, so reading downwards decodes it once.

    Args:
        image: header of the label's image; None: it was compared before.
    """

    def __init__(self, path: Path, classes: ClassMap, image: RasterInfo | None = None) -> None:
        self._path, self._classes, self._image = path, classes, image
        self._label: LabelRaster | None = None

    def read(self, window: Window, shape: Size | None = None) -> NDArray[np.uint8]:
        """Return (H, W) class ids of a window, subsampled to `shape`.

        Raises:
            DatasetError: the label does not lie on its image.
        """
        if self._label is None:
            self._label = LabelRaster(self._path, self._classes)
            for _, text in alignment_errors(self._image, self._label.info) if self._image else ():
                raise DatasetError(text)
        return self._label.ids(window, shape=shape)

    def close(self) -> None:
        """Close the file; reading another window opens it again."""
        if self._label is not None:
            self._label.close()
            self._label = None


def _palette(dataset: Any) -> NDArray[np.uint8] | None:
    """Return (256 or 65536, 4) colours and opacities of a palette of 8 or 16 bits; None if there is none."""
    entries = colour_table(dataset)
    if not entries or dataset.dtypes[0] not in ("uint8", "uint16"):
        return None
    table = np.zeros((np.iinfo(dataset.dtypes[0]).max + 1, 4), np.uint8)
    table[:, 3] = 255
    for index, colour in entries.items():
        if index < len(table):
            table[index] = colour
    return table


def colour_table(dataset: Any) -> dict[int, tuple[int, ...]]:
    """Return the palette of an open dataset, RGBA by value; empty if it has none."""
    try:
        return dict(dataset.colormap(1))
    except ValueError:
        return {}
