"""Validation: scores of whole, labelled scenes, computed by windows as in prediction."""

from __future__ import annotations

import contextlib
import json
import math
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.devices.machines.workers import SHARE
from segmenter.devices.strategy import Devices
from segmenter.evaluation.by_gsd import GsdConfusions
from segmenter.evaluation.drawing import encode_picture
from segmenter.evaluation.figures import Example, summary_figure
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference.memory import usual_tiling
from segmenter.inference.prediction import Prediction
from segmenter.inference.predictor import Failed, Finished, MappedWindow, Predictor, Tiling, classify_all
from segmenter.raster import LabelIds, Raster, RasterInfo, open_raster, scene_stretch
from segmenter.runs.records import (
    SIDE,
    Progress,
    ProgressMap,
    ShownWindow,
    ShownWindows,
    add_progress,
    as_base64,
    save_windows,
)
from segmenter.runs.report.sections import write_report
from segmenter.runs.resume import Position
from segmenter.runs.run import Run
from segmenter.runs.score_files import SUMMARY, keep_as_best
from segmenter.training.workers_agree import pack_arrays, share_of, unpack_arrays

SHOWN = 3
"""Worst windows of a validation that are shown, and as many best ones."""


_TRACE = 0.02
"""Share of a window's labelled pixels below which a class is a trace in it."""


@dataclass(frozen=True, eq=False)
class _Seen:
    """A window of a tile's size with label, map and confidence (None: not computed).

    Attributes:
        right, labelled: number of correct and of labelled pixels.
        confused: true class and class of the map with the most wrong pixels; None without any.
    """

    scene: Scene
    window: Window
    label: NDArray[np.uint8]
    map: NDArray[np.uint8]
    confidence: NDArray[np.uint8] | None
    right: int
    labelled: int
    classes: int
    confused: tuple[int, int] | None

    def copy(self) -> _Seen:
        """Return a copy that keeps no larger arrays in memory."""
        sure = None if self.confidence is None else self.confidence.copy()
        return replace(self, label=self.label.copy(), map=self.map.copy(), confidence=sure)


class Examples:
    """Selected windows of a validation so far; for ties, the first.

    They have the size of a tile, at most `SIDE`, so that a picture shows each of their pixels. Memory holds
    only a few.
    """

    def __init__(self, side: int = SIDE) -> None:
        self.windows, self.scenes = 0, set[str]()
        self._side = min(side, SIDE)
        self._best: dict[str, tuple[tuple[int, int], _Seen]] = {}
        self._worst = _Ranking(SHOWN)
        self._right = _Ranking(2 * SHOWN)  # a window may be among both: it is then shown as a bad one

    def consider(self, scene: Scene, window: Window, label: NDArray[np.uint8], found: Prediction) -> None:
        """Consider the parts of a window of a scene with its class ids; pixels without data are ignored."""
        for rows, cols in product(*(_parts(side, self._side) for side in label.shape)):
            place = Window(window.row + rows[0], window.col + cols[0], rows[1] - rows[0], cols[1] - cols[0])
            part = (slice(*rows), slice(*cols))
            sure = None if found.confidence is None else found.confidence[part]
            self._offer(_judge_window(scene, place, label[part], found.ids[part], sure))

    def _offer(self, seen: _Seen) -> None:
        wrong = seen.labelled - seen.right
        for why, value in (
            ("the most classes", (seen.classes, seen.labelled)),
            ("the most mistakes", (wrong, seen.right)),
        ):
            if why not in self._best or value > self._best[why][0]:
                self._best[why] = value, seen.copy()
        if not seen.classes:
            return
        self.windows += 1
        self.scenes.add(seen.scene.name)
        self._worst.offer((wrong, seen.right), seen)
        # The most right pixels would be those of one large class, which shows little.
        self._right.offer((_classes_right(seen), seen.right), seen)

    def read(self, dataset: Dataset) -> list[Example]:
        """Read the windows with most classes and with most mistakes, which may be the same one.

        Raises:
            RasterError: a scene cannot be read again.
        """
        reasons: dict[tuple[str, Window], list[str]] = {}
        for why, (_, seen) in self._best.items():
            reasons.setdefault((seen.scene.name, seen.window), []).append(why)
        return [_example(self._best[why[0]][1], dataset, why) for why in reasons.values()]

    def with_most_classes(self) -> _Seen | None:
        """Return the window with most classes, which is the same after each epoch; None without windows."""
        _, seen = self._best.get("the most classes", (None, None))
        return seen

    def windows_to_show(self, dataset: Dataset) -> list[ShownWindow]:
        """Return the windows with most wrong pixels, worst first, then those with most correct classes.

        Raises:
            RasterError: a scene cannot be read again.
        """
        worst = [one for one in self._worst.windows() if one.right < one.labelled]
        taken = {(one.scene.name, one.window) for one in worst}
        best = [one for one in self._right.windows() if (one.scene.name, one.window) not in taken][:SHOWN]
        return [
            *(_shown_window("worst", one, dataset) for one in worst),
            *(_shown_window("best", one, dataset) for one in best),
        ]


