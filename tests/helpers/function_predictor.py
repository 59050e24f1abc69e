"""A plain function as the model of a prediction, and class ids of one open raster by it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window
from segmenter.inference.events import Failed, MappedWindow, Readable
from segmenter.inference.prediction import ExtraOutputs, Prediction, Predictor, Worker
from segmenter.inference.predictor import classify_all
from segmenter.inference.reading import Tiling
from tests.helpers.array_raster import ArrayJob

PredictBatch = Callable[[NDArray[Any], NDArray[np.bool_]], Prediction]
"""(B, H, W, C) pixels in the raster's own type and (B, H, W) valid → their prediction."""

WeighBatch = Callable[[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[Any]], NDArray[np.float32]]
"""The same with (B, H) and (B, W) weights → (B, H, W, K) weighted probabilities."""


@dataclass(frozen=True)
class FunctionPredictor:
    """A plain function as a `Predictor` of one device.

    Attributes:
        function: predicts whole windows.
        wanted: what it gives beside class ids.
        classes: K; 0 where no probabilities are wanted of it.
        weigh: gives weighted probabilities; None: it cannot be blended.
        at_once: batches that it takes at once; above 1, the function is called from as many threads.
    """

    function: PredictBatch
    wanted: ExtraOutputs = field(default_factory=ExtraOutputs)
    classes: int = 0
    weigh: WeighBatch | None = None
    at_once: int = 1

    @property
    def workers(self) -> Sequence[Worker]:
        """Itself."""
        return (self,)

    def __call__(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> Prediction:
        return self.function(image_BHWC, valid_BHW)

    def part(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_], box: Window) -> Prediction:
        """Predict as `Worker.part`; the function computes all of each window.

        Raises:
            ValueError: it gave ids of another shape or type.
        """
        found = self.function(image_BHWC, valid_BHW)
        if found.ids.shape != valid_BHW.shape or found.ids.dtype != np.uint8:
            got = f"{found.ids.shape} of {found.ids.dtype}"
            raise ValueError(f"predict gave {got} for windows of {valid_BHW.shape}")
        return found[:, *box.slices()]

    def weighted(
        self,
        image_BHWC: NDArray[Any],
        valid_BHW: NDArray[np.bool_],
        rows_BH: NDArray[np.float32],
        cols_BW: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Predict as `Worker.weighted`.

        Raises:
            ValueError: there is no function for it.
        """
        if self.weigh is None:
            raise ValueError("blending windows: expected a predictor with `weigh`, got one without")
        return self.weigh(image_BHWC, valid_BHW, rows_BH, cols_BW)


def classify(
    raster: Readable, part: Window, tiling: Tiling, predict: Predictor
) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
    """Yield class ids of a part of one open raster: windows in its coordinates, row by row.

    The raster is read in another thread: do not use it until the last window came.

    Raises:
        RasterError: where a window cannot be read.
    """
    for event in classify_all([ArrayJob(raster, part)], tiling, predict, readers=1):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, MappedWindow):
            yield event.window, event.ids
