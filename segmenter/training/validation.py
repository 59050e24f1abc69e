"""Validation: scores of whole, labelled scenes, computed by windows as in prediction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.devices.machines.workers import SHARE
from segmenter.devices.strategy import Devices
from segmenter.evaluation.by_gsd import GsdConfusions
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference.memory import usual_tiling
from segmenter.inference.predictor import Failed, Finished, Mapped, Predictor, Tiling, classify_all
from segmenter.raster import LabelIds, Raster, open_raster
from segmenter.runs.run import Run
from segmenter.training.examples import Examples
from segmenter.training.workers_agree import packed, share_of, unpacked


@dataclass(eq=False)
class SceneJob:
    """A labelled scene to be mapped; its label is opened at the first window."""

    scene: Scene
    dataset: Dataset
    mean_C: tuple[float, ...]
    part: None = None
    columns: None = None
    done_rows: int = 0
    abandoned: bool = False
    label: LabelIds | None = None
    metres: float | None = None
    whole: Window | None = None
    confusion: ConfusionMatrix | None = None

    def open(self) -> AbstractContextManager[Raster]:
        raster = open_raster(self.scene.image, self.dataset.bands)
        raster.mean_C = self.mean_C
        self.whole = Window.of(raster.info.size)
        self.metres = self.dataset.scale_of(self.scene, raster.info.metres_per_pixel)
        return raster

    def truth(self, window: Window) -> NDArray[np.uint8]:
        """Return the class ids of the label in a window."""
        if self.scene.label is None:
            raise DatasetError(self.scene.name, expected="a label to validate on, there is none")
        self.label = self.label or LabelIds(self.scene.label, self.dataset.classes)
        return self.label.read(window)

    def finished(self) -> None:
        """Close the label."""
        if self.label is not None:
            self.label.close()


def tiling_of(run: Run, devices: int = 1) -> Tiling:
    """Return the windows for a run's recipe and network, on a number of devices."""
    asked = run.recipe.prediction
    return usual_tiling(run.network, asked.window, asked.batch, devices)


def validate_together(
    devices: Devices,
    run: Run,
    predict: Predictor,
    dataset: Dataset,
    examples: Examples,
    scales: GsdConfusions,
    heard: int = 0,
    going: Callable[[], None] = lambda: None,
) -> tuple[ConfusionMatrix, list[int]]:
    """Validate with all workers, each on its share of the scenes; return the sum, equal on all.

    The examples come from this worker's scenes only.

    Args:
        heard: signal that this worker has received, 0 for none.
        going: as in `validate`.

    Returns:
        The confusion matrix of all scenes, and each worker's signal.
    """
    workers, scenes = devices.workers, dataset.of("validation")
    own = GsdConfusions(run.classes)

    def still() -> None:
        workers.mark(SHARE)
        going()

    validate(
        *(run, predict, dataset, examples, own),
        scenes=share_of(workers, scenes),
        going=still,
    )
    texts = workers.exchange(_told(own.each, heard))
    answers = [json.loads(text) for text in texts]
    by_name = {name: scene for one in answers for name, scene in _scenes_of(one, run.classes).items()}
    total = ConfusionMatrix(run.classes)
    for scene in scenes:
        if scene.name in by_name:
            metres, confusion = by_name[scene.name]
            total.merge(confusion)
            scales.add(scene.name, metres, confusion)
    return total, [one["heard"] for one in answers]


def _told(scored: Mapping[str, tuple[float | None, ConfusionMatrix]], heard: int) -> str:
    """Encode the results of a worker's scenes as text: names, metres a pixel, blocks and counts."""
    scenes, arrays = [], {}
    for number, (name, (metres, confusion)) in enumerate(scored.items()):
        blocks = confusion.blocks
        scenes.append([name, metres, None if blocks is None else astuple(blocks.part)])
        arrays[str(number)] = confusion.counts if blocks is None else blocks.counts
    return json.dumps({"heard": heard, "scenes": scenes, "counts": packed(arrays)})


def _scenes_of(said: Any, classes: ClassMap) -> dict[str, tuple[float | None, ConfusionMatrix]]:
    """Decode the scenes of `_told`."""
    scenes, arrays = {}, unpacked(said["counts"])
    for number, (name, metres, part) in enumerate(said["scenes"]):
        counts = arrays[str(number)]
        if part is None:
            confusion = ConfusionMatrix(classes, counts)
        else:
            confusion = ConfusionMatrix(classes, counts.sum(axis=(0, 1)), Window(*part))
            assert confusion.blocks is not None
            confusion.blocks.counts += counts
        scenes[name] = metres, confusion
    return scenes


def validate(
    run: Run,
    predict: Predictor,
    dataset: Dataset,
    examples: Examples,
    scales: GsdConfusions | None = None,
    *,
    scenes: Sequence[Scene] | None = None,
    going: Callable[[], None] = lambda: None,
) -> ConfusionMatrix:
    """Return the confusion matrix of all validation pixels, computed on all devices of the predictor.

    Windows are processed in reading order, so the result does not depend on the number of devices.

    Args:
        scales: receives each scene's confusion matrix with its scale.
        scenes: validation scenes to use; None: all.
        going: called at each window; its exception ends the validation.

    Raises:
        RasterError, LabelError: a scene cannot be read; no scene is skipped.
    """
    total = ConfusionMatrix(run.classes)
    chosen = dataset.of("validation") if scenes is None else scenes
    jobs: Iterator[SceneJob] = (SceneJob(scene, dataset, run.mean_C) for scene in chosen)
    for event in classify_all(jobs, tiling_of(run, len(predict.workers)), predict):
        going()
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            job = event.job
            job.finished()
            if job.confusion is not None:
                total.merge(job.confusion)
                if scales is not None:
                    scales.add(job.scene.name, job.metres, job.confusion)
                job.confusion = None
        elif isinstance(event, Mapped):
            job, label_HW = event.job, event.job.truth(event.window)
            job.confusion = job.confusion or ConfusionMatrix(run.classes, part=job.whole)
            job.confusion.add(label_HW, event.ids, event.window)
            examples.consider(event.job.scene, event.window, label_HW, event.ids)
    return total


def validation_protocol(dataset: Dataset) -> Protocol:
    """Return the protocol of the validation's scores."""
    scenes = tuple(scene.name for scene in dataset.of("validation"))
    return Protocol(tuple(dataset.classes.names), dataset.labels, "validation", scenes=scenes)
