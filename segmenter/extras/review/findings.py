"""Findings: cells whose labels the models contradict more than they usually do, costliest first.

Borders of classes are doubtful in every cell, and some pairs of classes are confused everywhere. The usual
contradiction of a pair (labelled c, likely k) is that of a pixel labelled c in the mean of all scenes, as the
thresholds of confident learning (Northcutt et al. 2021, arXiv:1911.00068) are means over all labels of a
class. The cost of a cell is the excess over it: pixels that are surely another class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.extras.review.cells import FULL, SURE
from segmenter.extras.review.held_out import Judged
from segmenter.extras.review.places import Place
from segmenter.grid.geometry import Window


@dataclass(frozen=True, eq=False)
class Finding:
    """A cell to look at.

    Attributes:
        window: its pixels.
        label, likely: the class whose label is contradicted most, and the one that the model sees there.
        sure: number of pixels that are surely another class, beyond the usual one.
        wrong: expected number of wrong pixels, of all pairs of classes.
        share: of the cell's labelled pixels that are likely another class.
    """

    of: Judged
    window: Window
    label: int
    likely: int
    sure: float
    wrong: float
    share: float

    @property
    def place(self) -> Place:
        """The square on the ground."""
        return Place(self.of.scene.name, self.of.info, self.window)


def usual_KK(all_judged: Sequence[Judged], classes: int) -> NDArray[np.float64]:
    """Return the mean sure contradiction of a pixel by label (row) and likely class (column), × `SURE`."""
    sure, pixels = np.zeros(classes**2), np.zeros(classes)
    for each in all_judged:
        sums = each.sums
        sure += np.bincount(sums.label_P * classes + sums.likely_P, sums.sure_P, classes**2)
        pixels += np.bincount(sums.label_P, sums.pixels_P, classes)
    return sure.reshape(classes, classes) / np.maximum(1, pixels)[:, None]


def findings(all_judged: Sequence[Judged], classes: int, most: int) -> list[Finding]:
    """Return the costliest cells of all scenes, at most `most`, in this order; ties in order of the scenes.

    Args:
        classes: number of classes K.
    """
    usual = usual_KK(all_judged, classes)
    ranked: list[tuple[float, Finding]] = []
    for each in all_judged:
        ranked += _of_scene(each, usual, most)
    ranked.sort(key=lambda item: (-item[0], item[1].of.scene.name, item[1].window.row, item[1].window.col))
    return [finding for _, finding in ranked[:most]]


def _of_scene(each: Judged, usual: NDArray[np.float64], most: int) -> list[tuple[float, Finding]]:
    """Return a scene's costliest cells with their costs, × `SURE`."""
    sums, K = each.sums, len(usual)
    if not len(sums.cell_P):
        return []
    cells, place_P = np.unique(sums.cell_P, return_inverse=True)
    labelled_BK = np.bincount(place_P * K + sums.label_P, sums.pixels_P, len(cells) * K).reshape(-1, K)
    expected_P = usual[sums.label_P, sums.likely_P] * labelled_BK[place_P, sums.label_P]
    beyond_P = np.maximum(sums.sure_P - expected_P, 0)
    cost_B = np.bincount(place_P, beyond_P, len(cells))
    wrong_B = np.bincount(place_P, sums.against_P, len(cells))
    other_B = np.bincount(place_P, sums.pixels_P * (sums.label_P != sums.likely_P), len(cells))
    found = []
    for place in np.argsort(-cost_B, kind="stable")[:most].tolist():
        if cost_B[place] <= 0:
            break
        of = np.flatnonzero(place_P == place)
        main = of[np.argmax(beyond_P[of])]
        finding = Finding(
            of=each,
            window=each.cells.window(int(cells[place])),
            label=int(sums.label_P[main]),
            likely=int(sums.likely_P[main]),
            sure=float(cost_B[place]) / SURE,
            wrong=float(wrong_B[place]) / FULL,
            share=float(other_B[place] / labelled_BK[place].sum()),
        )
        found.append((float(cost_B[place]), finding))
    return found
