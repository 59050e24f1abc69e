"""Plan of a call: part and output path for each image, from headers alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import DatasetError, RasterError, SegmenterError
from segmenter.base.files import real
from segmenter.grid.geometry import Window
from segmenter.grid.resampling import step_of
from segmenter.grid.scenes import Layout
from segmenter.inference.fit import other_scales
from segmenter.mapping.jobs import MapJob, RasterRequest, tag_at_server
from segmenter.mapping.request.inputs import Inputs
from segmenter.mapping.request.truth import GsdOf, Images
from segmenter.mapping.scoring import SCORE_FILES
from segmenter.raster import RasterInfo, pixel_sides
from segmenter.raster.ground import check_label
from segmenter.raster.header import Readable
from segmenter.raster.mosaic import Mosaic
from segmenter.raster.resampled import ModelGrid

if TYPE_CHECKING:
    from segmenter.mapping.call import Call

Fit = Callable[[Readable, Window], tuple[str, ...]]

_HEADER_THREADS = 4
_LONGEST_NAME = 255
_ROOM = 40
"""Bytes that are added to a file's name while it is made."""


def plan_maps(
    call: Call, request: RasterRequest, fit: Fit
) -> Iterator[tuple[Path, MapJob | SegmenterError | None]]:
    """Plan the job of each image of a call, from its header and a sample of pixels.

    Args:
        fit: raises an error if part of a raster must not be mapped; returns warnings about it.

    Yields:
        The image with its job, with the error that forbids it, or with None if a bounding box does not touch
        it.
    """
    images = call.images
    assert images is not None, "rasters are files"

    def plan(image: Path) -> MapJob | SegmenterError | None:
        try:
            return _plan(call, images, image, request, fit)
        except SegmenterError as error:
            return error

    with ThreadPoolExecutor(_HEADER_THREADS) as pool:
        yield from zip(images.names, pool.map(plan, images.names), strict=True)


def _plan(call: Call, images: Images, image: Path, request: RasterRequest, fit: Fit) -> MapJob | None:
    name, style, truth = images.names[image], call.style, images.truth
    tag = tag_at_server(image)
    with request.open(image) as raster:
        part = request.window(raster.info)
        if not part.size.pixels:
            return None
        info = replace(raster.info, remarks=(*raster.info.remarks, *fit(raster, part)))
    label = None if truth is None else truth.label(image)
    if label is not None:
        check_label(label, info)
    style.check(info, part)
    beside = [
        *style.companion_files(name),
        *(p for one in call.finishers for p in one.finished_files(call, name).values()),
    ]
    job = MapJob(request, info, part, name, style.path(name, info), label, tuple(beside))
    if truth is not None:
        job.label_classes, job.scene = truth.classes, truth.scenes.get(image)
        job.group = truth.groups.get(image)
    job.tag = tag
    job.unchecked = tuple(path for each in call.finishers for path in each.companion_files(call, name, info))
    if max(len(os.fsencode(path.name)) for path in (*job.files, *job.unchecked)) > _LONGEST_NAME - _ROOM:
        raise RasterError(
            image, f"its name is too long for those of its outputs, of {_LONGEST_NAME} bytes; rename it"
        )
    return job


def join(inputs: Inputs, jobs: Sequence[MapJob], failures: Sequence[SegmenterError]) -> None:
    """Let the windows of all jobs extend across file borders, also beyond a bounding box.

    Raises:
        DatasetError: an input failed, which would leave a hole.
    """
    if failures:
        raise DatasetError("--mosaic", expected=f"inputs that can all be read; {failures[0]}")
    mosaic = Mosaic(inputs.files, jobs[0].request.open)
    for job in jobs:
        job.mosaic = mosaic


def check_outputs(call: Call, jobs: Sequence[MapJob], images: Images) -> None:
    """Refuse outputs that would replace an input, a label or each other."""
    folder, inputs, layout = call.request.output, images.inputs, images.layout
    if any(real(given) == real(folder) for given in inputs.folders):
        raise DatasetError(f"--output {folder}", expected="another folder than that of the inputs")
    originals = {real(path) for path in inputs.files}
    originals |= {real(job.label) for job in jobs if job.label is not None}
    # Some file systems do not distinguish capital letters from small ones.
    scores = () if images.truth is None else SCORE_FILES
    taken: dict[str, Path] = {name.casefold(): folder / name for name in scores}
    dataset = layout if layout is not None and layout.covers(folder) else None
    for path in taken.values():
        _refuse_overwriting(path, originals, folder, dataset)
    for job in jobs:
        later = (path for finisher in call.finishers for path in finisher.afterwards(job))
        for path in (*job.files, *job.unchecked, *later):
            _refuse_overwriting(path, originals, folder, dataset)
            other = taken.setdefault(path.name.casefold(), job.info.path)
            if other != job.info.path:
                raise DatasetError(
                    path, f"would be written for {job.info.path} and for {other}; map them into two folders"
                )


def _refuse_overwriting(path: Path, originals: Container[Path], folder: Path, dataset: Layout | None) -> None:
    if real(path) in originals:
        raise DatasetError(f"--output {folder}", f"{path} would replace an input; choose another folder")
    if dataset is not None and dataset.holds(path):
        raise DatasetError(
            f"--output {folder}",
            f"{path.name} would be taken for a file of the dataset in {dataset.root}",
            remedy="choose a folder outside",
        )


