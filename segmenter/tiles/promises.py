"""Promises of a plan to a block of tiles: classes, or classes at a scale, that some tile of it holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from segmenter.sampling import Plan
from segmenter.sampling.strata import tiles_of_parts
from segmenter.tiles.index import TileIndex

Bools = NDArray[np.bool_]


class Promises:
    """What a block of a batch has to hold, numbered 0 … P − 1; a tile holds a class at its scene's scale."""

    def __init__(self, plan: Plan, index: TileIndex) -> None:
        self._parts, self._index = plan.promises, index
        self.class_P = [part.class_id for part in self._parts]

    def __len__(self) -> int:
        return len(self._parts)

    def kept(self, held_BK: Bools, row_B: NDArray[np.int64]) -> Bools:
        """(B, P): which tile of a block keeps which promise; `held_BK`: the classes that each holds."""
        return np.asarray(held_BK[:, self.class_P] & self._may(row_B))

    def broken(self, held_BK: Bools, row_B: NDArray[np.int64]) -> list[int]:
        """Promises that no tile of a block keeps."""
        return [int(p) for p in np.flatnonzero(~self.kept(held_BK, row_B).any(axis=0))]

    def place_for(self, promise: int, row_B: NDArray[np.int64]) -> int:
        """The place of the tile that shows most of what is promised: the likeliest to keep it."""
        counts_B = self._index.counts_NK[row_B, self.class_P[promise]]
        return int(np.argmax(np.where(self._may(row_B)[:, promise], counts_B, -1)))

    def _may(self, row_B: NDArray[np.int64]) -> Bools:
        """(B, P): whether a tile's scale is the promised one."""
        if self._index.strata is None:
            return np.ones((len(row_B), len(self._parts)), bool)
        return tiles_of_parts(self._parts, self._index.strata.number_N[row_B])
