"""Scale of the inputs: grids on which the model sees them, with `--gsd`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import DatasetError, RasterError, SegmenterError
from segmenter.grid.geometry import Window
from segmenter.grid.resampling import step_of
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.request.truth import GsdOf
from segmenter.raster import RasterInfo, pixel_sides
from segmenter.raster.resampled import ModelGrid

if TYPE_CHECKING:
    from segmenter.mapping.call import Call

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
        notes.append((_said(sides, metres, job.grid), job.info.path))
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
            f"{job.info.path}: a pixel is {side:.3g} m, --gsd asks for {metres:.3g} m",
            expected=f"at most {_COARSER} times as much and at least 1/{_FINER} of it",
            remedy="is it in metres?",
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
            info.path,
            "does not say how large its pixels are (no transform with a CRS in metres or degrees, or a "
            "latitude beyond the poles), --gsd needs it",
            remedy="give it with --raster-gsd METRES",
        )
    return stated, stated


def _said(sides: tuple[float, float], metres: float, grid: ModelGrid | None) -> str:
    high, wide = (f"{side:.3g}" for side in sides)
    pixel = f"a pixel is {high} m" if high == wide else f"a pixel is {wide}×{high} m"
    if grid is None:
        mean = "" if high == wide else "in the mean "
        return f"{pixel}, {mean}within 1 % of {metres:.4g} m: not resampled"
    return f"{pixel}, resampled to {metres:.4g} m for the model"
