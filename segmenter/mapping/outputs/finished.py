"""Output files of a map: names, formats and contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.windows import COLUMN, grid
from segmenter.inference.predictor import ExtraOutputs, Prediction
from segmenter.mapping.finisher import Completed
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.codes import CODES, VALUES, FileValues, codes_of, free_value
from segmenter.mapping.request.map_request import MapRequest
from segmenter.raster import RasterInfo, RasterSpec, RasterWriter, keeps_crs, read_label
from segmenter.raster.remote.settings import RemotePath
from segmenter.raster.stamps import file_digest
from segmenter.raster.write import BLOCK

_MAX_PNG_PIXELS = 1 << 26
"""A PNG is held in memory while it is written."""
_MAX_PNG_SIDE = 1_000_000
"""Pixels that libpng takes."""

_AT_ONCE = Size(512, COLUMN)
"""Pixels of a finished map that are read at once."""

WEIGHTS, SOURCE_DIGEST = "WEIGHTS", "SOURCE_DIGEST"
"""Entries of a GeoTIFF's metadata: `MapStyle.weights`, and a digest of the image's file."""
BESIDE = (".confidence.tif", ".probabilities.tif")
"""Endings of GeoTIFFs beside a map that are not maps."""

_HEADERS = 1 << 20
"""Upper limit in bytes for everything in files except pixels."""


def known_probabilities(prediction: Prediction) -> NDArray[Any]:
    """Return (H, W, K) probabilities of a window; without data NaN, or 255 in uint8, unused otherwise."""
    probabilities = prediction.probabilities
    assert probabilities is not None
    whole = probabilities.dtype == np.uint8
    capped = np.minimum(probabilities, np.uint8(254)) if whole else probabilities
    empty = np.array(255 if whole else np.nan, probabilities.dtype)
    return np.where((prediction.ids == IGNORE)[..., None], empty, capped)


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
        """Outputs besides class ids, each in a separate file."""
        return ExtraOutputs(confidence=self.request.confidence, probabilities=self.request.probabilities)

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

    def beside(self, name: str) -> tuple[Path, ...]:
        """Return the paths of files that are written with a map."""
        beside = {
            "confidence.tif": self.wanted.confidence,
            "probabilities.tif": self.wanted.probabilities is not None,
        }
        return tuple(self.folder / f"{name}.{ending}" for ending, is_wanted in beside.items() if is_wanted)

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
        files = {"confidence": self.wanted.confidence, "probabilities": self.wanted.probabilities}
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


Values = Callable[[Prediction], NDArray[Any]]


def _content_of(image: Path) -> str:
    """Return the digest of an image's file; empty of addresses and folders."""
    with suppress(DatasetError):
        return "" if isinstance(image, RemotePath) else file_digest(image)
    return ""


