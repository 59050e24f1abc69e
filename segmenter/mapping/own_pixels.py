"""Predictions on a raster's own pixels, whichever the model saw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from segmenter.geometry import Window
from segmenter.inference.prediction import Prediction
from segmenter.inference.regridding import Regridder
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs import MapStyle
from segmenter.raster import Raster
from segmenter.raster.resampled import GridColumns


class OwnPixels:
    """The windows of one job as they come, brought back from the job's grid where it has one.

    Which of the raster's own pixels have data is read from it a second time, unless its header says that all
    have: from the part that is just being written, a column at a time.
    """

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self._job, self._raster = job, None if job.grid is None else job.request.open(job.info.path)
        self._regridder: Regridder | None = None
        if isinstance(columns := job.columns, GridColumns):
            self._regridder = Regridder(columns, style.wanted, len(style.classes), self._valid)

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

    def _valid(self, window: Window) -> NDArray[np.bool_]:
        raster = self._raster
        assert raster is not None
        if _all_data(raster):
            return np.ones((window.height, window.width), np.bool_)
        if raster.empty(window):
            return np.zeros((window.height, window.width), np.bool_)
        return raster.read(window)[1]


def _all_data(raster: Raster) -> bool:
    """Whether nothing is to be found out: no nodata value, no mask, no floats."""
    return not raster.may_have_nodata and all(value is None for value in raster.info.nodata)
