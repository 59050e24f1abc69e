"""Description of a raster that is to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.rpc import RPC
from rasterio.transform import Affine


@dataclass(frozen=True, eq=False)
class RasterSpec:
    """A raster's format, pixel type and metadata: all but its path, size and pixels.

    Attributes:
        dtype: of the pixels; float16 is kept in 16 bits, and read back as float32 for want of such a type.
        bands: their number; one band takes (H, W) arrays, more take (H, W, bands).
        crs: coordinate reference system; that of the `gcps` where these are given.
        transform: pixel to CRS coordinates; None where the raster is not georeferenced.
        gcps: ground control points, instead of a transform.
        rpcs: rational polynomial coefficients, also beside a transform.
        nodata: value of pixels without data, in every band.
        descriptions: of the bands.
        colour_table: (256, 3) uint8; `nodata` is drawn transparent.
        tags: metadata of the file, as `CLASS_0: water`.
        driver: GTiff, PNG or JPEG.
        scale: what a value is to be multiplied with, told to those who read the file; every band's.
        overviews: make it a cloud-optimised GeoTIFF with overviews by this resampling; None: a plain one.

    Raises:
        ValueError: the driver's files cannot hold all of it.
    """

    dtype: str = "uint8"
    bands: int = 1
    crs: CRS | None = None
    transform: Affine | None = None
    gcps: Sequence[GroundControlPoint] = ()
    rpcs: RPC | None = None
    nodata: float | None = None
    descriptions: Sequence[str | None] = ()
    colour_table: NDArray[np.uint8] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    driver: str = "GTiff"
    scale: float | None = None
    overviews: Literal["mode", "nearest"] | None = None

    def __post_init__(self) -> None:
        placed = self.crs or self.transform or self.gcps or self.rpcs
        if self.driver != "GTiff" and (placed or self.tags or any(self.descriptions)):
            raise ValueError(f"{self.driver} holds neither georeference nor tags; write a GTiff")
