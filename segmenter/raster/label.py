"""Windows of a label raster: codes of one band or colours of three, as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import RasterError
from segmenter.geometry import Size, Window
from segmenter.raster.faults import gdal_window, naming
from segmenter.raster.gdal_files import patiently
from segmenter.raster.header import RasterInfo, read_header
from segmenter.raster.opening import check_pixels, open_dataset
from segmenter.raster.reading import check_size, check_types
from segmenter.raster.remote import RemotePath


class LabelRaster:
    """An open label raster; a context manager, for one thread.

    Opened once and read from top to bottom it is decoded once, however it is stored.

    Attributes:
        info: the header.
    """

    def __init__(self, path: Path, *, expand_palette: bool = False, drivers: Sequence[str] = ()) -> None:
        """Open it without reading pixels; `expand_palette`: see `read_label`; `drivers`: see `open_raster`.

        Raises:
            RasterError: it cannot be opened, declares more than its file can hold, has blocks too large to
                be read piece by piece, or neither one band nor three.
        """
        dataset, remarks = open_dataset(path, drivers)
        try:
            with naming(path, "cannot read its header", "the file is damaged"):
                info = read_header(path, dataset, remarks)
            check_types(info, dataset)
            check_size(info, dataset)
            check_pixels(path, dataset)
            if info.count == 2:
                raise RasterError(f"{path}: expected a label of one band, or of three for colours, got two")
        except BaseException:
            dataset.close()
            raise
        self._hold(dataset, info, expand_palette)

    @classmethod
    def checked(cls, dataset: Any, info: RasterInfo, *, expand_palette: bool = False) -> LabelRaster:
        """Of an open dataset whose file was opened, and found right, before."""
        label = cls.__new__(cls)
        label._hold(dataset, info, expand_palette)
        return label

    def _hold(self, dataset: Any, info: RasterInfo, expand_palette: bool) -> None:
        self._dataset, self.info = dataset, info
        self._bands = (1, 2, 3) if info.count >= 3 else (1,)
        self._expand = expand_palette and len(self._bands) == 1
        self._palette = _palette(dataset) if self._expand else None

    def close(self) -> None:
        """Close the file; `with` does it too."""
        self._dataset.close()

    def __enter__(self) -> LabelRaster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dataset.close()

    def read(self, window: Window | None = None, *, shape: Size | None = None) -> NDArray[Any]:
        """Raw values; see `read_label`."""
        size, path = self.info.size, self.info.path
        window = Window.of(size) if window is None else window
        if not Window.of(size).contains(window):
            raise RasterError(f"{path}: expected a label of at least {window}, got one of {size} pixels")
        wanted = shape or window.size
        with naming(path, f"cannot read {window}", "the file is damaged or incomplete"):
            out = (len(self._bands), wanted.height, wanted.width)
            data_CHW = self._read(window, out)
        data = np.moveaxis(data_CHW, 0, 2)
        if len(self._bands) == 3:
            return np.ascontiguousarray(data)
        if self._palette is not None:
            return self._palette[data[..., 0]]
        return np.repeat(data, 3, axis=2) if self._expand else np.ascontiguousarray(data[..., 0])

    def _read(self, window: Window, out: tuple[int, int, int]) -> Any:
        def read() -> Any:
            return self._dataset.read(self._bands, window=gdal_window(window), out_shape=out)

        path = self.info.path
        return patiently(path.address, read) if isinstance(path, RemotePath) else read()


def read_label(
    path: Path, window: Window | None = None, *, expand_palette: bool = False, shape: Size | None = None
) -> NDArray[Any]:
    """Raw values of a label raster: (H, W) codes of one band, or (H, W, 3) colours of three or more.

    Args:
        window: must lie within the raster; None reads it whole.
        expand_palette: give the colours of a palette image, (H, W, 3), instead of its indices (grey
            images without a palette become three equal bands).
        shape: read on a coarser grid, by nearest neighbour; for pictures.

    Raises:
        RasterError: naming file and window.
    """
    with LabelRaster(path, expand_palette=expand_palette) as label:
        return label.read(window, shape=shape)


def _palette(dataset: Any) -> NDArray[np.uint8] | None:
    """(256, 3) colours, or None where the band has no palette."""
    try:
        entries = dataset.colormap(1)
    except ValueError:
        return None
    table = np.zeros((256, 3), np.uint8)
    for index, colour in entries.items():
        if index < 256:
            table[index] = colour[:3]
    return table
