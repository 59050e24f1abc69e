"""Committee: runs that predict together, with their disagreement as one more value a pixel.

Disagreement is the mutual information of the class and the run: the entropy of the mean probabilities minus
the mean of the runs' own entropies (query by committee; BALD, Houlsby et al. 2011, arXiv:1112.5745).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.inference.loading import load_predictor
from segmenter.inference.prediction import ExtraOutputs, Prediction, Predictor, Worker
from segmenter.runs.run import Run

WANTED = ExtraOutputs(probabilities="float16")


def entropy(probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the entropy over the last axis, as a share of the largest possible one, 0 … 1."""
    logarithms = np.log(np.maximum(probabilities, np.float32(1e-12)))
    found: NDArray[np.float32] = -(probabilities * logarithms).sum(axis=-1)
    return found / np.float32(np.log(max(2, probabilities.shape[-1])))


@dataclass(frozen=True)
class _Together:
    """The same device's models of all members, as one worker of K + 1 values."""

    members: Sequence[Worker]
    at_once: int = 1

    def part(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_], box: Window) -> Prediction:
        """Return mean probabilities and disagreement of one part of each window."""
        found = [member.part(image_BHWC, valid_BHW, box).probabilities for member in self.members]
        values = with_disagreement([np.asarray(each, np.float32) for each in found])
        return Prediction.of_probabilities(values, WANTED)

    def weighted(
        self,
        image_BHWC: NDArray[Any],
        valid_BHW: NDArray[np.bool_],
        rows_BH: NDArray[np.float32],
        cols_BW: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return the values of `part` for whole windows, multiplied by the weights of rows and columns."""
        whole = Window.of(Size(*valid_BHW.shape[1:]))
        values = self.part(image_BHWC, valid_BHW, whole).probabilities
        assert values is not None, "as wanted"
        return values.astype(np.float32) * (rows_BH[:, :, None] * cols_BW[:, None, :])[..., None]


def with_disagreement(members: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return (…, K + 1): the mean of the members' (…, K) probabilities, then their disagreement, 0 … 1."""
    mean: NDArray[np.float32] = np.mean(members, axis=0)
    own = np.mean([entropy(each) for each in members], axis=0)
    apart = np.maximum(entropy(mean) - own, 0)
    return np.concatenate([mean, apart[..., None]], axis=-1)


@dataclass(frozen=True)
class Committee:
    """Predictor of several runs; its probabilities have one more value, the disagreement."""

    workers: Sequence[Worker]
    classes: int
    wanted: ExtraOutputs = WANTED

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Predictor:
        """Load all runs, on every device."""
        loaded = [load_predictor(run, WANTED) for run in runs]
        devices = zip(*(each.workers for each in loaded), strict=True)
        return cls([_Together(members) for members in devices], len(runs[0].classes) + 1)

    def __call__(self, image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> Prediction:
        """Return the prediction of whole windows on the first device."""
        return self.workers[0].part(image_BHWC, valid_BHW, Window.of(Size(*valid_BHW.shape[1:])))
