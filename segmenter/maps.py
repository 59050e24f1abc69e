"""Class maps as files: what is mapped of each raster, how its map is written, and how it is scored."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import DatasetError, RasterError, SegmenterError
from segmenter.geometry import Size, Window
from segmenter.inputs import label_for
from segmenter.labels import IGNORE, ClassMap
from segmenter.mosaic import Mosaic, MosaicView
from segmenter.predictor import Failed, Finished, Mapped, PredictBatch, Tiling, classify_all
from segmenter.raster import Raster, RasterInfo, RasterWriter, open_raster, raster_info, read_label
from segmenter.scores import ConfusionMatrix

Format = Literal["auto", "geotiff", "png"]
_MAX_PNG_PIXELS = 1 << 26
"""A PNG is held in memory while it is written."""
_HEADER_THREADS = 4
_COMPLETED_AT_ONCE = 4
_EDGE = 1e-6
"""Share of a pixel by which a bounding box may miss a pixel's edge by rounding."""


@dataclass(frozen=True)
class Bounds:
    """A bounding box in the coordinates of a raster's CRS."""

    left: float
    bottom: float
    right: float
    top: float

    def window(self, info: RasterInfo) -> Window:
        """The pixels that the box touches; of no extent where it lies beside the raster."""
        if info.transform is None:
            raise RasterError(f"{info.path}: has no geotransform, a bounding box cannot be found in it")
        corners = ((x, y) for x in (self.left, self.right) for y in (self.bottom, self.top))
        points = np.array([~info.transform @ corner for corner in corners])
        left, top = (int(v) for v in np.floor(points.min(axis=0) + _EDGE))
        right, bottom = (int(v) for v in np.ceil(points.max(axis=0) - _EDGE))
        size = info.size
        top, left = min(max(top, 0), size.height), min(max(left, 0), size.width)
        bottom, right = min(max(bottom, top), size.height), min(max(right, left), size.width)
        return Window(top, left, bottom - top, right - left)


@dataclass(frozen=True)
class Request:
    """What is wanted of every raster.

    Attributes:
        bands: 1-based; None: all but alpha.
        band_count: how many the model takes.
        part: what to map; None: everything.
        max_pixels: see `open_raster`.
    """

    bands: tuple[int, ...] | None
    band_count: int
    part: Bounds | Window | None = None
    max_pixels: int | None = None

    def open(self, path: Path) -> Raster:
        """Open a raster with the model's bands.

        Raises:
            RasterError: where it has too few of them, or it cannot be told which.
        """
        raster = open_raster(path, self.bands, max_pixels=self.max_pixels)
        if len(raster.bands) != self.band_count:
            info = raster.info
            raster.__exit__(None, None, None)
            raise RasterError(f"{path}: {self._band_mismatch(info, len(raster.bands))}")
        return raster

    def window(self, info: RasterInfo) -> Window:
        """The part of a raster that is wanted; of no extent where a bounding box lies beside it."""
        if isinstance(self.part, Bounds):
            return self.part.window(info)
        whole = Window.of(info.size)
        if self.part is not None and not whole.contains(self.part):
            raise RasterError(f"{info.path}: {self.part} reach beyond the raster of {info.size} pixels")
        return self.part or whole

    def _band_mismatch(self, info: RasterInfo, got: int) -> str:
        hint = "name the ones to use with --bands"
        if info.has_palette:
            hint = "its values are indices of a palette, see gdal_translate -expand rgb"
        elif got < self.band_count:
            hint = "it does not fit this run"
        alpha = f" and alpha ({', '.join(map(str, info.alpha))})" if info.alpha else ""
        return f"expected {self.band_count} bands as in training, got {got}{alpha}; {hint}"


@dataclass(eq=False)
class MapJob:
    """One raster to map: a `predictor.Job`."""

    request: Request
    info: RasterInfo
    part: Window
    name: str
    output: Path
    label: Path | None = None
    abandoned: bool = False
    done_rows: int = 0
    mosaic: Mosaic | None = None

    def open(self) -> Raster | MosaicView:
        """Open the raster with the model's bands; in a mosaic, with what lies around it."""
        if self.mosaic is not None:
            return self.mosaic.view(self.info.path)
        return self.request.open(self.info.path)


