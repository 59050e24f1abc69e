"""Style of maps: names, formats and values of their files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.windows import COLUMN, grid
from segmenter.inference.predictor import ExtraOutputs
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.codes import FileValues, codes_of, free_value
from segmenter.mapping.outputs.sets import ENDING, PixelSets
from segmenter.mapping.request.map_request import MapRequest
from segmenter.raster import RasterInfo, keeps_crs, read_label

_MAX_PNG_PIXELS = 1 << 26
"""A PNG is held in memory while it is written."""
_MAX_PNG_SIDE = 1_000_000
"""Pixels that libpng takes."""

_AT_ONCE = Size(512, COLUMN)
"""Pixels of a finished map that are read at once."""

WEIGHTS, SOURCE, SOURCE_DIGEST = "WEIGHTS", "SOURCE", "SOURCE_DIGEST"
"""Entries of a GeoTIFF's metadata: `MapStyle.weights`, name of the image's file, and a digest of it."""
CONFIDENCE, PROBABILITIES = ".confidence.tif", ".probabilities.tif"
SHARES = (CONFIDENCE, PROBABILITIES)
"""Endings of GeoTIFFs beside a map whose values are shares, which a ramp of colours shows."""
BESIDE = (*SHARES, ENDING)
"""Endings of GeoTIFFs beside a map that are not maps."""


@dataclass(frozen=True)
class MapStyle:
    """Files of a map, and their contents.

    GeoTIFFs contain class ids, or `codes`, with a colour table if they have 8 bits, and the classes' names
    and codes as metadata (`CLASS_0`, `CODE_0`, …; `VALUES` if `codes` are used). PNGs contain the classes'
    own codes, or `codes`, and an unused value for no data.

    Attributes:
        request: request with the wanted files and values.
        run: name of the run, for the metadata of GeoTIFFs.
        codes_by_default: write PNGs for rasters without georeference.
        weights: fingerprint of its weights, for the same; of several runs each one's, with commas.
        gsd: scale, in the metadata of maps whose raster is resampled for the model.
        calibration: temperature of calibrated probabilities, in the metadata; empty: not calibrated.
        sets: prediction sets that are written; None: none are.

    Raises:
        DatasetError, RasterError: codes or a nodata value do not fit the classes.
    """

    request: MapRequest
    classes: ClassMap
    run: str = ""
    weights: str = ""
    codes_by_default: bool = False
    gsd: str = ""
    calibration: str = ""
    sets: PixelSets | None = None

    def __post_init__(self) -> None:
        nodata, count = self.request.nodata, len(self.classes)
        if self.codes is None and nodata is not None and not count <= nodata <= 255:
            raise RasterError("--nodata", expected=f"{count} … 255 (the ids below are classes)", got=nodata)
        _ = self._geotiff_values  # refuses codes that cannot be

    @property
    def folder(self) -> Path:
        """Folder of all files."""
        return self.request.output

    @cached_property
    def codes(self) -> tuple[int, ...] | None:
        """Codes in files, by class id; None: files contain the ids."""
        return None if self.request.codes is None else codes_of(self.request.codes, self.classes)

    @cached_property
    def wanted(self) -> ExtraOutputs:
        """Outputs besides class ids: of these, or for sets, separate files are made."""
        kind = self.request.probabilities if self.sets is None else "float32"
        return ExtraOutputs(confidence=self.request.confidence, probabilities=kind)

    @cached_property
    def _geotiff_values(self) -> FileValues:
        codes = tuple(range(len(self.classes))) if self.codes is None else self.codes
        return FileValues(codes, free_value(codes) if self.request.nodata is None else self.request.nodata)

    @cached_property
    def _png_values(self) -> FileValues:
        codes = self.codes or tuple(each.code for each in self.classes.classes)
        return FileValues(codes, next(value for value in (0, 255, *range(1, 1000)) if value not in codes))

    def file_values(self, job: MapJob) -> FileValues:
        """Return the values of a job's map for class ids."""
        return self._png_values if self.is_png(job.info) else self._geotiff_values

    def path(self, name: str, info: RasterInfo) -> Path:
        """Return the path of a raster's map."""
        return self.folder / f"{name}{'.png' if self.is_png(info) else '.tif'}"

    def companion_files(self, name: str) -> tuple[Path, ...]:
        """Return the paths of files that are written with a map."""
        beside = {
            CONFIDENCE: self.wanted.confidence,
            PROBABILITIES: self.request.probabilities is not None,
            ENDING: self.sets is not None,
        }
        return tuple(self.folder / f"{name}{ending}" for ending, is_wanted in beside.items() if is_wanted)

    def is_png(self, info: RasterInfo) -> bool:
        """Return whether a raster's map is a PNG."""
        by_default = self.codes_by_default and not info.georeferenced
        return self.request.format == "png" or (self.request.format == "auto" and by_default)

    def check(self, info: RasterInfo, part: Window) -> None:
        """Refuse a PNG that does not fit in memory, or a GeoTIFF that would lose its CRS."""
        if not self.is_png(info):
            crs = info.gcp_crs if info.gcps else info.crs
            if crs is not None and not keeps_crs(crs.to_wkt()):
                raise RasterError(
                    info.path,
                    f"a GeoTIFF cannot hold its CRS ({crs.to_wkt()[:60]}…)",
                    remedy="give it another one (gdalwarp, gdal_edit.py -a_srs), or use --format png",
                )
        elif part.size.pixels > _MAX_PNG_PIXELS or max(part.height, part.width) > _MAX_PNG_SIDE:
            raise RasterError(
                info.path, f"a map of {part.size} pixels is too large for a PNG; use --format geotiff"
            )

    def options(self, job: MapJob) -> dict[str, Any]:
        """Return the options that determine the contents of the wanted files, as plain JSON."""
        files: dict[str, Any] = {"confidence": self.wanted.confidence}
        files["probabilities"] = self.request.probabilities
        files["sets"] = self.sets and [self.sets.thresholds.promise, *self.sets.thresholds.each_K]
        return {
            "format": job.output.suffix,
            "nodata": self._geotiff_values.nodata,
            "codes": self.codes and list(self.codes),
            "cog": self.request.cog,
            **{name: value for name, value in files.items() if value},
        }

    def ids(self, job: MapJob, raw: NDArray[Any]) -> NDArray[np.uint8]:
        """Return class ids from the values of a written map; `IGNORE` without data."""
        return self.file_values(job).ids(raw)

    def read_back(self, job: MapJob) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
        """Yield the class ids of a finished map by windows.

        Raises:
            SegmenterError: the map cannot be read.
        """
        for place in grid(job.part.size, _AT_ONCE):
            yield place.keep, self.ids(job, read_label(job.output, place.keep))

    @property
    def map_bytes(self) -> int:
        """Bytes of a GeoTIFF's pixel."""
        return np.dtype(self._geotiff_values.dtype).itemsize
