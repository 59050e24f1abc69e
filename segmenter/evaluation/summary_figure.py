"""One picture of a validation: the confusion matrix, below it scenes beside labels and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.drawing import figure_pixels, save_pixels
from segmenter.evaluation.figures import confusion_panel, scene_panels
from segmenter.evaluation.scores import ConfusionMatrix
from segmenter.grid.labels import ClassMap

_SIDE = 1600
"""Pixels of the longer side of an example's row."""


@dataclass(frozen=True, eq=False)
class Example:
    """A part of a scene.

    Attributes:
        title: says which, and why it is shown.
        image_HWC, valid_HW: its pixels, and where they are valid.
        label_HW, prediction_HW: class ids, or `IGNORE`.
    """

    title: str
    image_HWC: NDArray[Any]
    valid_HW: NDArray[np.bool_]
    label_HW: NDArray[np.uint8]
    prediction_HW: NDArray[np.uint8]


def summary_figure(
    confusion: ConfusionMatrix, examples: Sequence[Example], classes: ClassMap, path: Path, title: str = ""
) -> None:
    """Draw both into one PNG."""
    figures = [confusion_panel(confusion, title)]
    figures += [
        scene_panels(
            *(e.image_HWC, e.label_HW, e.prediction_HW, classes, e.title), valid_HW=e.valid_HW, side=_SIDE
        )
        for e in examples
    ]
    save_pixels(_below_each_other([figure_pixels(figure) for figure in figures]), path)


def _below_each_other(pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """(H, W, 3) pictures from top to bottom, on white."""
    width = max(picture.shape[1] for picture in pictures)
    rooms = [((0, 0), (0, width - picture.shape[1]), (0, 0)) for picture in pictures]
    padded = [np.pad(p, room, constant_values=255) for p, room in zip(pictures, rooms, strict=True)]
    return np.concatenate(padded)
