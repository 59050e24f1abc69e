"""Validation: scores whole scenes with their labels, windowed as in prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from segmenter.errors import DatasetError
from segmenter.evaluation.by_scale import ScaleConfusions
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.inference.memory import usual_tiling
from segmenter.inference.predictor import Failed, Finished, Mapped, Predictor, Tiling, classify_all
from segmenter.raster import Raster, open_raster, read_label
from segmenter.runs.run import Run
from segmenter.scenes import Dataset, Scene
from segmenter.training.examples import Examples


@dataclass(eq=False)
class _SceneJob:
    """A labelled scene to be mapped; its label is read when the first of its windows comes."""

    scene: Scene
    dataset: Dataset
    part: None = None
    columns: None = None
    done_rows: int = 0
    abandoned: bool = False
    label: Any = None
    metres: float | None = None
    confusion: ConfusionMatrix | None = None

    def open(self) -> AbstractContextManager[Raster]:
        raster = open_raster(self.scene.image, self.dataset.bands)
        self.metres = self.dataset.scale_of(self.scene, raster.info.metres_per_pixel)
        return raster

    def truth(self) -> Any:
        """Class ids of the whole scene: one byte a pixel, since a PNG cannot be read in parts cheaply."""
        if self.label is None and self.scene.label is not None:
            raw = read_label(self.scene.label, expand_palette=self.dataset.expand_palette)
            self.label = self.dataset.classes.decode(raw, str(self.scene.label))
        return self.label


def tiling_of(run: Run, devices: int = 1) -> Tiling:
    """The windows that the run's recipe and network ask for, on so many devices."""
    asked = run.recipe.prediction
    return usual_tiling(run.network, asked.window, asked.batch, devices)


def validate(
    run: Run,
    predict: Predictor,
    dataset: Dataset,
    examples: Examples,
    scales: ScaleConfusions | None = None,
    check: Callable[[], None] = lambda: None,
) -> ConfusionMatrix:
    """The confusion matrix over all pixels of the validation scenes, on all devices of the predictor.

    Windows are given in the order in which they are read, so that nothing depends on the number of devices.

    Args:
        scales: takes that of each scene with its scale.
        check: called at each window; what it raises ends the validation.

    Raises:
        RasterError, LabelError: a scene cannot be read; nothing is skipped.
    """
    confusion = ConfusionMatrix(run.classes)
    jobs: Iterator[_SceneJob] = (_SceneJob(scene, dataset) for scene in dataset.of("validation"))
    for event in classify_all(jobs, tiling_of(run, len(predict.workers)), predict):
        check()
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            job, event.job.label = event.job, None
            if job.confusion is not None:
                confusion.merge(job.confusion)
                if scales is not None:
                    scales.add(job.scene.name, job.metres, job.confusion)
                job.confusion = None
        elif isinstance(event, Mapped):
            truth_HW = event.job.truth()
            if truth_HW is None:
                raise DatasetError(f"{event.job.scene.name}: expected a label to validate on, there is none")
            label_HW = truth_HW[event.window.slices()]
            event.job.confusion = event.job.confusion or ConfusionMatrix(run.classes)
            event.job.confusion.add(label_HW, event.ids)
            examples.consider(event.job.scene, event.window, label_HW, event.ids)
    return confusion


def validation_protocol(dataset: Dataset) -> Protocol:
    """Protocol of the validation's scores."""
    scenes = tuple(scene.name for scene in dataset.of("validation"))
    return Protocol(tuple(dataset.classes.names), dataset.labels, "validation", scenes=scenes)
