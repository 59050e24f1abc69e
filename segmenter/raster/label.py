"""Windows of a label raster: class ids, or the codes of one band or colours of three as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import MaskFlags

from segmenter.base.errors import LabelError, RasterError
from segmenter.base.files import Closing
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.raster.gdal.faults import gdal_window, naming
from segmenter.raster.header import RasterInfo
from segmenter.raster.reading import checked_dataset
from segmenter.raster.remote.patience import patiently
from segmenter.raster.validity import holds, usable


class LabelRaster(Closing):
    """An open label raster; a context manager, for one thread.

    Opened once and read from top to bottom it is decoded once, however it is stored.

    The rule for pixels to ignore: **a label says nothing where its mask, its alpha or a transparent entry of
    its palette says so, or where it holds its nodata value**. Where that value stands for a class too, files
    mean either, and the class map has to say which.

    Attributes:
        info: the passport.
    """

    def __init__(
        self,
        path: Path,
        classes: ClassMap | None = None,
        *,
        expand_palette: bool = False,
        drivers: Sequence[str] = (),
    ) -> None:
        """Open it without reading pixels.

        Args:
            classes: for `ids`; None: only stored values are read, by `read`.
            expand_palette: see `read_label`; where there are `classes`, their encoding decides.
            drivers: see `open_raster`.

        Raises:
            RasterError: it cannot be opened, declares more than its file can hold, has blocks too large to
                be read piece by piece, or neither one band nor three, but for alpha.
            LabelError: its nodata value stands for a class too.
        """
        with checked_dataset(path, drivers) as (opened, info):
            if info.count == 2 and info.alpha != (2,):
                raise RasterError(f"{path}: expected a label of one band, or of three for colours, got two")
            self._hold(opened.dataset, info, classes, expand_palette)

    @classmethod
    def checked(cls, dataset: Any, info: RasterInfo, classes: ClassMap) -> LabelRaster:
        """Return one of an open dataset whose file was opened, and found right, before."""
        label = cls.__new__(cls)
        label._hold(dataset, info, classes)
        return label

    def _hold(
        self, dataset: Any, info: RasterInfo, classes: ClassMap | None, expand_palette: bool = False
    ) -> None:
        self._dataset, self.info, self._classes = dataset, info, classes
        self._bands = (1, 2, 3) if info.count >= 3 else (1,)
        if classes is not None:
            expand_palette = classes.encoding == "colours"
        self._expand = expand_palette and len(self._bands) == 1
        palette = _palette(dataset)
        self._palette = palette[:, :3] if self._expand and palette is not None else None
        self._void = _Void(dataset, info, self._bands, palette)
        if classes is not None and self._void.nodata is not None:
            self._settle_nodata(classes)

    def _settle_nodata(self, classes: ClassMap) -> None:
        """Decide whether the nodata value counts, which is asked for where it is that of a class."""
        assert self._void.nodata is not None
        raw = np.array(self._void.nodata, self._dataset.dtypes[0]).reshape(1, 1, -1)
        name = classes.class_of(self._coloured(raw))
        if name is None or classes.nodata == "ignore":
            return
        if classes.nodata == "ask":
            value = ", ".join(f"{value:g}" for value in self._void.nodata)
            raise LabelError(
                f"{self.info.path}: declares {value} as nodata, which stands for the class {name} too; set "
                "dataset.label_nodata to `ignore`, where such pixels are not labelled, or to `class`, where "
                f"they are {name}"
            )
        self._void.nodata = None

    def close(self) -> None:
        """Close the file; `with` does it too."""
        self._dataset.close()

    def ids(self, window: Window | None = None, *, shape: Size | None = None) -> NDArray[np.uint8]:
        """Return (H, W) class ids of a window, `IGNORE` where the label says nothing.

        Args:
            window: must lie within the raster; None reads it whole.
            shape: read on a coarser grid, by nearest neighbour; for pictures.

        Raises:
            LabelError: a value that the class map does not know.
            RasterError: naming file and window.
        """
        assert self._classes is not None, "opened with a class map"
        raw, void = self.stored(window, shape=shape)
        return self._classes.decode(raw, str(self.info.path), void)

    def stored(
        self, window: Window | None = None, *, shape: Size | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return stored values as `read_label`, and (H, W) where they say nothing; None: nowhere."""
        size, path = self.info.size, self.info.path
        window = Window.of(size) if window is None else window
        if not Window.of(size).contains(window):
            raise RasterError(f"{path}: expected a label of at least {window}, got one of {size} pixels")
        wanted = shape or window.size

        def read() -> tuple[Any, NDArray[np.bool_] | None]:
            out = (len(self._bands), wanted.height, wanted.width)
            data_CHW = self._dataset.read(self._bands, window=gdal_window(window), out_shape=out)
            return data_CHW, self._void.of(data_CHW, window)

        with naming(path, f"cannot read {window}", "the file is damaged or incomplete"):
            data_CHW, void = patiently(path, read)
        return self._coloured(np.moveaxis(data_CHW, 0, 2)), void

    def _coloured(self, data_HWC: NDArray[Any]) -> NDArray[Any]:
        """Return (H, W) codes, or (H, W, 3) colours, of (H, W, 1 or 3) stored values."""
        if len(self._bands) == 3:
            return np.ascontiguousarray(data_HWC)
        if self._palette is not None:
            return self._palette[data_HWC[..., 0]]
        return np.repeat(data_HWC, 3, axis=2) if self._expand else np.ascontiguousarray(data_HWC[..., 0])


