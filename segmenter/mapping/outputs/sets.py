"""Prediction sets of a map: a file with a bit for each class, and how many classes its pixels may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError
from segmenter.evaluation.calibration import Calibration
from segmenter.evaluation.prediction_sets import MOST_CLASSES, SetThresholds, bits, bits_dtype
from segmenter.grid.labels import IGNORE
from segmenter.inference.prediction import Prediction
from segmenter.runs.ensemble import Ensemble
from segmenter.runs.set_file import load_sets

if TYPE_CHECKING:
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.runs.ensemble import AnyRun
    from segmenter.runs.run import Run

ENDING = ".sets.tif"
_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class PixelSets:
    """Sets of the classes that pixels may have.

    Attributes:
        thresholds: of the model's own probabilities.
        calibration: calibration of the predictions, which is undone; None: they are the model's own.
    """

    thresholds: SetThresholds
    calibration: Calibration | None

    @property
    def dtype(self) -> str:
        """Type of the file."""
        return bits_dtype(len(self.thresholds.each_K)).name

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel in the file."""
        return np.dtype(self.dtype).itemsize

    def of(self, prediction: Prediction) -> NDArray[np.unsignedinteger]:
        """Return the sets of a window (H, W); 0 without data."""
        assert prediction.probabilities is not None, "as wanted"
        values_NK = prediction.probabilities.reshape(-1, prediction.probabilities.shape[-1])
        ids_N = prediction.ids.reshape(-1)
        found_N = np.zeros(len(ids_N), self.dtype)
        for start in range(0, len(ids_N), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            seen = np.flatnonzero(ids_N[part] != IGNORE)
            found_N[part][seen] = bits(self.members(values_NK[part][seen], ids_N[part][seen]))
        return found_N.reshape(prediction.ids.shape)

    def members(self, probability_NK: NDArray[np.floating], ids_N: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which classes are in the sets of pixels (N, K), from predicted probabilities and ids."""
        if self.calibration is not None:
            probability_NK = self.calibration.undone(probability_NK)
        return self.thresholds.members(probability_NK, ids_N)


def sets_of(request: MapRequest, run: AnyRun) -> PixelSets | None:
    """Return the sets that a call writes; None: it writes none.

    Raises:
        ConfigError: the promise would not be that of the run's validation.
        CheckpointError: the run has no thresholds for these weights.
    """
    if request.sets is None:
        return None
    if isinstance(run, Ensemble):
        raise ConfigError("--sets", expected="one run, whose validation gave the thresholds", got="several")
    if request.tta != "none":
        raise ConfigError("--sets", expected="--tta none, as validation had", got=request.tta)
    if request.gsd is not None:
        raise ConfigError("--sets", expected="no --gsd, as validation had none", got=request.gsd)
    return load_pixel_sets(run, float(request.sets))


def load_pixel_sets(run: Run, promise: float) -> PixelSets:
    """Load the sets of a run for a promise.

    Raises:
        ConfigError: it has more classes than a set has bits.
        CheckpointError: it has no thresholds for these weights.
    """
    if len(run.classes) > MOST_CLASSES:
        raise ConfigError("--sets", expected=f"at most {MOST_CLASSES} classes", got=len(run.classes))
    return PixelSets(load_sets(run, promise), run.calibration())


def sizes_of(sets: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """Return (65,): the pixels whose sets have 0, 1, 2, … classes."""
    return np.bincount(np.bitwise_count(sets).reshape(-1), minlength=MOST_CLASSES + 1)


def describe_sets(thresholds: SetThresholds, names: list[str], sizes: NDArray[np.int64]) -> str:
    """Return a line on how many pixels of maps may have one class, two or more, from `sizes_of`."""
    seen = max(1, int(sizes[1:].sum()))
    one, two, more = (int(n) / seen for n in (sizes[1], sizes[2], sizes[3:].sum()))
    line = (
        f"sets that hold the right class of {thresholds.promise:.0%} of each class's pixels: one class "
        f"at {one:.1%} of the pixels, two at {two:.1%}, more at {more:.1%}"
    )
    if few := [names[k] for k in thresholds.few]:
        line += f"; in every set, as too few blocks of the validation show it: {', '.join(few)}"
    return line