class MapFiles:
    """Files of one job while they are written.

    All are checked before the first is renamed to its final name. A kill between two renames leaves the first
    files; the journal then has no entry for the job, and the next call writes all files again.
    """

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self._job, self._style = job, style
        names = {f"CLASS_{i}": c.name for i, c in enumerate(style.classes.classes)}
        own = style.codes or [each.code for each in style.classes.classes]
        codes = {f"CODE_{i}": str(code) for i, code in enumerate(own)}
        meaning = {} if style.codes is None else {VALUES: CODES}
        facts = {"SOURCE": job.info.path.name, "RUN": style.run, WEIGHTS: style.weights}
        facts[SOURCE_DIGEST] = _content_of(job.info.path)
        scale = {"GSD": style.gsd} if job.grid is not None else {}
        calibrated = {"CALIBRATION": style.calibration} if style.calibration else {}
        self._tags = {**names, **codes, **meaning, **facts, **scale, **calibrated}
        self._layers: list[tuple[RasterWriter, Values]] = [self._map()]
        if style.wanted.confidence:
            self._layers.append(self._confidence())
        if style.wanted.probabilities is not None:
            self._layers.append(self._probabilities(style.wanted.probabilities))

    def open(self) -> None:
        """Create the temporary files."""
        try:
            for writer, _ in self._layers:
                writer.open()
        except BaseException:
            self.discard()
            raise

    def write(self, window: Window, prediction: Prediction) -> None:
        """Write a window, in the raster's coordinates."""
        into = window.relative_to(self._job.part)
        for writer, values in self._layers:
            writer.write(into, values(prediction))

    @property
    def ahead_bytes(self) -> int:
        """Disk space in bytes that the files may need before other files can be removed for them.

        A row of blocks is written at once, a PNG as a whole; their uncompressed size is an upper limit.
        """
        size = self._job.part.size
        rows = size.height if self._job.output.suffix == ".png" else min(size.height, BLOCK)
        return rows * size.width * sum(writer.pixel_bytes for writer, _ in self._layers) * 17 // 16 + _HEADERS

    def complete(
        self, check: Callable[[], None] | None = None, also: Sequence[Completed] = ()
    ) -> tuple[Path, ...]:
        """Check all files, rename them to their final names and return these; after an error, remove all.

        Args:
            check: called before the first rename; its exception prevents all renames.
            also: further files, renamed after all others.
        """
        writers: list[Completed] = [*(writer for writer, _ in self._layers), *also]
        try:
            for writer in writers:
                writer.finish()
            if check is not None:
                check()
            for writer in writers:
                writer.publish()
        finally:
            for writer in writers:
                writer.discard()
        return self._job.files

    def discard(self) -> None:
        """Remove temporary files."""
        for writer, _ in self._layers:
            writer.discard()

    def _map(self) -> tuple[RasterWriter, Values]:
        job, style = self._job, self._style
        held = style.file_values(job)

        def values(prediction: Prediction) -> NDArray[Any]:
            return held.of(prediction.ids)

        if job.output.suffix == ".png":
            return RasterWriter(
                job.output, job.part.size, RasterSpec(dtype=held.dtype, driver="PNG"), column=job.column
            ), values
        colours = None
        if held.dtype == "uint8":  # of 16 bits, a colour table has 65,536 entries
            colours = np.zeros((256, 3), np.uint8)
            colours[list(held.codes)] = [each.colour for each in style.classes.classes]
        return self._geotiff(
            job.output,
            "mode",
            dtype=held.dtype,
            nodata=held.nodata,
            descriptions=("land-cover class",),
            colour_table=colours,
        ), values

    def _confidence(self) -> tuple[RasterWriter, Values]:
        def values(prediction: Prediction) -> NDArray[np.uint8]:
            assert prediction.confidence is not None
            # The largest of up to 254 probabilities is never 0: that is left for pixels without data.
            return np.where(prediction.ids == IGNORE, np.uint8(0), prediction.confidence)

        path = self._style.folder / f"{self._job.name}.confidence.tif"
        calibration = self._style.calibration
        described = f"largest probability{calibration and f', calibrated: {calibration}'}"
        return self._geotiff(path, "nearest", nodata=0, descriptions=(described,), scale=1 / 255), values

    def _probabilities(self, kind: Literal["uint8", "float16", "float32"]) -> tuple[RasterWriter, Values]:
        whole = kind == "uint8"
        classes = self._style.classes
        path = self._style.folder / f"{self._job.name}.probabilities.tif"
        return self._geotiff(
            path,
            "nearest",
            dtype=kind,
            bands=len(classes),
            nodata=255 if whole else float("nan"),
            descriptions=tuple(classes.names),
            scale=1 / 255 if whole else None,
        ), known_probabilities

    def _geotiff(self, path: Path, overviews: Literal["mode", "nearest"], **options: Any) -> RasterWriter:
        return RasterWriter(
            path,
            self._job.part.size,
            RasterSpec(
                **self._job.info.georeference(self._job.part),
                tags=self._tags,
                overviews=overviews if self._style.request.cog else None,
                **options,
            ),
            column=self._job.column,
        )