def differences(call: Call, job: MapJob) -> list[str]:
    """Return lines on how an input differs from training, and on properties that its map loses."""
    remarks = list(job.info.remarks)
    remedy = "" if call.gsd else "; --gsd auto shows it as in training"
    remarks += [line + remedy for line in other_scales(call.run, call.gsd or job.info.metres_per_pixel)]
    if job.output.suffix == ".png" and job.info.georeferenced:
        remarks.append("its georeference is lost in a PNG; --format geotiff keeps it")
    return remarks


_SAME = 0.01
"""Share by which an input's scale may differ from the wanted one without resampling."""
_MUCH = 2
"""Ratio of computed to mapped pixels from which a message is printed."""
_COARSER, _FINER = 256, 64
"""Times that a pixel may become larger or smaller; one of the grid is made of 256² at most."""


def lay_grids(call: Call, jobs: list[MapJob], failures: list[SegmenterError]) -> list[tuple[str, Path]]:
    """Set the grids of jobs; return a note on each input.

    Jobs of unknown scale, or of a scale too far from the wanted one, are moved to `failures`.

    Raises:
        DatasetError: the common grid of a mosaic is impossible.
    """
    metres = call.gsd
    if metres is None:
        return []
    notes: list[tuple[str, Path]] = []
    for job in list(jobs):
        of = job.info if job.mosaic is None else job.mosaic.first
        try:
            sides = _sides(of, call.scale_of, call.request.raster_gsd)
            job.grid = _grid(job, sides, metres, as_trained=call.request.gsd == "auto")
        except SegmenterError as error:
            if job.mosaic is not None:
                raise DatasetError("--mosaic", expected=f"one scale for all inputs; {error}") from None
            failures.append(error)
            jobs.remove(job)
            continue
        notes.append((_scale_line(sides, metres, job.grid), job.info.path))
    return notes


def cost(jobs: Sequence[MapJob]) -> str:
    """Return a line on grids much finer than their rasters, which cost time; empty if there are none."""
    finer = [
        (job.grid.over(job.part).size.pixels, job.part.size.pixels) for job in jobs if job.grid is not None
    ]
    computed, mapped = (sum(pixels) for pixels in zip(*finer, strict=True)) if finer else (0, 0)
    if computed < _MUCH * mapped or not mapped:
        return ""
    return (
        f"--gsd: the model computes {computed / 1e6:,.4g} Mpixel for {mapped / 1e6:,.4g} Mpixel of maps, "
        f"{computed / mapped:,.0f} times as many; a coarser --gsd, or a model that was trained at these "
        "inputs' scale, takes less"
    )


def groups(jobs: Sequence[MapJob]) -> Iterator[list[MapJob]]:
    """Yield groups of jobs computed together: those in their own pixels, and those on grids."""
    for resampled in (False, True):
        if group := [job for job in jobs if (job.grid is not None) == resampled]:
            yield group


def _grid(job: MapJob, sides: tuple[float, float], metres: float, *, as_trained: bool) -> ModelGrid | None:
    """Return a job's grid; None if its mean pixel size is the trained one (pixels may be oblong)."""
    high, wide = sides
    side = (high * wide) ** 0.5
    compared = (side,) if as_trained else sides
    if all(abs(one / metres - 1) <= _SAME for one in compared):
        return None
    if not 1 / _FINER <= metres / high <= _COARSER or not 1 / _FINER <= metres / wide <= _COARSER:
        raise RasterError(
            f"{job.info.path}: a pixel is {side:.3g} m, --gsd asks for {metres:.3g} m: expected at most "
            f"{_COARSER} times as much and at least 1/{_FINER} of it; is it in metres?"
        )
    extent = Window.of(job.info.size) if job.mosaic is None else job.mosaic.extent(job.info.path)
    return ModelGrid(extent, step_of(metres / high), step_of(metres / wide))


def _sides(info: RasterInfo, scale_of: GsdOf, stated: float | None) -> tuple[float, float]:
    """Return metres from row to row and column to column, by dataset, else raster, else call."""
    own, square = pixel_sides(info), info.metres_per_pixel
    counts = scale_of(info.path, square)
    if own is not None:
        times = counts / square if counts and square else 1.0
        return own[0] * times, own[1] * times
    if counts:
        return counts, counts
    if stated is None:
        raise RasterError(
            f"{info.path}: does not say how large its pixels are (no transform with a CRS in metres or "
            "degrees, or a latitude beyond the poles), --gsd needs it; give it with --raster-gsd METRES"
        )
    return stated, stated


def _scale_line(sides: tuple[float, float], metres: float, grid: ModelGrid | None) -> str:
    high, wide = (f"{side:.3g}" for side in sides)
    pixel = f"a pixel is {high} m" if high == wide else f"a pixel is {wide}×{high} m"
    if grid is None:
        mean = "" if high == wide else "in the mean "
        return f"{pixel}, {mean}within 1 % of {metres:.4g} m: not resampled"
    return f"{pixel}, resampled to {metres:.4g} m for the model"
