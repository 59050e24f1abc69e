"""Windows of a validation that are worth a look: the most classes, and the most mistakes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.summary_figure import Example
from segmenter.geometry import Window
from segmenter.labels import IGNORE
from segmenter.raster import open_raster
from segmenter.scenes import Dataset, Scene


@dataclass(frozen=True, eq=False)
class _Seen:
    scene: Scene
    window: Window
    label: NDArray[np.uint8]
    prediction: NDArray[np.uint8]
    value: tuple[int, int]


class Examples:
    """The two windows of a validation, as far as it has come; the first of equals."""

    def __init__(self) -> None:
        self._best: dict[str, _Seen] = {}

    def consider(
        self, scene: Scene, window: Window, label: NDArray[np.uint8], prediction: NDArray[np.uint8]
    ) -> None:
        """Look at a window of a scene with its class ids."""
        labelled = label != IGNORE
        wrong, right = (int((labelled & where).sum()) for where in (label != prediction, label == prediction))
        classes = int(np.count_nonzero(np.bincount(label[labelled], minlength=1)))
        for why, value in (
            ("the most classes", (classes, wrong + right)),
            ("the most mistakes", (wrong, right)),
        ):
            if why not in self._best or value > self._best[why].value:
                self._best[why] = _Seen(scene, window, label.copy(), prediction.copy(), value)

    def read(self, dataset: Dataset) -> list[Example]:
        """Both with their pixels, or one where they are the same.

        Raises:
            RasterError: a scene cannot be read again.
        """
        reasons: dict[tuple[str, Window], list[str]] = {}
        for why, seen in self._best.items():
            reasons.setdefault((seen.scene.name, seen.window), []).append(why)
        return [_example(self._best[why[0]], why, dataset) for why in reasons.values()]


def _example(seen: _Seen, why: list[str], dataset: Dataset) -> Example:
    with open_raster(seen.scene.image, dataset.bands) as raster:
        image, valid = raster.read(seen.window)
    place = f"row {seen.window.row}, column {seen.window.col}"
    title = f"{seen.scene.name}, {place}: the window with {' and '.join(why)}"
    return Example(title, image, valid, seen.label, seen.prediction)
