"""Mapping jobs: for each raster its part, bands and output path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.base.errors import ChangedInputError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.windows import COLUMN, Columns
from segmenter.raster import LabelIds, Raster, RasterInfo, open_raster
from segmenter.raster.mosaic import Mosaic, MosaicView
from segmenter.raster.remote.settings import RemotePath, renewed_tag
from segmenter.raster.resampled import GridColumns, ModelGrid, ResampledRaster
from segmenter.raster.write import BLOCK

_EDGE = 1e-6
"""Share of a pixel by which a bounding box may miss a pixel's edge by rounding."""


@dataclass(frozen=True)
class Bounds:
    """A bounding box in the coordinates of a raster's CRS."""

    left: float
    bottom: float
    right: float
    top: float

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """Left, bottom, right, top."""
        return self.left, self.bottom, self.right, self.top

    def __str__(self) -> str:
        return " ".join(map(str, self.corners))

    def window(self, info: RasterInfo) -> Window:
        """Return the pixels that the box touches; of zero extent if it lies outside the raster."""
        if info.transform is None:
            raise RasterError(info.path, "has no geotransform, a bounding box cannot be found in it")
        if info.transform.is_degenerate:
            raise RasterError(info.path, "its pixels have no area, a bounding box cannot be found in it")
        corners = ((x, y) for x in (self.left, self.right) for y in (self.bottom, self.top))
        points = np.array([~info.transform @ corner for corner in corners])
        if not np.isfinite(points).all():
            raise RasterError(
                info.path,
                f"a bounding box cannot be found in it: its geotransform {tuple(info.transform[:6])} leads "
                "beyond all numbers",
                remedy="give it another one",
            )
        left, top = (int(v) for v in np.floor(points.min(axis=0) + _EDGE))
        right, bottom = (int(v) for v in np.ceil(points.max(axis=0) - _EDGE))
        size = info.size
        top, left = min(max(top, 0), size.height), min(max(left, 0), size.width)
        bottom, right = min(max(bottom, top), size.height), min(max(right, left), size.width)
        return Window(top, left, bottom - top, right - left)


@dataclass(frozen=True)
class RasterRequest:
    """Bands, part and limits for all rasters of a call.

    Attributes:
        bands: 1-based; None: all but alpha.
        band_count: number of bands that the model takes.
        part: part to map; None: everything.
        max_pixels: see `open_raster`; likewise `drivers`.
        mean_C: see `Raster`.
    """

    bands: tuple[int, ...] | None
    band_count: int
    part: Bounds | Window | None = None
    max_pixels: int | None = None
    drivers: tuple[str, ...] = ()
    mean_C: tuple[float, ...] = ()

    def open(self, path: Path) -> Raster:
        """Open a raster with the model's bands."""
        raster = open_raster(path, self.bands, max_pixels=self.max_pixels, drivers=self.drivers)
        raster.mean_C = self.mean_C
        if len(raster.bands) != self.band_count:
            info = raster.info
            raster.close()
            raise RasterError(path, self._band_mismatch(info, len(raster.bands)))
        return raster

    def window(self, info: RasterInfo) -> Window:
        """Return the requested part of a raster; of zero extent if a bounding box lies outside."""
        if isinstance(self.part, Bounds):
            return self.part.window(info)
        whole = Window.of(info.size)
        if self.part is not None and not whole.contains(self.part):
            raise RasterError(info.path, f"{self.part} reach beyond the raster of {info.size} pixels")
        return self.part or whole

    def _band_mismatch(self, info: RasterInfo, got: int) -> str:
        hint = "name the ones to use with --bands"
        if info.count == self.band_count:
            hint = "if that is data like the others, name all of them with --bands"
        elif got < self.band_count:
            hint = "it does not fit this run"
        alpha = f" and alpha ({', '.join(map(str, info.alpha))})" if info.alpha else ""
        return f"expected {self.band_count} bands as in training, got {got}{alpha}; {hint}"


