"""Output files of a map: their names, formats and contents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import RasterError
from segmenter.geometry import Size, Window
from segmenter.inference.predictor import ExtraOutputs, Prediction
from segmenter.labels import IGNORE, ClassMap
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.request import Format
from segmenter.raster import RasterInfo, RasterSpec, RasterWriter, keeps_crs
from segmenter.raster.write import BLOCK

_MAX_PNG_PIXELS = 1 << 26
"""A PNG is held in memory while it is written."""
_MAX_PNG_SIDE = 1_000_000
"""Pixels that libpng takes."""
_QUICKLOOK_SIDE = 1024
"""Pixels of a quick look's longer side, at most."""

BESIDE = (".confidence.tif", ".probabilities.tif")
"""Endings of GeoTIFFs that lie beside a map and are none."""

_HEADERS = 1 << 20
"""Bytes of all that is in files beside pixels, at most."""


def known_probabilities(prediction: Prediction) -> NDArray[Any]:
    """(H, W, K) probabilities of a window; without data NaN, or in uint8 255, which none else is."""
    found = prediction.probabilities
    assert found is not None
    whole = found.dtype == np.uint8
    known = np.minimum(found, np.uint8(254)) if whole else found
    empty = np.array(255 if whole else np.nan, found.dtype)
    return np.where((prediction.ids == IGNORE)[..., None], empty, known)


@dataclass(frozen=True)
class MapStyle:
    """Which files are written of a map, and how.

    GeoTIFFs hold class ids with a colour table, and the classes' names and codes as metadata (`CLASS_0`,
    `CODE_0`, …); PNGs hold the classes' own codes, and an unused one where there is no data. Class ids are
    uint8: a class map has at most 254.

    Attributes:
        folder: of all files.
        nodata: value of a GeoTIFF's pixels without data.
        codes_by_default: whether maps of rasters without georeference are PNGs.
        tags: further metadata of the GeoTIFFs.
        wanted: whether there is a `STEM.confidence.tif` and a `STEM.probabilities.tif`.
        cog: cloud-optimised GeoTIFFs instead of plain ones.
        quicklook: also `STEM.quicklook.png`, small and in the classes' colours.
    """

    classes: ClassMap
    folder: Path
    format: Format = "auto"
    nodata: int = IGNORE
    codes_by_default: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    wanted: ExtraOutputs = field(default_factory=ExtraOutputs)
    cog: bool = False
    quicklook: bool = False

    def __post_init__(self) -> None:
        if not len(self.classes) <= self.nodata <= 255:
            raise RasterError(
                f"--nodata: expected {len(self.classes)} … 255 (the ids below are classes), got {self.nodata}"
            )

    def path(self, name: str, info: RasterInfo) -> Path:
        """Where the map of a raster goes."""
        return self.folder / f"{name}{'.png' if self._is_png(info) else '.tif'}"

    def beside(self, name: str) -> tuple[Path, ...]:
        """Where the files go that are written with a map."""
        beside = {
            "confidence.tif": self.wanted.confidence,
            "probabilities.tif": self.wanted.probabilities is not None,
            "quicklook.png": self.quicklook,
        }
        return tuple(self.folder / f"{name}.{ending}" for ending, there in beside.items() if there)

    def _is_png(self, info: RasterInfo) -> bool:
        return self.format == "png" or (
            self.format == "auto" and self.codes_by_default and not info.georeferenced
        )

    def check(self, info: RasterInfo, part: Window) -> None:
        """Refuse a PNG that would not fit in memory, and a GeoTIFF that would lose its CRS."""
        if not self._is_png(info):
            crs = info.gcp_crs if info.gcps else info.crs
            if crs is not None and not keeps_crs(crs.to_wkt()):
                raise RasterError(
                    f"{info.path}: a GeoTIFF cannot hold its CRS ({crs.to_wkt()[:60]}…); "
                    "give it another one (gdalwarp, gdal_edit.py -a_srs), or use --format png"
                )
        elif part.size.pixels > _MAX_PNG_PIXELS or max(part.height, part.width) > _MAX_PNG_SIDE:
            raise RasterError(
                f"{info.path}: a map of {part.size} pixels is too large for a PNG; use --format geotiff"
            )

    def options(self, job: MapJob) -> dict[str, Any]:
        """What decides of the files' contents, as plain JSON; files that are not wanted are not named."""
        files = {
            "confidence": self.wanted.confidence,
            "probabilities": self.wanted.probabilities,
            "quicklook": self.quicklook,
        }
        return {
            "format": job.output.suffix,
            "nodata": self.nodata,
            "cog": self.cog,
            **{name: value for name, value in files.items() if value},
        }

    def ids(self, job: MapJob, raw: NDArray[Any]) -> NDArray[np.uint8]:
        """Class ids from the values of a written map, `IGNORE` where it has no data."""
        if not self._is_png(job.info):
            return np.where(raw == self.nodata, IGNORE, raw).astype(np.uint8)
        ids = np.full(1 << 16, IGNORE, np.uint8)
        ids[self.classes.codes()] = np.arange(len(self.classes))
        return ids[raw]

    def values(self, job: MapJob, ids: NDArray[np.uint8]) -> NDArray[Any]:
        """What the map holds for class ids."""
        if self._is_png(job.info):
            return self._code_table()[ids]
        return ids if self.nodata == IGNORE else np.where(ids == IGNORE, np.uint8(self.nodata), ids)

    def _code_table(self) -> NDArray[Any]:
        codes = self.classes.codes()
        unused = next(value for value in (0, 255, *range(1, 1000)) if value not in codes)
        table = np.full(256, unused, np.uint16)
        table[: len(codes)] = codes
        return table.astype(np.uint8) if table.max() <= 255 else table


