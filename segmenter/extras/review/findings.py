"""Findings: neighbouring cells whose labels look wrong in the same way, costliest first.

The probability that a pixel labelled c is wrong follows by Bayes' rule from what the model sees there: its
likely class k and the level of the contradiction. It is π W / (π W + (1 − π) R), with R the share of (k,
level) among all pixels labelled c, W that among pixels of other labels, and π the share of wrong labels that
is expected beforehand. As in confident learning (Northcutt et al. 2021, arXiv:1911.00068), labels as a whole
tell what is usual of a class: classes that the model confuses everywhere contradict little, also if it is
sure of them. The cost of a cell is the sum over its contradicted pixels: how many are expected to be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from segmenter.extras.review.held_out import LEVELS, ScoredScene
from segmenter.extras.review.places import ReviewPlace
from segmenter.grid.geometry import Window

_WRONG = 0.01
"""π; between 0.002 and 0.02 the order hardly changed."""
_JOINED = 0.1
"""Share of a cell's labelled pixels that must be expected wrong for it to be joined with its neighbours."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LabelFinding:
    """Cells to look at, which touch each other.

    Attributes:
        cells: their windows, row by row.
        label, likely: the class whose label is contradicted most, and the one that the model sees there.
        wrong: expected number of wrong pixels.
        share: of the labelled pixels that are likely another class.
    """

    of: ScoredScene
    cells: tuple[Window, ...]
    label: int
    likely: int
    wrong: float
    share: float

    @property
    def window(self) -> Window:
        """The rectangle around all cells."""
        row, col = (min(getattr(each, name) for each in self.cells) for name in ("row", "col"))
        height = max(each.row_stop for each in self.cells) - row
        return Window(row, col, height, max(each.col_stop for each in self.cells) - col)

    @property
    def cells_text(self) -> str:
        """The cells as JSON, rows of row, column, height and width; `answers.finding_of` reads it."""
        return json.dumps([[each.row, each.col, each.height, each.width] for each in self.cells])

    @property
    def place(self) -> ReviewPlace:
        """The cells on the ground."""
        return ReviewPlace(self.of.scene.title, self.of.info, self.window, self.cells)


def wrong_KKL(all_judged: Sequence[ScoredScene], classes: int) -> Floats:
    """Return the probability that a pixel is wrong, by its label, likely class and level."""
    zero = np.zeros((classes, classes, LEVELS))
    right = sum((each.counts.usual_KKL for each in all_judged), zero)
    wrong = sum((each.counts.otherwise_KKL for each in all_judged), zero)
    right, wrong = (each / np.maximum(1, each.sum(axis=(1, 2), keepdims=True)) for each in (right, wrong))
    found: Floats = _WRONG * wrong / np.maximum(_WRONG * wrong + (1 - _WRONG) * right, 1e-12)
    return found


def findings(all_judged: Sequence[ScoredScene], classes: int, most: int) -> list[LabelFinding]:
    """Return the costliest findings of all scenes, at most `most`, in this order."""
    table = wrong_KKL(all_judged, classes)
    found = [finding for each in all_judged for finding in _of_scene(each, table, most)]
    found.sort(key=lambda each: (-each.wrong, each.of.scene.name, each.window.row, each.window.col))
    return found[:most]


def _of_scene(each: ScoredScene, table: Floats, most: int) -> Iterator[LabelFinding]:
    """Yield a scene's costliest findings."""
    counts, K = each.counts, len(table)
    wrong_P = counts.pixels_P * table[counts.label_P, counts.likely_P, counts.level_P]
    if not len(wrong_P):
        return
    cells_C, place_P = np.unique(counts.cell_P, return_inverse=True)
    wrong_C = np.bincount(place_P, wrong_P, len(cells_C)).astype(np.float64)
    pair_P = counts.label_P.astype(np.int64) * K + counts.likely_P
    pair_C = _largest(place_P * K**2 + pair_P, wrong_P, K**2)
    group_C = _join_cells(each, cells_C, pair_C, wrong_C)
    cost_G = np.bincount(group_C, wrong_C)
    other_G = np.bincount(group_C[place_P], counts.pixels_P)
    labelled_G = np.bincount(group_C, counts.labelled_B[cells_C])
    order_C = np.argsort(group_C, kind="stable")
    bounds = np.searchsorted(group_C[order_C], np.arange(len(cost_G) + 1))
    for group in np.argsort(-cost_G, kind="stable")[:most].tolist():
        own = order_C[bounds[group] : bounds[group + 1]]
        if cost_G[group] > 0:
            label, likely = divmod(int(pair_C[own[0]]), K)
            cells = tuple(each.cells.window(int(cell)) for cell in cells_C[own])
            share = float(other_G[group] / labelled_G[group])
            yield LabelFinding(each, cells, label, likely, float(cost_G[group]), share)


def _largest(key_P: NDArray[np.int64], wrong_P: Floats, pairs: int) -> NDArray[np.int64]:
    """Return the pair with the largest sum in each place; keys are place × `pairs` + pair."""
    keys, where_P = np.unique(key_P, return_inverse=True)
    place, pair = np.divmod(keys, pairs)
    order = np.lexsort((np.bincount(where_P, wrong_P, len(keys)), place))
    found: NDArray[np.int64] = pair[order][np.flatnonzero(np.diff(place[order], append=-1))]
    return found


def _join_cells(
    each: ScoredScene, cells_C: NDArray[np.int32], pair_C: NDArray[np.int64], wrong_C: Floats
) -> NDArray[np.int64]:
    """Return the number of each cell's finding: neighbours of one pair have the same, by their sides."""
    joins_C = wrong_C >= _JOINED * each.counts.labelled_B[cells_C]
    edges = []
    for step in (1, each.cells.across):
        beside_C = np.searchsorted(cells_C, cells_C + step) % len(cells_C)
        near_C = (cells_C[beside_C] == cells_C + step) & (pair_C[beside_C] == pair_C)
        if step == 1:
            near_C &= (cells_C + 1) % each.cells.across > 0
        edges.append(np.stack([np.arange(len(cells_C)), beside_C])[:, near_C & joins_C & joins_C[beside_C]])
    of, to = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(len(of)), (of, to)), shape=(len(cells_C), len(cells_C)))
    found: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return found