def _parts(side: int, most: int) -> list[tuple[int, int]]:
    """Return starts and ends of about equal parts of a side, of at most so many pixels."""
    count = max(1, -(-side // most))
    return [(side * i // count, side * (i + 1) // count) for i in range(count)]


def _judge_window(
    scene: Scene,
    window: Window,
    label: NDArray[np.uint8],
    found: NDArray[np.uint8],
    confidence: NDArray[np.uint8] | None,
) -> _Seen:
    labelled = (label != IGNORE) & (found != IGNORE)
    truth, mapped = label[labelled].astype(np.int64), found[labelled]
    pairs = np.bincount(truth * 256 + mapped, minlength=1)
    wrong = np.where(np.arange(len(pairs)) % 257 == 0, 0, pairs)
    most = int(np.argmax(wrong))
    right = int((truth == mapped).sum())
    confused = (most // 256, most % 256) if wrong[most] else None
    classes = int(np.count_nonzero(np.bincount(truth, minlength=1)))
    return _Seen(scene, window, label, found, confidence, right, len(truth), classes, confused)


def _classes_right(seen: _Seen) -> float:
    """Sum the correct shares of a window's classes; traces of a class are ignored."""
    labelled = (seen.label != IGNORE) & (seen.map != IGNORE)
    truth = np.bincount(seen.label[labelled], minlength=256)
    right = np.bincount(seen.label[labelled & (seen.label == seen.map)], minlength=256)
    counted = truth >= max(1, _TRACE * truth.sum())
    return float((right[counted] / truth[counted]).sum())


class _Ranking:
    """Windows with the highest values; for ties, the first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[tuple[float, int], int, _Seen]] = []
        self._offered = 0

    def offer(self, value: tuple[float, int], seen: _Seen) -> None:
        """Add a window if its value is among the highest so far."""
        self._offered += 1
        if len(self._kept) == self._most and value <= self._kept[0][0]:
            return
        insort(self._kept, (value, -self._offered, seen.copy()), key=lambda kept: kept[:2])
        del self._kept[: -self._most]

    def windows(self) -> list[_Seen]:
        """Return the windows, highest value first."""
        return [one for *_, one in reversed(self._kept)]


def _example(seen: _Seen, dataset: Dataset, why: Sequence[str] = ()) -> Example:
    with open_raster(seen.scene.image, dataset.bands) as raster:
        image, valid = raster.read(seen.window)
        stretch = scene_stretch(raster)
        metres = dataset.scale_of(seen.scene, raster.info.metres_per_pixel)
    place = f"row {seen.window.row}, column {seen.window.col}"
    title = f"{seen.scene.name}, {place}: the window with {' and '.join(why)}"
    return Example(title, image, valid, seen.label, seen.map, seen.confidence, stretch, metres)


def _shown_window(why: Literal["worst", "best"], one: _Seen, dataset: Dataset) -> ShownWindow:
    example, names = _example(one, dataset), dataset.classes.names
    return ShownWindow(
        why=why,
        scene=one.scene.name,
        row=one.window.row,
        col=one.window.col,
        height=one.window.height,
        width=one.window.width,
        right=one.right,
        labelled=one.labelled,
        classes=one.classes,
        confused=None if one.confused is None else (names[one.confused[0]], names[one.confused[1]]),
        metres=example.metres,
        picture_height=one.window.height,
        picture_width=one.window.width,
        **_encode_layers(example.layers(dataset.classes)),
    )


def _encode_layers(layers: Mapping[str, NDArray[np.uint8]]) -> dict[str, str]:
    """Return layers as the bytes of pictures in base64, by name."""
    return {
        name: as_base64(encode_picture(layer, "jpeg" if name == "image" else "png"))
        for name, layer in layers.items()
    }


def show_best(
    run: Run, position: Position, dataset: Dataset, confusion: ConfusionMatrix, examples: Examples
) -> None:
    """Store the scores of the validation just done as the best, with its summary and windows.

    Raises:
        RasterError: a scene cannot be read again.
        OutputError: a file cannot be written.
    """
    keep_as_best(run.path)
    title = f"validation after epoch {position.epoch}"
    summary_figure(confusion, examples.read(dataset), run.classes, run.path / SUMMARY, title)
    content = ShownWindows(
        step=position.done,
        epoch=position.epoch,
        windows=examples.windows,
        scenes=len(examples.scenes),
        of_scenes=len(dataset.of("validation")),
        shown=tuple(examples.windows_to_show(dataset)),
    )
    save_windows(run.path, content)


def follow(
    run: Run, position: Position, dataset: Dataset, miou: float, examples: Examples
) -> dict[str, NDArray[np.uint8]]:
    """Keep the map of the followed window after the validation just done; return its layers by name.

    Raises:
        RasterError: a scene cannot be read again.
        OutputError: the file cannot be written.
    """
    seen = examples.with_most_classes()
    if seen is None:
        return {}
    example = _example(seen, dataset)
    layers = example.layers(dataset.classes)
    pictures = _encode_layers(layers)
    new = ProgressMap(
        step=position.done,
        epoch=position.epoch,
        miou=None if math.isnan(miou) else miou,
        map=pictures["map"],
    )
    window = seen.window
    add_progress(
        run.path,
        Progress(
            scene=seen.scene.name,
            row=window.row,
            col=window.col,
            height=window.height,
            width=window.width,
            metres=example.metres,
            picture_height=window.height,
            picture_width=window.width,
            image=pictures["image"],
            label=pictures["label"],
            maps=(new,),
        ),
    )
    return layers


def leave_page(run: Path) -> None:
    """Write the report so far, for whoever looks during the training or after a kill."""
    with contextlib.suppress(SegmenterError):  # the end of the training says why there is none
        write_report(run)


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
    info: RasterInfo | None = None
    confusion: ConfusionMatrix | None = None

    def open(self) -> AbstractContextManager[Raster]:
        raster = open_raster(self.scene.image, self.dataset.bands)
        raster.mean_C = self.mean_C
        self.info = raster.info
        self.metres = self.dataset.scale_of(self.scene, raster.info.metres_per_pixel)
        return raster

    def truth(self, window: Window) -> NDArray[np.uint8]:
        """Return the class ids of the label in a window."""
        if self.scene.label is None:
            raise DatasetError(self.scene.name, expected="a label to validate on, there is none")
        self.label = self.label or LabelIds(self.scene.label, self.dataset.classes, self.info)
        return self.label.read(window)

    def close(self) -> None:
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
    texts = workers.exchange(_encode_results(own.each, heard))
    answers = [json.loads(text) for text in texts]
    by_name = {name: scene for one in answers for name, scene in _scenes_of(one, run.classes).items()}
    total = ConfusionMatrix(run.classes)
    for scene in scenes:
        if scene.name in by_name:
            metres, confusion = by_name[scene.name]
            confusion.group = scene.group
            total.merge(confusion)
            scales.add(scene.name, metres, confusion)
    return total, [one["heard"] for one in answers]


def _encode_results(scored: Mapping[str, tuple[float | None, ConfusionMatrix]], heard: int) -> str:
    """Encode the results of a worker's scenes as text: names, metres a pixel, blocks and counts."""
    scenes, arrays = [], {}
    for number, (name, (metres, confusion)) in enumerate(scored.items()):
        blocks = confusion.blocks
        scenes.append([name, metres, None if blocks is None else astuple(blocks.part)])
        arrays[str(number)] = confusion.counts if blocks is None else blocks.counts
    return json.dumps({"heard": heard, "scenes": scenes, "counts": pack_arrays(arrays)})


def _scenes_of(said: Any, classes: ClassMap) -> dict[str, tuple[float | None, ConfusionMatrix]]:
    """Decode the scenes of `_encode_results`."""
    scenes, arrays = {}, unpack_arrays(said["counts"])
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
            job.close()
            if job.confusion is not None:
                total.merge(job.confusion)
                if scales is not None:
                    scales.add(job.scene.name, job.metres, job.confusion)
                job.confusion = None
        elif isinstance(event, MappedWindow):
            job, label_HW = event.job, event.job.truth(event.window)
            assert job.info is not None, "a window comes from an open raster"
            job.confusion = job.confusion or ConfusionMatrix(
                run.classes, part=Window.of(job.info.size), group=job.scene.group
            )
            job.confusion.add(label_HW, event.ids, event.window)
            examples.consider(event.job.scene, event.window, label_HW, event.prediction)
    return total


def validation_protocol(dataset: Dataset) -> Protocol:
    """Return the protocol of the validation's scores."""
    scenes = tuple(scene.name for scene in dataset.of("validation"))
    return Protocol(tuple(dataset.classes.names), dataset.labels, "validation", scenes=scenes)
