"""Scenes whose labels are spoiled in places, and a model that sees what is right."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Scene, Split
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.model.receptive_field import NetworkGeometry
from tests.helpers.exact_network import fake_run
from tests.helpers.function_predictor import FunctionPredictor

K, RADIUS, SIDE = 4, 2, 16
STEP = 1000
"""Pixel value of a class, more for each."""
Ids = NDArray[np.uint8]
Make = Callable[..., Path]


def model(
    wanted: ExtraOutputs | None = None, doubtful: int = -1, other: int = 0, **_: Any
) -> FunctionPredictor:
    """A model that sees each pixel's class in 5 × 5 pixels, so that borders are doubtful.

    Args:
        doubtful: a class that it takes for `other` by half.
    """
    wanted = wanted or ExtraOutputs()

    def predict(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        ids = np.where(valid, image[..., 0] // STEP, K)
        hot = (ids[..., None] == np.arange(K)).astype(np.float64)
        if doubtful >= 0:
            hot[..., other] += hot[..., doubtful] / 2
            hot[..., doubtful] /= 2
        padded = np.pad(hot, ((0, 0), (RADIUS, RADIUS), (RADIUS, RADIUS), (0, 0)))
        views = np.lib.stride_tricks.sliding_window_view(padded, (2 * RADIUS + 1,) * 2, axis=(1, 2))
        sums = views.sum(axis=(-1, -2)) + 1e-9
        return Prediction.of_probabilities(
            (sums / sums.sum(axis=-1, keepdims=True)).astype(np.float32), wanted
        )

    return FunctionPredictor(predict, wanted, K)


def run_of(classes: ClassMap, window: int = 64, path: str = "fold_1", **of_model: Any) -> Any:
    run = fake_run(
        classes,
        dtype="uint16",
        band_count=1,
        path=Path(path),
        network=NetworkGeometry(1, RADIUS, 100.0),
        predictor=lambda wanted=None, **_: model(wanted, **of_model),
    )
    run.recipe.prediction = SimpleNamespace(window=window, batch=3)
    return run


def scene_of(
    make: Make, name: str, truth: Ids, label: Ids, split: Split = "validation", **options: Any
) -> Scene:
    image = make(f"images/{name}.tif", (truth.astype(np.uint16) * STEP)[..., None], **options)
    return Scene(name, image, make(f"labels/{name}.tif", label), name, split)


def spoiled(truth: Ids, rng: np.random.Generator) -> tuple[Ids, set[tuple[int, int]]]:
    """A label with four spoiled cells, and their places: swapped, shifted, missing, too coarse."""
    label = truth.copy()
    places = [(3, 4), (9, 2), (5, 10), (11, 13)]
    windows = [(slice(r * SIDE, (r + 1) * SIDE), slice(c * SIDE, (c + 1) * SIDE)) for r, c in places]
    label[windows[0]] = (truth[windows[0]] + 1) % K
    for rows, cols in windows[1:]:  # a border through the cell, so that there is something to draw wrongly
        truth[rows, cols.start : cols.start + SIDE // 2] = 1
        truth[rows, cols.start + SIDE // 2 : cols.stop] = 2
        label[rows, cols] = truth[rows, cols]
    rows, cols = windows[1]
    label[rows, cols] = np.roll(truth[rows, cols], SIDE // 3, axis=1)
    rows, cols = windows[2]
    label[rows, cols][truth[rows, cols] == 2] = 0
    rows, cols = windows[3]
    label[rows, cols] = 1
    return label, set(places)
