"""Sets of classes that hold the right one as often as promised: conformal risk control.

Angelopoulos, Bates, Fisch, Lei and Schuster 2022 (arXiv:2208.02814), section 2: of a loss of at most 1 that
falls as sets grow, the smallest sets with (n · mean loss + 1) / (n + 1) ≤ α over n blocks that no fit saw
have an expected loss of at most α in a further block, if the blocks are exchangeable. Here each class has a
loss and a threshold of its own: the loss of a block is the share of the class's pixels whose set lacks it. A
set holds each class whose probability reaches its threshold, and the most likely class always.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PROMISES = (0.8, 0.9, 0.95)
"""Shares of each class's pixels whose set holds the class."""
MOST_CLASSES = 64
"""Bits of a pixel."""
_ROUNDING = 1e-12
STEPS = 256
"""Thresholds that are tried, (i / STEPS)⁴: fine where they are small."""


@dataclass(frozen=True)
class SetThresholds:
    """Thresholds of one promise.

    Attributes:
        promise: 1 − α.
        each_K: threshold of each class; 0: it is in every set.
        few: classes with too few blocks for the promise, which are in every set.
    """

    promise: float
    each_K: tuple[float, ...]
    few: tuple[int, ...] = ()

    def members(
        self, probability_NK: NDArray[np.floating], likely_N: NDArray[np.integer]
    ) -> NDArray[np.bool_]:
        """Return which classes are in each pixel's set (N, K).

        Args:
            probability_NK: the model's own probabilities, of which the thresholds are.
            likely_N: a class that is in any case: the mapped one.
        """
        member_NK = probability_NK >= np.array(self.each_K, probability_NK.dtype)
        rows = np.arange(len(likely_N))
        member_NK[rows, likely_N] = True
        member_NK[rows, probability_NK.argmax(axis=1)] = True
        return member_NK


class BlockLosses:
    """Losses of square blocks of scenes under each threshold, summed by class.

    Attributes:
        side: pixels along a block.
        blocks_K: number of blocks that show each class.
    """

    def __init__(self, side: int, classes: int) -> None:
        self.side, self._classes = side, classes
        self.blocks_K = np.zeros(classes, np.int64)
        self._losses_KT = np.zeros((classes, STEPS + 1))
        self._counts = np.min_scalar_type(side**2)  # all blocks of a scene are open at once
        self._open: dict[int, dict[tuple[int, int, int], NDArray[np.unsignedinteger]]] = {}

    def add(
        self,
        scene: int,
        row_N: NDArray[np.integer],
        col_N: NDArray[np.integer],
        label_N: NDArray[np.integer],
        probability_NK: NDArray[np.floating],
    ) -> None:
        """Add labelled pixels of a scene with the model's own probabilities."""
        if not len(label_N):
            return
        down, across = row_N // self.side, col_N // self.side
        width = int(across.max()) + 1
        pair_N = (down * width + across).astype(np.int64) * self._classes + label_N
        pair_P, inverse_N = np.unique(pair_N, return_inverse=True)  # a block with a class that it shows
        own_N = np.take_along_axis(probability_NK, label_N[:, None].astype(np.intp), axis=1)[:, 0]
        level_N = np.minimum(np.floor(np.sqrt(np.sqrt(own_N)) * STEPS), STEPS).astype(np.int64)
        level_N[probability_NK.argmax(axis=1) == label_N] = STEPS  # in any case
        cell_N = inverse_N * (STEPS + 1) + level_N
        counts = np.bincount(cell_N, minlength=len(pair_P) * (STEPS + 1)).astype(self._counts)
        known = self._open.setdefault(scene, {})
        for pair, each_L in zip(pair_P.tolist(), counts.reshape(len(pair_P), -1), strict=True):
            place, class_id = divmod(pair, self._classes)
            key = *divmod(place, width), class_id
            known[key] = known[key] + each_L if key in known else each_L.copy()

    def finish(self, scene: int) -> None:
        """Count the blocks of a scene, all of whose pixels were added."""
        for (_, _, class_id), levels_L in self._open.pop(scene, {}).items():
            lacking_T = np.cumsum(levels_L) - levels_L  # below level i: the set at i lacks the class
            self._losses_KT[class_id] += lacking_T / levels_L.sum()
            self.blocks_K[class_id] += 1

    def thresholds(self, promise: float) -> SetThresholds:
        """Return each class's largest threshold that keeps the promise."""
        return thresholds_of(self._losses_KT, self.blocks_K, promise)


def thresholds_of(
    losses_KT: NDArray[np.float64], blocks_K: NDArray[np.integer], promise: float
) -> SetThresholds:
    """Return thresholds from the sums of the losses (K, STEPS + 1) over the blocks of each class."""
    bound_KT = (losses_KT + 1) / (blocks_K[:, None] + 1)
    kept_KT = bound_KT <= 1 - promise + _ROUNDING
    few = tuple(k for k, number in enumerate(blocks_K) if has_few(int(number), promise))
    index_K = np.maximum(kept_KT.sum(axis=1) - 1, 0)  # losses rise with the threshold
    return SetThresholds(promise, tuple(((index_K / STEPS) ** 4).tolist()), few)


def has_few(blocks: int, promise: float) -> bool:
    """Return whether so few blocks keep a promise by no threshold at all."""
    return 1 / (blocks + 1) > 1 - promise + _ROUNDING


def bits(member_NK: NDArray[np.bool_]) -> NDArray[np.unsignedinteger]:
    """Return sets as numbers of the least type that holds them: bit k is class k."""
    kind = bits_dtype(member_NK.shape[-1])
    found = np.zeros(member_NK.shape[:-1], kind)
    for k in range(member_NK.shape[-1]):
        found |= member_NK[..., k].astype(kind) << kind.type(k)
    return found


def bits_dtype(classes: int) -> np.dtype[np.unsignedinteger]:
    """Return the least unsigned type with a bit for each class, at most `MOST_CLASSES`."""
    return np.dtype(next(f"uint{width}" for width in (8, 16, 32, 64) if classes <= width))