@dataclass(frozen=True)
class MapStyle:
    """How maps are written.

    GeoTIFFs hold class ids with a colour table, and the classes' names and codes as metadata (`CLASS_0`,
    `CODE_0`, …); PNGs hold the classes' own codes, and an unused one where there is no data.
    """

    classes: ClassMap
    folder: Path
    format: Format = "auto"
    nodata: int = IGNORE
    codes_by_default: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.classes) <= self.nodata <= 255:
            raise RasterError(
                f"--nodata: expected {len(self.classes)} … 255 (the ids below are classes), got {self.nodata}"
            )

    def path(self, name: str, info: RasterInfo) -> Path:
        """Where the map of a raster goes."""
        return self.folder / f"{name}{'.png' if self._is_png(info) else '.tif'}"

    def _is_png(self, info: RasterInfo) -> bool:
        return self.format == "png" or (
            self.format == "auto" and self.codes_by_default and not info.georeferenced
        )

    def check(self, info: RasterInfo, part: Window) -> None:
        """Refuse a PNG that would not fit in memory."""
        if self._is_png(info) and part.size.pixels > _MAX_PNG_PIXELS:
            raise RasterError(
                f"{info.path}: a map of {part.size} pixels is too large for a PNG; use --format geotiff"
            )

    def writer(self, job: MapJob) -> RasterWriter:
        """The (not yet opened) output of a job."""
        if self._is_png(job.info):
            return RasterWriter(job.output, job.part.size, dtype=self._code_table().dtype.name, driver="PNG")
        names = {f"CLASS_{i}": c.name for i, c in enumerate(self.classes.classes)}
        codes = {f"CODE_{i}": str(c.code) for i, c in enumerate(self.classes.classes)}
        return RasterWriter(
            job.output,
            job.part.size,
            **job.info.georeference(job.part),
            nodata=self.nodata,
            descriptions=("class",),
            colour_table=self.classes.palette(),
            tags={**names, **codes, "SOURCE": job.info.path.name, **self.tags},
        )

    def values(self, job: MapJob, ids: NDArray[np.uint8]) -> NDArray[Any]:
        """What the output holds for class ids."""
        if self._is_png(job.info):
            return self._code_table()[ids]
        return ids if self.nodata == IGNORE else np.where(ids == IGNORE, np.uint8(self.nodata), ids)

    def _code_table(self) -> NDArray[Any]:
        codes = self.classes.codes()
        unused = next(value for value in (0, 255, *range(1, 1000)) if value not in codes)
        table = np.full(256, unused, np.uint16)
        table[: len(codes)] = codes
        return table.astype(np.uint8) if table.max() <= 255 else table


@dataclass
class Outcome:
    """What came of the jobs: maps written, files that failed, and maps that could not be scored."""

    written: list[MapJob] = field(default_factory=list)
    failed: list[tuple[MapJob, SegmenterError]] = field(default_factory=list)
    unscored: list[tuple[MapJob, SegmenterError]] = field(default_factory=list)
    confusion: ConfusionMatrix | None = None

    @property
    def scored(self) -> list[MapJob]:
        """Written maps whose label was counted."""
        without = {id(job) for job, _ in self.unscored}
        return [job for job in self.written if job.label is not None and id(job) not in without]


class _Output:
    """The map of one job while it is written and scored."""

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self.job, self._style = job, style
        self._writer = style.writer(job)
        self.confusion = ConfusionMatrix(style.classes) if job.label is not None else None
        self.label_error: SegmenterError | None = None
        self._writer.open()

    def add(self, window: Window, ids: NDArray[np.uint8]) -> None:
        self._writer.write(window.relative_to(self.job.part), self._style.values(self.job, ids))
        if self.confusion is not None and self.label_error is None and self.job.label is not None:
            try:
                self.confusion.add(self._truth(self.job.label, window), ids)
            except SegmenterError as error:  # the map is still good
                self.label_error = error

    def _truth(self, label: Path, window: Window) -> NDArray[np.uint8]:
        classes = self._style.classes
        raw = read_label(label, window, expand_palette=classes.encoding == "colours")
        return classes.decode(raw, f"{label}, {window}")

    def complete(self) -> None:
        self._writer.complete()

    def discard(self) -> None:
        self._writer.discard()


