"""Labelled scenes, each judged by a run that did not learn from it: folds, or a run's held-out scenes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from segmenter.base.errors import DatasetError
from segmenter.base.terminal import no_bar
from segmenter.config.recipe import Recipe
from segmenter.extras.review.cells import Cells, Counts
from segmenter.grid.geometry import Window
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference.loading import load_predictor
from segmenter.inference.memory import usual_tiling
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import Failed, Finished, Mapped, Predictor, Tiling, classify_all
from segmenter.raster import LabelIds, Raster, RasterInfo, open_raster
from segmenter.runs.ensemble import AnyRun, joined
from segmenter.runs.folds import folds_in
from segmenter.runs.run import Run, load_run

WANTED = ExtraOutputs(probabilities="uint8")


@dataclass(frozen=True, eq=False)
class Judge:
    """A run with labelled scenes of its dataset that it did not learn from."""

    run: Run
    dataset: Dataset
    scenes: tuple[Scene, ...]


@dataclass(frozen=True, eq=False)
class Judged:
    """A scene with the counts of its cells."""

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
        self._label = self._label or LabelIds(self.scene.label, self.judge.dataset.classes)
        return self._label.read(window)

    def finished(self) -> None:
        """Close the label."""
        if self._label is not None:
            self._label.close()


def runs_of(path: Path) -> list[Run]:
    """Return the runs of a folder of folds, or the run of a run directory.

    Raises:
        CheckpointError: there is no run, or folds differ in their classes or bands.
    """
    runs = [load_run(each) for each in folds_in(path) or [path]]
    joined(runs)
    return runs


def judges_of(runs: Sequence[Run], load: Callable[[Recipe], Dataset]) -> list[Judge]:
    """Return each run with its labelled validation scenes; the first also has the test scenes.

    Args:
        load: loads the dataset of a recipe.

    Raises:
        DatasetError: no labelled scene was held out.
    """
    judges = []
    for number, run in enumerate(runs):
        dataset = load(run.recipe)
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


def judged(judges: Sequence[Judge], side: int) -> Iterator[Judged]:
    """Map all scenes of all judges, and yield each with the counts of its cells.

    Args:
        side: of a cell in pixels.

    Raises:
        RasterError, LabelError: a scene cannot be read; none is skipped.
    """
    total = sum(len(judge.scenes) for judge in judges)
    with tqdm(total=total, unit="scene", desc="labels", disable=no_bar()) as bar:
        for judge in judges:
            predict = load_predictor(judge.run, WANTED)
            jobs = (LabelledJob(judge, scene) for scene in judge.scenes)
            for job in _mapped(jobs, tiling_of(judge.run, predict), predict, side):
                bar.update()
                if job.cells is not None and job.info is not None:
                    yield Judged(judge, job.scene, job.info, job.cells, job.cells.counts())


def tiling_of(run: AnyRun, predict: Predictor) -> Tiling:
    """Return the windows of a run's validation."""
    asked = run.recipe.prediction
    return usual_tiling(run.network, asked.window, asked.batch, len(predict.workers))


def _mapped(
    jobs: Iterator[LabelledJob], tiling: Tiling, predict: Predictor, side: int
) -> Iterator[LabelledJob]:
    """Yield each job once its cells hold all of its windows."""
    for event in classify_all(jobs, tiling, predict):
        if isinstance(event, Failed):
            raise event.error
        job = event.job
        if isinstance(event, Finished):
            job.finished()
            yield job
        elif isinstance(event, Mapped):
            assert job.info is not None, "a window comes from an open raster"
            assert event.prediction.probabilities is not None, "as wanted"
            job.cells = job.cells or Cells(job.info.size, side, len(job.judge.run.classes))
            job.cells.add(event.window, job.label(event.window), event.ids, event.prediction.probabilities)
