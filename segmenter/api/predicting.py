"""Predictions for arrays, with the same steps as for maps of raster files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import RasterError, SegmenterError
from segmenter.grid.geometry import Window
from segmenter.inference.events import Failed, MappedWindow
from segmenter.inference.loading import load_predictor
from segmenter.inference.prediction import Prediction
from segmenter.inference.predictor import classify_all
from segmenter.mapping.call import Call, precision_of, tiling_for
from segmenter.mapping.jobs import MapJob, RasterRequest
from segmenter.mapping.outputs.finished import known_probabilities
from segmenter.mapping.outputs.writing import OwnPixels
from segmenter.mapping.plan import lay_grids
from segmenter.mapping.request.map_request import MapRequest
from segmenter.raster.in_memory import ArrayRaster
from segmenter.runs.ensemble import AnyRun

Probabilities = bool | Literal["uint8", "float16"]


@dataclass(frozen=True)
class _ArrayRequest(RasterRequest):
    """A request whose raster is in memory."""

    raster: ArrayRaster | None = None

    def open(self, path: Path) -> Any:
        """Return the raster."""
        return self.raster


def predict_arrays(
    run: AnyRun, rasters: Sequence[ArrayRaster], request: MapRequest, out: NDArray[Any], *, progress: bool
) -> None:
    """Predict each raster into `out`; other memory depends on the windows, as for files.

    Args:
        request: provides computing options and the requested probabilities.
        out: (B, H, W) class ids, or (B, H, W, K) probabilities, in the order of the rasters.

    Raises:
        SegmenterError: an option is invalid, or a device lacks memory.
    """
    call = Call.of(request, run)
    jobs = [_job(run, raster, number) for number, raster in enumerate(rasters)]
    failures: list[SegmenterError] = []
    lay_grids(call, jobs, failures)
    if failures:
        raise failures[0]
    tiling = tiling_for(call, jobs)
    precision = precision_of(run, request.precision)
    predict = load_predictor(call.run, call.extra_outputs(jobs), request.tta, precision)
    for job in jobs:
        job.set_column(tiling.column)
    places = {id(job): (OwnPixels(job, call.style), out[number]) for number, job in enumerate(jobs)}
    total = sum(job.part.size.pixels for job in jobs)
    with (
        contextlib.closing(classify_all(jobs, tiling, predict)) as events,
        Bar(total=total, desc="maps", unit="pixel", unit_scale=True, shown=progress) as bar,
    ):
        for event in events:
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, MappedWindow):
                own, array = places[id(event.job)]
                for window, prediction in own.of(event.window, event.prediction):
                    array[window.slices()] = _asked_of(prediction)
                    bar.update(window.size.pixels)


def _job(run: AnyRun, raster: ArrayRaster, number: int) -> MapJob:
    name = f"image {number}" if number else "image"
    asked = _ArrayRequest(None, run.band_count, raster=raster)
    return MapJob(asked, raster.info, Window.of(raster.info.size), name, Path(name))


def _asked_of(found: Prediction) -> NDArray[Any]:
    return found.ids if found.probabilities is None else known_probabilities(found)


def result_array(
    shape: tuple[int, ...], classes: int, probabilities: Probabilities, out: NDArray[Any] | None
) -> NDArray[Any]:
    """Return an array for the prediction: `out` if given, else a new one.

    Raises:
        RasterError: `out` has another shape or type.
    """
    wanted = (*shape, classes) if probabilities else shape
    dtype = np.dtype(
        probabilities if isinstance(probabilities, str) else "float32" if probabilities else "uint8"
    )
    if out is None:
        return np.empty(wanted, dtype)
    if not isinstance(out, np.ndarray) or not out.flags.writeable:
        what = "one that is read only" if isinstance(out, np.ndarray) else f"{out!r}"
        raise RasterError("out", expected="an array that can be written", got=what)
    if out.shape != wanted or out.dtype != dtype:
        raise RasterError(
            "out", expected=f"an array of {wanted} of {dtype}", got=f"{out.shape} of {out.dtype}"
        )
    return out
