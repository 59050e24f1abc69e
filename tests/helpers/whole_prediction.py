"""The windows of a blended prediction, joined to a whole."""

from typing import Any

import numpy as np

from segmenter.grid.geometry import Window
from segmenter.inference.prediction import Prediction
from segmenter.inference.predictor import Mapped, classify_all
from segmenter.inference.reading import Tiling
from tests.helpers.array_raster import ArrayJob


def blended(
    raster: Any, tiling: Tiling, predict: Any, part: Window | None = None, done: int = 0
) -> Prediction:
    """The whole prediction; every pixel comes once, row by row, in windows of the part's full width."""
    part = part or Window.of(raster.info.size)
    pieces, row = [], part.row + done
    for event in classify_all([ArrayJob(raster, part, done_rows=done)], tiling, predict):
        if isinstance(event, Mapped):
            assert event.window == Window(row, part.col, event.window.height, part.width)
            row = event.window.row_stop
            pieces.append(event.prediction)
    assert row == part.row_stop
    join = lambda name: np.concatenate([getattr(p, name) for p in pieces])  # noqa: E731
    return Prediction(join("ids"), join("confidence"), join("probabilities"))
