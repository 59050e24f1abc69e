"""Labelled scenes, each judged by a run that did not learn from it: folds, or a run's held-out scenes.

Cells of a labelled scene: squares of pixels, with what a model holds against the labels in them. A pixel
labelled c that the model takes for k (its most likely class) contradicts its label by p_k − p_c, in one of
five levels. The pixels of a cell are counted by (c, k, level); those with k = c contradict nothing and are
counted for the scene alone, where two tables tell what is usual: how often pixels of a label show each k and
level, and how often pixels of other labels would if they were labelled c. All are counts, which do not depend
on the windows in which a scene is computed. What is kept of a scene grows with its contradicted cells, and by
4 bytes a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference.loading import load_predictor
from segmenter.inference.memory import usual_tiling
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import Failed, Finished, MappedWindow, Predictor, Tiling, classify_all
from segmenter.raster import LabelIds, Raster, RasterInfo, open_raster
from segmenter.runs.ensemble import AnyRun, join_runs
from segmenter.runs.run import Run, load_run
from segmenter.runs.score_files import folds_in

LEVELS = 5
_LEVEL_OF_BYTE = np.searchsorted([26, 128, 230, 250], np.arange(256), side="right").astype(np.uint8)
"""Level of a contradiction × 255; its borders are 0.1, 0.5, 0.9, 0.98."""
_SAMPLED = 5
"""Every fifth row and column is taken for the other labels that pixels might have."""
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Counts:
    """Pixels of a scene.

    Attributes:
        cell_P, label_P, likely_P, level_P, pixels_P: number of the cell (row by row), label, most likely
            class, another one, level of the contradiction, and how many pixels have them.
        labelled_B: of each cell.
        usual_KKL: by label, most likely class and level.
        otherwise_KKL: the same of a sample of the pixels, each counted for all labels that it does not have.
    """

    cell_P: NDArray[np.int32]
    label_P: NDArray[np.uint8]
    likely_P: NDArray[np.uint8]
    level_P: NDArray[np.uint8]
    pixels_P: NDArray[np.int32]
    labelled_B: NDArray[np.int32]
    usual_KKL: Numbers
    otherwise_KKL: Numbers


@dataclass(eq=False)
class Cells:
    """Counts of a scene while its windows come.

    Attributes:
        size: of the scene in pixels.
        side: of a cell; cells at the right and lower edge are smaller.
    """

    size: Size
    side: int
    classes: int
    _keys: list[Numbers] = field(default_factory=list)
    _pixels: list[Numbers] = field(default_factory=list)

    def __post_init__(self) -> None:
        table = (self.classes, self.classes, LEVELS)
        self._labelled = np.zeros(self.down * self.across, np.int32)
        self._usual, self._otherwise = np.zeros(table, np.int64), np.zeros(table, np.int64)

    @property
    def across(self) -> int:
        """Number of cells in a row."""
        return -(-self.size.width // self.side)

    @property
    def down(self) -> int:
        """Number of rows of cells."""
        return -(-self.size.height // self.side)

    def window(self, cell: int) -> Window:
        """Return the pixels of a cell."""
        row, col = (number * self.side for number in divmod(cell, self.across))
        return Window(row, col, min(self.side, self.size.height - row), min(self.side, self.size.width - col))

    def add(
        self,
        window: Window,
        label_HW: NDArray[np.uint8],
        likely_HW: NDArray[np.uint8],
        probabilities_HWK: NDArray[np.uint8],
    ) -> None:
        """Add a window's pixels; those without label or data count nowhere.

        Args:
            probabilities_HWK: × 255, rounded.
        """
        row_HW, col_HW = np.ogrid[window.row : window.row_stop, window.col : window.col_stop]
        counted = (label_HW != IGNORE) & (likely_HW != IGNORE)
        cell = (row_HW // self.side * self.across + col_HW // self.side)[counted]
        if not len(cell):
            return
        first, pixels = int(cell.min()), np.bincount(cell - cell.min())
        self._labelled[first : first + len(pixels)] += pixels.astype(np.int32)
        label, likely = label_HW[counted].astype(np.int64), likely_HW[counted].astype(np.int64)
        level_NK = _levels(probabilities_HWK[counted], likely)
        key = self._key(label, likely, np.take_along_axis(level_NK, label[:, None], axis=1)[:, 0])
        self._usual += np.bincount(key, minlength=self._usual.size).reshape(self._usual.shape)
        sampled = ((row_HW % _SAMPLED == 0) & (col_HW % _SAMPLED == 0))[counted]
        label_S, likely_S, level_SK = label[sampled], likely[sampled], level_NK[sampled]
        for c in range(self.classes):
            other = label_S != c
            keys = self._key(0, likely_S[other], level_SK[other, c])
            self._otherwise[c] += np.bincount(keys, minlength=self._otherwise[c].size).reshape(-1, LEVELS)
        against = likely != label
        found, pixels = np.unique(cell[against] * self._usual.size + key[against], return_counts=True)
        self._keys.append(found)
        self._pixels.append(pixels)

    def _key(self, label: Numbers | int, likely: Numbers, level: NDArray[np.uint8]) -> Numbers:
        return (label * self.classes + likely) * LEVELS + level

    def counts(self) -> Counts:
        """Return the counts over all windows."""
        none = np.zeros(0, np.int64)
        keys, place = np.unique(np.concatenate([none, *self._keys]), return_inverse=True)
        pixels = np.bincount(place, np.concatenate([none, *self._pixels]), len(keys)).astype(np.int32)
        key, level = np.divmod(keys, LEVELS)
        key, likely = np.divmod(key, self.classes)
        cell, label = np.divmod(key, self.classes)
        label, likely, level = (each.astype(np.uint8) for each in (label, likely, level))
        contradicted = (cell.astype(np.int32), label, likely, level, pixels)
        return Counts(*contradicted, self._labelled, self._usual, self._otherwise)


def _levels(probabilities_NK: NDArray[np.uint8], likely_N: Numbers) -> NDArray[np.uint8]:
    """Return the level at which the likely class contradicts each class."""
    largest_N1 = np.take_along_axis(probabilities_NK, likely_N[:, None], axis=1)
    # Ties of rounded probabilities may make another class look more likely by nothing.
    return _LEVEL_OF_BYTE[np.maximum(largest_N1, probabilities_NK) - probabilities_NK]


WANTED = ExtraOutputs(probabilities="uint8")


@dataclass(frozen=True, eq=False)
class Judge:
    """A run with labelled scenes of its dataset that it did not learn from."""

    run: Run
    dataset: Dataset
    scenes: tuple[Scene, ...]


@dataclass(frozen=True, eq=False)
class ScoredScene:
    """A labelled scene with the pixels of each of its cells, by class of the label and of the map."""

    judge: Judge
    scene: Scene
    info: RasterInfo
    cells: Cells
    counts: Counts


@dataclass(eq=False)
class LabelledJob:
    """A labelled scene, or a part of it, to be mapped; its files are opened at the first window."""

    judge: Judge
    scene: Scene
    part: Window | None = None
    columns: None = None
    done_rows: int = 0
    abandoned: bool = False
    info: RasterInfo | None = None
    cells: Cells | None = None
    _label: LabelIds | None = field(default=None, repr=False)

    def open(self) -> AbstractContextManager[Raster]:
        """Open the image; see `inference.events.Job`."""
        raster = open_raster(self.scene.image, self.judge.dataset.bands)
        raster.mean_C = self.judge.run.mean_C
        self.info = raster.info
        return raster

    def label(self, window: Window) -> NDArray[np.uint8]:
        """Return the class ids of the label in a window."""
        assert self.scene.label is not None, "scenes without a label are no jobs"
        self._label = self._label or LabelIds(self.scene.label, self.judge.dataset.classes, self.info)
        return self._label.read(window)

    def close(self) -> None:
        """Close the label."""
        if self._label is not None:
            self._label.close()


def runs_of(path: Path) -> list[Run]:
    """Return the runs of a folder of folds, or the run of a run directory.

    Raises:
        CheckpointError: there is no run, or folds differ in their classes or bands.
    """
    runs = [load_run(each) for each in folds_in(path) or [path]]
    join_runs(runs)
    return runs


def judges_of(runs: Sequence[Run], load: Callable[[Run], Dataset]) -> list[Judge]:
    """Return each run with its labelled validation scenes; the first also has the test scenes.

    Args:
        load: returns a run's dataset, with the roles that its scenes had in its training.

    Raises:
        DatasetError: no labelled scene was held out.
    """
    judges = []
    for number, run in enumerate(runs):
        dataset = load(run)
        held_out = dataset.of("validation") + (() if number else dataset.of("test"))
        if scenes := tuple(scene for scene in held_out if scene.label is not None):
            judges.append(Judge(run, dataset, scenes))
    if not judges:
        raise DatasetError(
            runs[0].path,
            expected="labelled scenes that the model did not learn from",
            got="none",
            remedy="train the recipe with --folds 5 and review that folder",
        )
    return judges


def judge_scenes(judges: Sequence[Judge], side: int) -> Iterator[ScoredScene]:
    """Map all scenes of all judges, and yield each with the counts of its cells.

    Args:
        side: of a cell in pixels.

    Raises:
        RasterError, LabelError: a scene cannot be read; none is skipped.
    """
    total = sum(len(judge.scenes) for judge in judges)
    with Bar(total=total, unit="scene", desc="labels") as bar:
        for judge in judges:
            predict = load_predictor(judge.run, WANTED)
            jobs = (LabelledJob(judge, scene) for scene in judge.scenes)
            for job in _map_jobs(jobs, tiling_of(judge.run, predict), predict, side):
                bar.update()
                if job.cells is not None and job.info is not None:
                    yield ScoredScene(judge, job.scene, job.info, job.cells, job.cells.counts())


def mapped_parts(parts: Sequence[tuple[Judge, Scene, Window]]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Map windows of scenes by the runs that did not learn from them.

    Yields:
        Number of the part, and its (H, W) class ids.

    Raises:
        RasterError: an image cannot be read.
    """
    by_judge: dict[Judge, list[tuple[int, LabelledJob]]] = {}
    for number, (judge, scene, window) in enumerate(parts):
        by_judge.setdefault(judge, []).append((number, LabelledJob(judge, scene, window)))
    for judge, own in by_judge.items():
        predict = load_predictor(judge.run)
        numbers = {id(job): number for number, job in own}
        ids: dict[int, NDArray[np.uint8]] = {}
        for event in classify_all([job for _, job in own], tiling_of(judge.run, predict), predict):
            if isinstance(event, Failed):
                raise event.error
            part, number = event.job.part, numbers[id(event.job)]
            assert part is not None, "as it was made"
            if number not in ids:
                ids[number] = np.full((part.height, part.width), IGNORE, np.uint8)
            if isinstance(event, MappedWindow):
                ids[number][event.window.relative_to(part).slices()] = event.ids
            elif isinstance(event, Finished):
                yield number, ids.pop(number)


def tiling_of(run: AnyRun, predict: Predictor) -> Tiling:
    """Return the windows of a run's validation."""
    asked = run.recipe.prediction
    return usual_tiling(run.network, asked.window, asked.batch, len(predict.workers))


def _map_jobs(
    jobs: Iterator[LabelledJob], tiling: Tiling, predict: Predictor, side: int
) -> Iterator[LabelledJob]:
    """Yield each job once its cells hold all of its windows."""
    for event in classify_all(jobs, tiling, predict):
        if isinstance(event, Failed):
            raise event.error
        job = event.job
        if isinstance(event, Finished):
            job.close()
            yield job
        elif isinstance(event, MappedWindow):
            assert job.info is not None, "a window comes from an open raster"
            assert event.prediction.probabilities is not None, "as wanted"
            job.cells = job.cells or Cells(job.info.size, side, len(job.judge.run.classes))
            job.cells.add(event.window, job.label(event.window), event.ids, event.prediction.probabilities)
