"""Opening, reading and writing of rasters; only this package does it, all others take arrays.

By default only local GeoTIFF (including COG), PNG and JPEG files are opened: VRT, archives and network
addresses can point GDAL anywhere. Faults become a `RasterError` that names the file and the window.
"""

from segmenter.raster.gdal.private import quiet_libtiff
from segmenter.raster.gdal.settings import quiet_gdal
from segmenter.raster.ground import (
    crs_title,
    extent_text,
    outlines,
    pixel_sides,
)
from segmenter.raster.header import RasterInfo, keeps_crs
from segmenter.raster.label import LabelIds, LabelRaster, read_label
from segmenter.raster.opening import check_drivers
from segmenter.raster.opening_cache import KnownRasters
from segmenter.raster.reading import (
    Raster,
    ask_for_bands,
    open_raster,
    raster_info,
)
from segmenter.raster.stretch import scene_stretch
from segmenter.raster.write import (
    RasterSpec,
    RasterWriter,
    leftovers,
    remove_leftovers,
    write_raster,
)

__all__ = [
    "KnownRasters",
    "LabelIds",
    "LabelRaster",
    "Raster",
    "RasterInfo",
    "RasterSpec",
    "RasterWriter",
    "ask_for_bands",
    "check_drivers",
    "crs_title",
    "extent_text",
    "keeps_crs",
    "leftovers",
    "open_raster",
    "outlines",
    "pixel_sides",
    "quiet_gdal",
    "quiet_libtiff",
    "raster_info",
    "read_label",
    "remove_leftovers",
    "scene_stretch",
    "write_raster",
]
