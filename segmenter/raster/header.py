"""Header of a raster: everything that its file and sidecars declare about pixels and bands."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.rpc import RPC
from rasterio.transform import Affine

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.raster.crs_units import unit_metres
from segmenter.raster.gdal.settings import set_up_gdal
from segmenter.raster.opening import Opened
from segmenter.raster.stamps import Stamp

_INDICES = "values are indices of a palette, not of light"
_NO_NAMES = {"gray", "grey", "undefined", "palette", "alpha", ""}
"""Interpretations that tell no band from another."""

Names = tuple[str | None, ...]


@dataclass(frozen=True)
class RasterInfo:
    """Header of a raster, made once when it is opened.

    Smaller pages of a TIFF and unusual orientations are handled earlier, when the file is opened.

    Attributes:
        transform: pixel to CRS coordinates; None if the raster has none (or only `gcps`).
        nodata: per band; None for a band without one.
        descriptions, interpretations, units: of each band, as in the file; if missing None, `undefined` and
            None.
        alpha: 1-based bands that the file tags as alpha.
        has_palette: the values of the first band are palette indices, and the palette is not a ramp of grey.
        masked: the file has a mask band, inside or beside it.
        gcps: ground control points in `gcp_crs`, if there is no transform.
        metres_per_pixel: approximate, at the raster's centre; None if unknown.
        tiled: stored in tiles, so that reading a window decodes little more than the window.
        rpcs: rational polynomial coefficients, a satellite camera model from ground to pixels.
        scaling: (scale, offset) of each band if the file declares any: values are scale × stored + offset,
            and `dtype` is float32; empty: values are as stored.
        remarks: warnings about the file.
        stamp: state of the file and its sidecars before it was opened; None if there is no file.
    """

    path: Path
    size: Size
    count: int
    dtype: str
    crs: CRS | None
    transform: Affine | None
    nodata: tuple[float | None, ...]
    descriptions: tuple[str | None, ...]
    interpretations: tuple[str, ...]
    driver: str
    alpha: tuple[int, ...]
    has_palette: bool
    metres_per_pixel: float | None
    gcps: tuple[GroundControlPoint, ...] = ()
    gcp_crs: CRS | None = None
    tiled: bool = False
    scaling: tuple[tuple[float, float], ...] = ()
    rpcs: RPC | None = None
    remarks: tuple[str, ...] = ()
    masked: bool = False
    units: tuple[str | None, ...] = ()
    stamp: Stamp | None = None

    @property
    def georeferenced(self) -> bool:
        """True if the file has a transform, a CRS, control points or RPCs."""
        return any(part is not None for part in (self.transform, self.crs, self.rpcs)) or bool(self.gcps)

    def georeference(self, part: Window) -> dict[str, Any]:
        """Return the georeference of the window `part` of a raster, as keywords of `RasterSpec`."""
        rpcs = self.rpcs and RPC(**_move_rpcs(self.rpcs.to_dict(), part))
        if self.gcps:
            moved = [
                GroundControlPoint(p.row - part.row, p.col - part.col, p.x, p.y, p.z, p.id, p.info)
                for p in self.gcps
            ]
            return {"crs": self.gcp_crs, "gcps": moved, "rpcs": rpcs}
        move = self.transform and self.transform @ Affine.translation(part.col, part.row)
        return {"crs": self.crs, "transform": move, "rpcs": rpcs}


def read_header(path: Path, opened: Opened) -> RasterInfo:
    """Return the header of an open dataset."""
    dataset = opened.dataset
    transform = None if dataset.transform.is_identity else dataset.transform
    if transform and not all(map(math.isfinite, transform)):
        raise RasterError(path, expected="a geotransform of finite numbers", got=tuple(transform[:6]))
    size = Size(dataset.height, dataset.width)
    corners = (
        [transform @ (col, row) for col in (0, size.width) for row in (0, size.height)] if transform else []
    )
    if transform and not all(map(math.isfinite, (*sum(corners, ()), transform.determinant))):
        raise RasterError(
            path,
            expected=f"a geotransform whose corners are finite, {tuple(transform[:6])} leads beyond all "
            f"numbers in {size} pixels",
            remedy="give it another one (gdal_edit.py -a_ullr)",
        )
    # A file may have both (a world file, an .aux.xml beside it), a GeoTIFF cannot: what has a CRS goes first.
    gcps, gcp_crs = dataset.gcps
    if transform is not None and (dataset.crs is not None or gcp_crs is None):
        gcps, gcp_crs = (), None
    transform = None if gcps else transform
    scaling = tuple(zip(dataset.scales, dataset.offsets, strict=True))
    if all(pair == (1, 0) for pair in scaling) or dataset.dtypes[0].startswith("complex"):
        scaling = ()
    return RasterInfo(
        path=path,
        size=size,
        count=dataset.count,
        dtype="float32" if scaling else dataset.dtypes[0],
        crs=dataset.crs,
        transform=transform,
        nodata=tuple(dataset.nodatavals),
        descriptions=tuple(dataset.descriptions),
        driver=dataset.driver,
        tiled=dataset.block_shapes[0][1] < dataset.width,
        alpha=tuple(i for i, c in enumerate(dataset.colorinterp, start=1) if c == ColorInterp.alpha),
        has_palette=(palette := _has_palette(dataset)),
        metres_per_pixel=_metres(dataset.crs, transform, size),
        gcps=tuple(gcps),
        gcp_crs=gcp_crs,
        scaling=scaling,
        rpcs=_rpcs(path, dataset),
        remarks=opened.remarks + ((_INDICES,) if palette else ()),
        masked=any(
            MaskFlags.per_dataset in each and MaskFlags.alpha not in each for each in dataset.mask_flag_enums
        ),
        interpretations=tuple(each.name for each in dataset.colorinterp),
        units=tuple(dataset.units),
        stamp=opened.stamp,
    )


def _has_palette(dataset: Any) -> bool:
    """Return whether the first band contains indices of a palette that is not a ramp of grey."""
    if dataset.colorinterp[0] != ColorInterp.palette:
        return False
    colours = np.array(list(dataset.colormap(1).values()))
    ramp = np.arange(len(colours))[:, np.newaxis]
    return not (colours[:, :3] == ramp).all()


@lru_cache(maxsize=1024)
def _metres(crs: CRS | None, transform: Affine | None, size: Size) -> float | None:
    """Return the side in metres of a square with the area of a pixel at the raster's centre.

    Cached: a label lies where its image does.
    """
    if crs is None or transform is None:
        return None
    metres = unit_metres(crs, *(transform @ (size.width / 2, size.height / 2)))
    if metres is None:
        return None
    side = math.sqrt(abs(transform.determinant)) * math.sqrt(abs(np.linalg.det(metres)))
    return side if 0 < side < math.inf else None  # pixels without an area have none


def _rpcs(path: Path, dataset: Any) -> RPC | None:
    try:
        rpcs: RPC | None = dataset.rpcs
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # of text that GDAL gives as it is
        raise RasterError(
            path, expected="whole RPCs", got=f"others: {error!r}", remedy="mend or remove them"
        ) from None
    return rpcs


def _move_rpcs(rpcs: dict[str, Any], part: Window) -> dict[str, Any]:
    offsets = {"line_off": rpcs["line_off"] - part.row, "samp_off": rpcs["samp_off"] - part.col}
    return rpcs | offsets


@lru_cache(maxsize=1024)
def keeps_crs(wkt: str) -> bool:
    """Return True if a GeoTIFF can store a coordinate reference system; GDAL drops others silently.

    Only the meaning must survive: names and the order of axes may change.
    """
    set_up_gdal()
    crs = CRS.from_wkt(wkt)
    with rasterio.Env(GDAL_PAM_ENABLED=False), rasterio.MemoryFile() as memory:
        with memory.open(driver="GTiff", width=1, height=1, count=1, dtype="uint8", crs=crs):
            pass
        with memory.open() as written:
            stored = written.crs
    if stored is None or stored == crs:
        return stored is not None
    if crs.is_projected or crs.is_geographic:
        return bool(crs.to_dict()) and stored.to_dict() == crs.to_dict()
    return _crs_name(stored) == _crs_name(crs)


def _crs_name(crs: CRS) -> str:
    return crs.to_wkt().partition('"')[2].partition('"')[0]


class Readable(Protocol):
    """Interface of `raster.Raster`, `raster.mosaic.MosaicView` and `raster.resampled.ResampledRaster`."""

    info: RasterInfo
    bands: tuple[int, ...]

    @property
    def extent(self) -> Window:
        """Readable pixels; for one file of a mosaic this extends beyond the file."""

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return (H, W, C) pixels of a window, 0 where invalid, and an (H, W) mask of valid pixels."""

    def empty(self, window: Window) -> bool:
        """Return True if a window is known, without reading, to contain no data."""

    @property
    def partial_remark(self) -> str | None:
        """See `Raster.partial_remark`."""

    @property
    def apart(self) -> bool:
        """True if several file handles can read it in parallel without decoding strips twice."""