class _Void:
    """The pixels of a label file that say nothing.

    Attributes:
        nodata: value of each band that is read, all of which together mark such pixels; None: none does.
    """

    def __init__(
        self, dataset: Any, info: RasterInfo, bands: tuple[int, ...], palette: NDArray[np.uint8] | None
    ) -> None:
        self._dataset, self._alpha = dataset, info.alpha[:1] if info.count > len(bands) else ()
        flags = dataset.mask_flag_enums[0]
        self._masked = not self._alpha and (not flags or flags == [MaskFlags.per_dataset])
        values = [usable(info.nodata[band - 1], dataset.dtypes[0]) for band in bands]
        self.nodata = None if None in values else tuple(value for value in values if value is not None)
        # A TIFF's palette has no transparency: GDAL gives that of its nodata value.
        clear = np.zeros(256, np.bool_) if palette is None else palette[:, 3] == 0
        if info.driver == "GTiff" and self.nodata is not None and len(bands) == 1:
            clear[int(self.nodata[0]) % 256] = False
        elif clear.any() and self.nodata is not None and clear[int(self.nodata[0]) % 256]:
            self.nodata = None  # a PNG's transparent entry, which is no question
        self._clear = clear if clear.any() else None

    def of(self, data_CHW: NDArray[Any], window: Window) -> NDArray[np.bool_] | None:
        """Return (H, W) where a window's values say nothing; None: nowhere."""
        shape, parts = data_CHW.shape[1:], []
        where = {"window": gdal_window(window), "out_shape": shape}
        if self._alpha:
            parts.append(self._dataset.read(self._alpha[0], **where) == 0)
        if self._masked:
            parts.append(self._dataset.read_masks(1, **where) == 0)
        if self._clear is not None:
            parts.append(self._clear[data_CHW[0]])
        if self.nodata is not None:
            held = [holds(band, value) for band, value in zip(data_CHW, self.nodata, strict=True)]
            parts.append(np.logical_and.reduce(held))
        return np.logical_or.reduce(parts) if parts else None


def read_label(
    path: Path, window: Window | None = None, *, expand_palette: bool = False, shape: Size | None = None
) -> NDArray[Any]:
    """Return the stored values of a label raster: (H, W) codes, or (H, W, 3) colours of three bands or more.

    Args:
        window: must lie within the raster; None reads it whole.
        expand_palette: give the colours of a palette image, (H, W, 3), instead of its indices (grey
            images without a palette become three equal bands).
        shape: read on a coarser grid, by nearest neighbour; for pictures.

    Raises:
        RasterError: naming file and window.
    """
    with LabelRaster(path, expand_palette=expand_palette) as label:
        return label.stored(window, shape=shape)[0]


class LabelIds:
    """Class ids of a label, by windows: opened at the first, so that one read downwards is decoded once.

    What is in memory depends on the window, never on the label's size.
    """

    def __init__(self, path: Path, classes: ClassMap) -> None:
        """Store the label's path and `classes`, the meaning of its values."""
        self._path, self._classes = path, classes
        self._label: LabelRaster | None = None

    def read(self, window: Window, shape: Size | None = None) -> NDArray[np.uint8]:
        """Return (H, W) class ids, thinned out to `shape`.

        Raises:
            RasterError, LabelError: it cannot be read, or has a value that no class has.
        """
        if self._label is None:
            self._label = LabelRaster(self._path, self._classes)
        return self._label.ids(window, shape=shape)

    def close(self) -> None:
        """Close the file; the next window opens it again."""
        if self._label is not None:
            self._label.close()
            self._label = None


def _palette(dataset: Any) -> NDArray[np.uint8] | None:
    """Return the (256, 4) colours and opacities of a palette; None where the band has none."""
    try:
        entries = dataset.colormap(1)
    except ValueError:
        return None
    table = np.zeros((256, 4), np.uint8)
    table[:, 3] = 255
    for index, colour in entries.items():
        if index < 256:
            table[index] = colour
    return table
