"""Predictions for pixels as arrays, and the protocol of functions that return them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE

_PIXELS_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class ExtraOutputs:
    """Outputs of the model besides class ids.

    Attributes:
        confidence: return the largest probability.
        probabilities: type of the probabilities of all classes; None: not returned.
    """

    confidence: bool = False
    probabilities: Literal["uint8", "float16", "float32"] | None = None

    def pixel_bytes(self, classes: int) -> int:
        """Return the bytes of a pixel's prediction, including its class id."""
        each = {None: 0, "uint8": 1, "float16": 2, "float32": 4}[self.probabilities]
        return 1 + self.confidence + each * classes


@dataclass(frozen=True, eq=False)
class Prediction:
    """The model's result for a batch of windows, or (without the leading axis) for one window.

    Attributes:
        ids: (B, H, W) class ids; `IGNORE` where there is no data.
        confidence: (B, H, W) uint8, the largest probability × 255, rounded; 0 without data; None: not
            requested.
        probabilities: (B, H, W, K) in the requested type (uint8: × 255, rounded); 0 without data; or None.
    """

    ids: NDArray[np.uint8]
    confidence: NDArray[np.uint8] | None = None
    probabilities: NDArray[Any] | None = None

    def __getitem__(self, where: Any) -> Prediction:
        """Return the same part of all arrays; `where` indexes the axes before K."""
        confidence = None if self.confidence is None else self.confidence[where]
        probabilities = None if self.probabilities is None else self.probabilities[where]
        return Prediction(self.ids[where], confidence, probabilities)

    @classmethod
    def blank(cls, size: Size, wanted: ExtraOutputs, classes: int) -> Prediction:
        """Return the prediction of a window without data."""
        shape = (size.height, size.width)
        confidence = np.zeros(shape, np.uint8) if wanted.confidence else None
        kind = wanted.probabilities
        probabilities = None if kind is None else np.zeros((*shape, classes), kind)
        return cls(np.full(shape, IGNORE, np.uint8), confidence, probabilities)

    def masked(self, valid: NDArray[np.bool_]) -> Prediction:
        """Return the prediction with values removed where there is no data."""
        if valid.all():
            return self
        confidence, probabilities = self.confidence, self.probabilities
        return Prediction(
            np.where(valid, self.ids, np.uint8(IGNORE)),
            None if confidence is None else np.where(valid, confidence, np.uint8(0)),
            None
            if probabilities is None
            else np.where(valid[..., None], probabilities, 0).astype(probabilities.dtype),
        )

    @classmethod
    def of_probabilities(cls, probabilities_HWK: NDArray[np.float32], wanted: ExtraOutputs) -> Prediction:
        """Make a prediction from probabilities: the class of the largest, and the outputs in `wanted`."""
        ids_HW, largest_HW = _largest(probabilities_HWK)
        confidence_HW = as_bytes(largest_HW) if wanted.confidence else None
        if wanted.probabilities is None:
            return cls(ids_HW, confidence_HW)
        whole = wanted.probabilities == "uint8"
        return cls(
            ids_HW,
            confidence_HW,
            as_bytes(probabilities_HWK) if whole else probabilities_HWK.astype(wanted.probabilities),
        )


def _largest(values_HWK: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the index of each pixel's largest value (ties: the first), and that value.

    Computed class by class over as many pixels as fit the cache: a quarter of the time of `argmax`, which
    works pixel by pixel.
    """
    flat = values_HWK.reshape(-1, values_HWK.shape[-1])
    ids, largest = np.zeros(len(flat), np.uint8), np.empty(len(flat), np.float32)
    for start in range(0, len(flat), _PIXELS_AT_ONCE):
        part = slice(start, start + _PIXELS_AT_ONCE)
        values_KN = np.ascontiguousarray(flat[part].T)
        largest[part] = values_KN[0]
        for k, values in enumerate(values_KN[1:], start=1):
            larger = values > largest[part]
            np.maximum(ids[part], larger.view(np.uint8) * np.uint8(k), out=ids[part])
            np.maximum(largest[part], values, out=largest[part])
    shape = values_HWK.shape[:-1]
    return ids.reshape(shape), largest.reshape(shape)


def as_bytes(probability: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return probability × 255, rounded; at most 255, even if rounding brings a sum above 1."""
    scaled = np.rint(probability * np.float32(255))
    return np.minimum(scaled, 255, out=scaled).astype(np.uint8)


class Worker(Protocol):
    """Interface of one device's model."""

    @property
    def at_once(self) -> int:
        """Number of batches that it takes at once, in as many threads: copying overlaps computing."""

    def part(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_], box: Window) -> Prediction:
        """Return the prediction of one part of each window, (B, box height, box width).

        Args:
            image_BHWC: pixels in the raster's own type.
            valid_BHW: mask of pixels with data.
        """

    def weighted(
        self,
        image_BHWC: NDArray[Any],
        valid_BHW: NDArray[np.bool_],
        rows_BH: NDArray[np.float32],
        cols_BW: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return (B, H, W, K) probabilities × the weights of each window's rows and columns."""


class Predictor(Protocol):
    """A model as prediction takes it: see `loading.load_predictor`."""

    @property
    def wanted(self) -> ExtraOutputs:
        """Outputs besides class ids."""

    @property
    def classes(self) -> int:
        """Number of classes K; 0 if no probabilities are requested."""

    @property
    def workers(self) -> Sequence[Worker]:
        """One worker for each device; batches go to all of them at once."""

    def __call__(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> Prediction:
        """Return the prediction of whole windows."""
