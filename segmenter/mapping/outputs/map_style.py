"""Style of a call's maps: which files are written, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segmenter.inference.prediction import ExtraOutputs
from segmenter.mapping.gsd import scale_text
from segmenter.mapping.outputs.codes import codes_of
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.mapping.request.map_request import MapRequest

if TYPE_CHECKING:
    from segmenter.runs.ensemble import AnyRun


def map_style(request: MapRequest, run: AnyRun) -> MapStyle:
    """The style that a request asks for, of the run's classes.

    Raises:
        DatasetError, RasterError: codes or a value without data that do not fit the classes.
    """
    return MapStyle(
        classes=run.classes,
        folder=request.output,
        format=request.format,
        nodata=request.nodata,
        codes=None if request.codes is None else codes_of(request.codes, run.classes),
        codes_by_default=run.recipe.dataset.maps_hold_codes,
        tags={"RUN": run.recipe.name},
        scale=scale_text(request, run),
        wanted=ExtraOutputs(confidence=request.confidence, probabilities=request.probabilities),
        cog=request.cog,
        quicklook=request.quicklook,
        styles=request.styles,
    )
