"""Places in images without labels where the next label teaches most.

The score of a cell is its doubt (entropy of the mean probabilities, or the share of the other classes that
are in its pixels' prediction sets) plus the disagreement of the folds, times
the weight of the classes that the models see there: 1 / √ of a class's share of the training tiles, 1 in the
mean of these tiles. Places are taken greedily by score, at least a distance apart in one image.

Disagreement of a committee of runs is the mutual information of the class and the run: the entropy of the
mean probabilities minus the mean of the runs' own entropies (query by committee; BALD, Houlsby et al. 2011,
arXiv:1112.5745).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import ConfigError
from segmenter.base.files import shortest_ends
from segmenter.base.terminal import warn
from segmenter.extras.review.held_out import tiling_of
from segmenter.extras.review.places import ReviewPlace
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Layout
from segmenter.inference.events import Failed, Finished, MappedWindow
from segmenter.inference.fit import check_fit, other_scales
from segmenter.inference.loading import load_predictor
from segmenter.inference.prediction import ExtraOutputs, Prediction, Predictor, Worker
from segmenter.inference.predictor import classify_all
from segmenter.mapping.jobs import RasterRequest
from segmenter.mapping.outputs.sets import PixelSets, load_pixel_sets
from segmenter.mapping.request.truth import shown_images
from segmenter.raster import Raster, RasterInfo
from segmenter.runs.ensemble import AnyRun, join_runs
from segmenter.runs.records import load_origin
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


_LEAST_SHARE = 1e-4
"""Share of a class that no training tile holds."""
_NAMED, _MUCH = 3, 0.1
"""Classes that are named of a place: at most, and the least share of it."""


@dataclass(frozen=True, eq=False)
class PlaceToLabel:
    """A place to label.

    Attributes:
        score, doubt, disagreement: as in this module's docstring, means over the cell.
        likely: the classes that the models see there, the most frequent first.
    """

    place: ReviewPlace
    score: float
    doubt: float
    disagreement: float
    likely: tuple[int, ...]


@dataclass(eq=False)
class _ImageJob:
    """An image to be mapped; see `inference.events.Job`."""

    run: AnyRun
    path: Path
    name: str
    side: int
    insist: bool
    sets: PixelSets | None = None
    part: None = None
    columns: None = None
    done_rows: int = 0
    abandoned: bool = False
    info: RasterInfo | None = None
    sums_BV: NDArray[np.float64] | None = None

    def open(self) -> AbstractContextManager[Raster]:
        run = self.run
        raster = RasterRequest(run.bands, run.band_count, mean_C=run.mean_C).open(self.path)
        self.info = raster.info
        fit = check_fit(self.run, raster, raster.extent, insist=self.insist)
        for line in (*fit, *other_scales(self.run, self.info.metres_per_pixel)):
            warn(f"{self.path}: {line}")
        return raster

    def cells(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of cells."""
        assert self.info is not None, "opened"
        size = self.info.size
        return -(-size.height // self.side), -(-size.width // self.side)

    def add(self, event: MappedWindow[_ImageJob]) -> None:
        """Add a window's pixels to the sums of the cells: pixels, doubt, disagreement, probabilities."""
        probabilities = event.prediction.probabilities
        assert probabilities is not None, "as wanted"
        down, across = self.cells()
        if self.sums_BV is None:
            self.sums_BV = np.zeros((down * across, probabilities.shape[-1] + 2))
        seen = event.ids != IGNORE
        rows, cols = (
            np.arange(start, start + length) // self.side
            for start, length in (
                (event.window.row, event.window.height),
                (event.window.col, event.window.width),
            )
        )
        cell = (rows[:, None] * across + cols)[seen]
        values = probabilities[seen]
        # float16 holds multiples of 2⁻²⁴: their sums are exact, in any order of the windows.
        doubt = self._doubt(values[:, :-1].astype(np.float32), event.ids[seen]).astype(np.float16)
        first, last = (int(cell.min()), int(cell.max()) + 1) if len(cell) else (0, 0)
        sums = partial(np.bincount, cell - first, minlength=last - first)
        each = [np.ones(len(cell)), doubt, values[:, -1], *values[:, :-1].T]
        self.sums_BV[first:last] += np.stack([sums(weights=value) for value in each], axis=1)

    def _doubt(self, probability_NK: NDArray[np.float32], ids_N: NDArray[np.integer]) -> NDArray[np.float32]:
        if self.sets is None:
            return entropy(probability_NK)
        further_N = self.sets.members(probability_NK, ids_N).sum(axis=1, dtype=np.float32) - 1
        return further_N / np.float32(max(1, probability_NK.shape[1] - 1))


def class_weights(runs: Sequence[Run]) -> NDArray[np.float64]:
    """Return the weight of each class: 1 / √ of its share of the training tiles, 1 in their mean."""
    names = runs[0].classes.names
    origins = [load_origin(run.path) for run in runs]
    pixels = np.array([sum(o.pixels.get(name, 0) for o in origins if o) for name in names], np.float64)
    if not pixels.sum():
        warn(f"{runs[0].path}: does not say how many pixels each class has; all classes weigh the same")
        return np.ones(len(names))
    return weights_of(pixels)


def weights_of(pixels_K: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 / √ of the classes' shares of these pixels, divided by their mean over the pixels."""
    shares = pixels_K / pixels_K.sum()
    weights = 1 / np.sqrt(np.maximum(shares, _LEAST_SHARE))
    found: NDArray[np.float64] = weights / (shares * weights).sum()
    return found


def scores(means_BV: NDArray[np.float64], weights_K: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much a label of each cell teaches.

    Args:
        means_BV: of each cell: its share of pixels with data, then sums over these pixels of doubt,
            disagreement and the K probabilities, all divided by the pixels of a whole cell.
    """
    found: NDArray[np.float64] = (means_BV[:, 1] + means_BV[:, 2]) * (means_BV[:, 3:] @ weights_K)
    return found / np.maximum(means_BV[:, 0], 1e-9)


def spots(
    runs: Sequence[Run],
    images: Sequence[str],
    side: int,
    points: int,
    apart: int,
    *,
    layout: Layout | None = None,
    insist: bool = False,
    promise: float | None = None,
) -> list[PlaceToLabel]:
    """Return the places where a label teaches most, the first teaches most.

    Args:
        side: of a cell in pixels.
        apart: least distance of two places of one image in pixels.
        layout: layout of the runs' dataset, which says which files are bands of a scene.
        insist: take images of another type or unit than in training.
        promise: of the prediction sets by which pixels doubt; None: by their entropy.

    Raises:
        ConfigError: sets are of one run, and there are several.
        CheckpointError: the run has no sets for its weights.
        DatasetError: an input matches no image.
        RasterError: an image cannot be read, or does not fit the runs.
    """
    run, weights_K = join_runs(runs), class_weights(runs)
    sets = None if promise is None else _sets(runs, promise)
    _, shown = shown_images(images, layout)
    predict = Committee.of(runs)
    found: list[PlaceToLabel] = []
    with Bar(total=len(shown), unit="image", desc="images") as bar:
        jobs = (
            _ImageJob(run, path, name, side, insist, sets)
            for path, name in zip(shown, shortest_ends([name for name, _ in shown.values()]), strict=True)
        )
        for event in classify_all(jobs, tiling_of(run, predict), predict):
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, MappedWindow):
                event.job.add(event)
            elif isinstance(event, Finished):
                bar.update()
                found = _best([*found, *_of_image(event.job, weights_K, points, apart)], points)
    return found


def _sets(runs: Sequence[Run], promise: float) -> PixelSets:
    if len(runs) > 1:
        expected = "one run, whose validation gave the thresholds"
        raise ConfigError("--sets", expected=expected, got=f"{len(runs)} folds")
    return load_pixel_sets(runs[0], promise)


def _best(found: Iterable[PlaceToLabel], points: int) -> list[PlaceToLabel]:
    def order(spot: PlaceToLabel) -> tuple[float, str, int, int]:
        return -spot.score, spot.place.name, spot.place.window.row, spot.place.window.col

    return sorted(found, key=order)[:points]


def _of_image(
    job: _ImageJob, weights_K: NDArray[np.float64], points: int, apart: int
) -> Iterator[PlaceToLabel]:
    """Yield an image's best places, at least `apart` pixels from each other."""
    if job.sums_BV is None or job.info is None:
        return
    sums = job.sums_BV / job.side**2  # a smaller cell, or one with less data, teaches less
    teaching_B = scores(sums, weights_K)
    for cell in spread(teaching_B, job.cells()[1], points, apart / job.side):
        doubt, disagreement, *shares = (sums[cell, 1:] / max(sums[cell, 0], 1e-9)).tolist()
        likely = [
            k for k in np.argsort(-np.array(shares), kind="stable")[:_NAMED].tolist() if shares[k] > _MUCH
        ]
        place = ReviewPlace(job.name, job.info, _window(cell, job.info.size, job.side))
        yield PlaceToLabel(place, float(teaching_B[cell]), doubt, disagreement, tuple(likely))


def spread(score_B: NDArray[np.float64], across: int, count: int, apart: float) -> list[int]:
    """Return cells by score, each at least a distance from those before it; cells of score 0 are none.

    Args:
        score_B: score of each cell, row by row.
        across: cells in a row.
        count: number of cells at most.
        apart: least distance of two cells, in cells.
    """
    taken: list[int] = []
    for cell in np.argsort(-score_B, kind="stable").tolist():
        if len(taken) == count or score_B[cell] <= 0:
            break
        here = np.array(divmod(cell, across))
        if all(np.hypot(*(here - divmod(other, across))) >= apart for other in taken):
            taken.append(cell)
    return taken


def _window(cell: int, size: Size, side: int) -> Window:
    row, col = (number * side for number in divmod(cell, -(-size.width // side)))
    return Window(row, col, side, side).intersection(Window.of(size))
