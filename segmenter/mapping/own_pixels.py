"""Predictions on a raster's own pixels, whichever the model saw."""

from __future__ import annotations

from collections.abc import Iterator

from segmenter.grid.geometry import Window
from segmenter.inference.prediction import Prediction
from segmenter.inference.regridding import Regridder
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.raster.resampled import GridColumns
from segmenter.raster.valid_rows import ValidRows


class OwnPixels:
    """The windows of one job as they come, brought back from the job's grid where it has one.

    Which of the raster's own pixels have data is read from it a second time, unless its header says that all
    have: from the part that is just being written, a column at a time.
    """

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self._job, self._raster = job, None if job.grid is None else job.request.open(job.info.path)
        self._regridder: Regridder | None = None
        if isinstance(columns := job.columns, GridColumns):
            valid = ValidRows(self._raster).of
            self._regridder = Regridder(columns, style.wanted, len(style.classes), valid)

    def of(self, window: Window, prediction: Prediction) -> Iterator[tuple[Window, Prediction]]:
        """What is complete with the next window.

        Raises:
            RasterError: the raster cannot be read again.
        """
        if self._regridder is None:
            yield window, prediction
        else:
            yield from self._regridder.take(window, prediction)

    def close(self) -> None:
        """Close the raster; the job keeps what is to be said of it."""
        raster, self._raster = self._raster, None
        if raster is not None:
            self._job.remark = raster.partial_remark
            raster.close()