def write_maps(
    jobs: Sequence[MapJob], tiling: Tiling, predict: PredictBatch, style: MapStyle, progress: Any = None
) -> Outcome:
    """Map every job and write it, whole or not at all; one that fails does not stop the others.

    Args:
        progress: something with `update(pixels)` (a tqdm bar), or None.
    """
    with contextlib.closing(_Maps(style)) as maps:
        for event in classify_all(jobs, tiling, predict):
            maps.take(event)
            if isinstance(event, Mapped) and progress is not None:
                progress.update(event.window.size.pixels)
        maps.settle()
        return maps.outcome


class _Maps:
    """The maps under way.

    Completing a map waits for the disk (5 ms and more for a file of any size), so that some are completed
    at a time while the model goes on.
    """

    def __init__(self, style: MapStyle) -> None:
        self.outcome = Outcome(confusion=ConfusionMatrix(style.classes))
        self._style = style
        self._open: dict[int, _Output] = {}
        self._pool = ThreadPoolExecutor(_COMPLETED_AT_ONCE)
        self._completing: deque[tuple[_Output, Future[None]]] = deque()

    def take(self, event: Mapped | Finished | Failed) -> None:
        """Write what came; a job that fails is given up and noted."""
        job: MapJob = event.job
        if job.abandoned:
            return
        try:
            if isinstance(event, Failed):
                raise event.error
            if id(job) not in self._open:
                self._open[id(job)] = _Output(job, self._style)
            if isinstance(event, Mapped):
                self._open[id(job)].add(event.window, event.ids)
                return
        except SegmenterError as error:
            self._give_up(job, error)
            return
        output = self._open.pop(id(job))
        self._completing.append((output, self._pool.submit(output.complete)))
        self.settle(2 * _COMPLETED_AT_ONCE)

    def settle(self, left: int = 0) -> None:
        """Wait until at most `left` maps are being completed, and note what came of the others."""
        while len(self._completing) > left:
            output, future = self._completing.popleft()
            try:
                future.result()
            except SegmenterError as error:
                self._give_up(output.job, error)
            else:
                self._note(output)

    def close(self) -> None:
        """Remove everything that is not complete."""
        self._pool.shutdown(cancel_futures=True)
        for output in (*self._open.values(), *(output for output, _ in self._completing)):
            output.discard()

    def _note(self, output: _Output) -> None:
        self.outcome.written.append(output.job)
        if output.label_error is not None:
            self.outcome.unscored.append((output.job, output.label_error))
        elif output.confusion is not None and self.outcome.confusion is not None:
            self.outcome.confusion.merge(output.confusion)

    def _give_up(self, job: MapJob, error: SegmenterError) -> None:
        job.abandoned = True
        self.outcome.failed.append((job, error))
        output = self._open.pop(id(job), None)
        if output is not None:
            output.discard()


def plan_maps(
    images: Mapping[Path, str], request: Request, style: MapStyle, labels: str | None = None
) -> Iterator[tuple[Path, MapJob | SegmenterError | None]]:
    """What to do for each image (with the name of its output), read from its header only.

    Args:
        labels: pattern of the label files, see `inputs.label_for`.

    Yields:
        The image with its job, with the error that forbids it, or with None where a bounding box does not
        touch it.
    """

    def plan(image: Path) -> MapJob | SegmenterError | None:
        try:
            return _plan(image, images[image], request, style, labels)
        except SegmenterError as error:
            return error

    with ThreadPoolExecutor(_HEADER_THREADS) as pool:
        yield from zip(images, pool.map(plan, images), strict=True)


def _plan(image: Path, name: str, request: Request, style: MapStyle, labels: str | None) -> MapJob | None:
    with request.open(image) as raster:
        info = raster.info
    part = request.window(info)
    if not part.size.pixels:
        return None
    label = None if labels is None else label_for(image, labels)
    if label is not None:
        _label_fits(label, info)
    style.check(info, part)
    return MapJob(request, info, part, name, style.path(name, info), label)


def _label_fits(label: Path, info: RasterInfo) -> None:
    size = raster_info(label).size
    if size != info.size:
        raise DatasetError(f"{label}: expected a label of {info.size} pixels as {info.path}, got {size}")


def window_for(size: int, radius: int, stride: int) -> Size:
    """A square window of `size` pixels, or larger where less than half of its side would be kept."""
    halo = -(-radius // stride) * stride
    side = size if size > 2 * halo else 4 * halo
    return Size(side, side).round_up(stride)