@dataclass(eq=False)
class MapJob:
    """One raster to map; implements `events.Job`.

    Attributes:
        name: name of its outputs without extension, unique among the jobs.
        output: path of its map.
        beside: further files written with the map.
        unchecked: files that finishers write with the map; others may change them.
        label: label for scoring the map.
        label_classes: class map of the label, with the map's ids; None: the map's.
        scene: scene name in scores; None: `name`.
        group: group of the scene in its data set; None: unknown.
        abandoned: see `events.Job`; likewise `done_rows`.
        mosaic: mosaic that its windows extend into; None: only its own file.
        remark: warning about the raster, set after reading.
        kept_as_partial: True if computed windows are saved in a partial map.
        column: column width of the tiling; on a `grid`, also in raster pixels.
        tag: ETag of a remote raster when the call began; None: local file, or no tag sent.
        grid: grid on which the model sees the raster; None: its own pixels.
    """

    request: RasterRequest
    info: RasterInfo
    part: Window
    name: str
    output: Path
    label: Path | None = None
    beside: tuple[Path, ...] = ()
    abandoned: bool = False
    done_rows: int = 0
    mosaic: Mosaic | None = None
    label_classes: ClassMap | None = None
    scene: str | None = None
    group: str | None = None
    remark: str | None = None
    tag: str | None = None
    kept_as_partial: bool = True
    column: int = COLUMN
    grid: ModelGrid | None = None
    unchecked: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """All checked outputs, the map first."""
        return self.output, *self.beside

    @property
    def columns(self) -> Columns | GridColumns:
        """The part in computing order, in the pixels that the model sees."""
        own = Columns(self.part, self.column)
        return own if self.grid is None else GridColumns(own, self.grid)

    @property
    def seen(self) -> Size:
        """Size of the whole raster in the pixels that the model sees."""
        return self.info.size if self.grid is None else self.grid.over(Window.of(self.info.size)).size

    def set_column(self, width: int) -> None:
        """Set the width of columns, in the pixels that the model sees.

        On a grid, columns are at most that wide in grid and in raster pixels, if whole blocks allow it.
        """
        if self.grid is not None:
            width = max(BLOCK, int(width * min(Fraction(1), self.grid.cols)) // BLOCK * BLOCK)
        self.column = width

    def truth(self, classes: ClassMap) -> LabelIds | None:
        """Open the label, read by windows of the raster; None if the job has no label."""
        return None if self.label is None else LabelIds(self.label, self.label_classes or classes)

    @contextlib.contextmanager
    def open(self) -> Iterator[Raster | MosaicView | ResampledRaster]:
        """Open the raster like `open_own`, in the pixels that the model sees."""
        with self.open_own() as raster:
            seen = raster if self.grid is None else ResampledRaster(raster, self.grid)
            yield seen
            self.remark = seen.partial_remark

    @contextlib.contextmanager
    def open_own(self) -> Iterator[Raster | MosaicView]:
        """Open the raster with the model's bands; in a mosaic, with its surroundings."""
        path = self.info.path
        with self.request.open(path) if self.mosaic is None else self.mosaic.view(path) as raster:
            if header(raster.info) != header(self.info):
                raise changed_input_error(
                    path, f"{_describe_header(self.info)}, got {_describe_header(raster.info)}"
                )
            if raster.info.stamp != self.info.stamp:
                raise changed_input_error(path)  # from a server only bytes of one file are read
            yield raster


def changed_input_error(path: Path, expected: str = "the same bytes and time of change") -> ChangedInputError:
    """Return the error for a changed input."""
    return ChangedInputError(
        f"{path}: has changed since this call began",
        expected=expected,
        remedy="no map is made of it: wait until nothing writes to it any more, then the same call again",
    )


def _describe_header(info: RasterInfo) -> str:
    crs = info.gcp_crs or info.crs
    where = f"{crs}, {tuple(info.transform[:6])}" if info.transform else f"{crs or 'no CRS'}"
    return f"{info.size} pixels of {info.count} {info.dtype} bands in {where}"


def tag_at_server(path: Path) -> str | None:
    """Return the tag that a server sends for a file now; None for a local file, or if none is sent."""
    if isinstance(path, RemotePath):
        with contextlib.suppress(OSError):
            return renewed_tag(path.address)
    return None


def header(info: RasterInfo) -> dict[str, Any]:
    """Return a raster's header as plain JSON, to detect changes."""
    return {
        "size": [info.size.height, info.size.width],
        "bands": [info.count, info.dtype, list(info.alpha), info.has_palette],
        "nodata": [str(value) for value in info.nodata],
        "crs": [str(crs and crs.to_wkt()) for crs in (info.crs, info.gcp_crs)],
        "transform": info.transform and list(info.transform[:6]),
        "gcps": [[p.row, p.col, p.x, p.y, p.z] for p in info.gcps],
        **({"rpcs": info.rpcs.to_dict()} if info.rpcs else {}),
    }