# --------------------------------------------------------------------------------------------- names of bands


def names_of(info: RasterInfo) -> Names:
    """Return the name of each band of a file in lower case; None for bands without one.

    Names are descriptions; if no band has one, colour interpretations.
    """
    texts = [" ".join((text or "").split()).casefold() for text in info.descriptions]
    if not any(texts):
        texts = ["" if each.casefold() in _NO_NAMES else each.casefold() for each in info.interpretations]
    counts = Counter(texts)
    return tuple(text if text and counts[text] == 1 else None for text in texts)


def used_names(info: RasterInfo, bands: Sequence[int]) -> Names:
    """Return the names of the bands that are read, in that order; empty if no band has a name."""
    names = names_of(info)
    used = tuple(names[band - 1] for band in bands)
    return used if any(used) else ()


def other_names(wanted: Names, info: RasterInfo, bands: Sequence[int]) -> list[tuple[str, str]]:
    """Return the (wanted, own) names of bands that differ, if other bands of the file are named as wanted.

    If none is, its names may be other words for the same.
    """
    names = names_of(info)
    both = zip(wanted, (names[band - 1] for band in bands), strict=False)
    pairs = [(one, own) for one, own in both if one and own]
    differing = [(one, own) for one, own in pairs if one != own]
    return differing if len(differing) < len(pairs) else []


def order_of(wanted: Names, names: Names, bands: Sequence[int]) -> tuple[int, ...] | None:
    """Return the 1-based bands of a file that have the wanted names, if `bands` have other names.

    Args:
        wanted: name of each input band of a model; empty if unknown.
        names: names of all bands of the file.
        bands: 1-based bands that are read.

    Returns:
        None if no name contradicts: all match, or the file has none of the wanted names. () if a name
            contradicts and some wanted names are missing.
    """
    if len(wanted) != len(bands):
        return None
    taken = [names[band - 1] for band in bands]
    elsewhere = [want for want, got in zip(wanted, taken, strict=True) if want != got and want in names]
    if not [want for want in elsewhere if want is not None]:
        return None
    if None in wanted or not set(wanted) <= set(names):
        return ()
    return tuple(names.index(want) + 1 for want in wanted)