Values = Callable[[Prediction], NDArray[Any]]


class MapFiles:
    """The files of one job while they are written: all get their names, or none does."""

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self._job, self._style = job, style
        names = {f"CLASS_{i}": c.name for i, c in enumerate(style.classes.classes)}
        codes = {f"CODE_{i}": str(c.code) for i, c in enumerate(style.classes.classes)}
        self._tags = {**names, **codes, "SOURCE": job.info.path.name, **style.tags}
        self._layers: list[tuple[RasterWriter, Values]] = [self._map()]
        if style.wanted.confidence:
            self._layers.append(self._confidence())
        if style.wanted.probabilities is not None:
            self._layers.append(self._probabilities(style.wanted.probabilities))
        self._quicklook = _Quicklook(job, style) if style.quicklook else None

    def open(self) -> None:
        """Make the temporary files."""
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
        if self._quicklook is not None:
            self._quicklook.add(into, prediction.ids)

    @property
    def ahead_bytes(self) -> int:
        """Of the disk's space, what the files may take before anything else can give way to them.

        A row of blocks is written at once, a PNG as a whole; uncompressed, a file is hardly larger than that.
        """
        size = self._job.part.size
        rows = size.height if self._job.output.suffix == ".png" else min(size.height, BLOCK)
        return rows * size.width * sum(writer.pixel_bytes for writer, _ in self._layers) * 17 // 16 + _HEADERS

    def complete(self, check: Callable[[], None] | None = None) -> tuple[Path, ...]:
        """Check all files, then give them their names; gives these. After an error nothing is left.

        Args:
            check: called before the first of them has its name; what it raises forbids all.
        """
        writers = [writer for writer, _ in self._layers]
        try:
            if self._quicklook is not None:
                writers.append(self._quicklook.written())
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
        """Remove what is temporary."""
        for writer, _ in self._layers:
            writer.discard()

    def _map(self) -> tuple[RasterWriter, Values]:
        job, style = self._job, self._style

        def values(prediction: Prediction) -> NDArray[Any]:
            return style.values(job, prediction.ids)

        if job.output.suffix == ".png":
            dtype = style.values(job, np.zeros((1, 1), np.uint8)).dtype.name
            return RasterWriter(
                job.output, job.part.size, RasterSpec(dtype=dtype, driver="PNG"), column=job.column
            ), values
        colours = style.classes.palette()
        return self._geotiff(
            job.output, "mode", nodata=style.nodata, descriptions=("class",), colour_table=colours
        ), values

    def _confidence(self) -> tuple[RasterWriter, Values]:
        def values(prediction: Prediction) -> NDArray[np.uint8]:
            assert prediction.confidence is not None
            # The largest of up to 254 probabilities is never 0: that is left for pixels without data.
            return np.where(prediction.ids == IGNORE, np.uint8(0), prediction.confidence)

        path = self._style.folder / f"{self._job.name}.confidence.tif"
        return self._geotiff(
            path, "nearest", nodata=0, descriptions=("largest probability",), scale=1 / 255
        ), values

    def _probabilities(self, kind: Literal["uint8", "float16"]) -> tuple[RasterWriter, Values]:
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
                overviews=overviews if self._style.cog else None,
                **options,
            ),
            column=self._job.column,
        )


class _Quicklook:
    """A small picture of a map, picked from the windows as they come: every n-th pixel of every n-th row."""

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self._path = style.folder / f"{job.name}.quicklook.png"
        self._classes = style.classes
        size = job.part.size
        self._step = max(1, -(-max(size.height, size.width) // _QUICKLOOK_SIDE))
        self._ids = np.full((-(-size.height // self._step), -(-size.width // self._step)), IGNORE, np.uint8)

    def add(self, window: Window, ids: NDArray[np.uint8]) -> None:
        step = self._step
        rows, cols = (slice(-(-s.start // step), -(-s.stop // step)) for s in window.slices())
        picked = ids[rows.start * step - window.row :: step, cols.start * step - window.col :: step]
        self._ids[rows, cols] = picked

    def written(self) -> RasterWriter:
        """Its file, all of it written, transparent where there is no data."""
        colours = np.zeros((256, 4), np.uint8)
        colours[:, :3] = self._classes.palette()
        colours[:, 3] = 255
        colours[IGNORE] = 0
        size = Size(*self._ids.shape)
        writer = RasterWriter(self._path, size, RasterSpec(bands=4, driver="PNG"))
        with contextlib.ExitStack() as undo:
            undo.callback(writer.discard)
            writer.open()
            writer.write(Window.of(size), colours[self._ids])
            undo.pop_all()
        return writer
