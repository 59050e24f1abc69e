"""Visibility of a map's windows: class changes across window borders over class changes elsewhere.

1 means that a border of a window is a line like any other. The model is a made one that sees 17×17 pixels
and pads with zeros, as convolutions do; `--run` measures a run directory's model on a raster instead.
Baseline in the same run: the same windows without a halo.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.inference.blending import Blend
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.inference.predictor import Failed, MappedWindow, Predictor, Tiling, classify_all
from segmenter.raster import Raster, open_raster
from tests.helpers.function_predictor import FunctionPredictor

CLASSES, RADIUS = 4, 8
_DRAWS = 1000


class Seams(NamedTuple):
    """Changes across borders over changes elsewhere, with the bounds of its 95 % confidence interval."""

    ratio: float
    low: float
    high: float


class MadeScene:
    """A raster in memory: noise in one band for each class."""

    class _Info(NamedTuple):
        size: Size
        dtype: str

    def __init__(self, height: int, width: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._image = rng.integers(0, 255, (height, width, CLASSES), np.uint8)
        self.info: Any = self._Info(Size(height, width), "uint8")
        self.bands = tuple(range(1, CLASSES + 1))

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """As `Raster.read`."""
        image = np.zeros((window.height, window.width, CLASSES), np.uint8)
        valid = np.zeros(image.shape[:2], np.bool_)
        inside = window.intersection(Window.of(self.info.size))
        into = inside.relative_to(window).slices()
        image[into], valid[into] = self._image[inside.slices()], True
        return image, valid

    @property
    def extent(self) -> Window:
        """As `Raster.extent`."""
        return Window.of(self.info.size)

    @property
    def apart(self) -> bool:
        """As `Readable.apart`."""
        return False

    def empty(self, window: Window) -> bool:
        """As `Raster.empty`."""
        return False

    def __enter__(self) -> MadeScene:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Job:
    part, columns, done_rows, abandoned = None, None, 0, False

    def __init__(self, raster: Any) -> None:
        self._raster = raster

    def open(self) -> Any:
        return self._raster


class _File:
    """A file, opened anew by each prediction, which closes it."""

    def __init__(self, path: Path, bands: tuple[int, ...] | None) -> None:
        self._path, self._bands = path, bands
        with open_raster(path, bands) as raster:
            self.info = raster.info

    def __enter__(self) -> Raster:
        self._raster = open_raster(self._path, self._bands)
        return self._raster

    def __exit__(self, *_: object) -> None:
        self._raster.close()


def made_model() -> FunctionPredictor:
    """The class whose band is the brightest in the surroundings, outside of which all is zero."""

    def predict(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        return Prediction(_sums(image).argmax(axis=-1).astype(np.uint8))

    def weigh(image: Any, valid: Any, rows: Any, cols: Any) -> NDArray[np.float32]:
        logits = _sums(image).astype(np.float32) / (255 * (2 * RADIUS + 1))
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return np.asarray(shares * rows[:, :, None, None] * cols[:, None, :, None], np.float32)

    return FunctionPredictor(predict, ExtraOutputs(), CLASSES, weigh)


def _sums(image: NDArray[Any]) -> NDArray[np.int64]:
    sums = image.astype(np.int64)
    for axis in (1, 2):
        pad = [(0, 0)] * 4
        pad[axis] = (RADIUS + 1, RADIUS)
        total = np.cumsum(np.pad(sums, pad), axis=axis)
        count = total.shape[axis]
        upper = np.take(total, np.arange(2 * RADIUS + 1, count), axis)
        sums = upper - np.take(total, np.arange(count - 2 * RADIUS - 1), axis)
    return sums


def main() -> None:
    """Measure both modes, and no halo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=2000, help="of the made scene")
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--run", type=Path, help="a run directory, instead of the made model")
    parser.add_argument("--raster", type=Path, help="with --run: what it predicts")
    arguments = parser.parse_args()
    raster: Any = MadeScene(arguments.side, arguments.side)
    predict: Any = made_model()
    radius: int | None = RADIUS
    stride = 1
    if arguments.run is not None:
        raster, predict, radius, stride = _real(arguments.run, arguments.raster)
    side = Size(arguments.window, arguments.window).round_up(stride)
    tilings = {"smooth": Tiling(side, 0, stride, 4, Blend()), "halo_0": Tiling(side, 0, stride, 4)}
    if radius is not None:
        tilings["exact"] = Tiling(side, radius, stride, 4)
    found = {name: seams_of(raster, tiling, predict)._asdict() for name, tiling in tilings.items()}
    rounded = {name: {key: round(v, 3) for key, v in seams.items()} for name, seams in found.items()}
    print(json.dumps({"benchmark": "seams", **rounded}))


def _real(run_path: Path, raster_path: Path) -> tuple[Any, Any, int | None, int]:
    from segmenter.inference.loading import load_predictor
    from segmenter.runs.run import load_run

    run = load_run(run_path)
    return _File(raster_path, run.bands), load_predictor(run), run.network.radius, run.network.stride


def seams_of(raster: Any, tiling: Tiling, predict: Predictor) -> Seams:
    """Predict a raster and measure its window borders: where kept parts meet, or blended windows end."""
    size = raster.info.size
    ids = np.zeros((size.height, size.width), np.uint8)
    for event in classify_all([_Job(raster)], tiling, predict):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, MappedWindow):
            ids[event.window.slices()] = event.ids
    whole = Window.of(size)
    windows = [place.keep for place in tiling.placements(whole, whole)]
    rows = {edge for window in windows for edge in (window.row, window.row_stop)}
    cols = {edge for window in windows for edge in (window.col, window.col_stop)}
    return seams(ids, rows, cols)


def seams(ids_HW: NDArray[np.uint8], rows: Iterable[int], cols: Iterable[int], seed: int = 0) -> Seams:
    """The ratio of class changes, given the first rows and columns of windows.

    The interval is a bootstrap over whole lines: pixels along one line are not independent of each other.
    """
    borders, others = [], []
    for changes, lines in (
        ((ids_HW[1:] != ids_HW[:-1]).mean(axis=1), rows),
        ((ids_HW[:, 1:] != ids_HW[:, :-1]).mean(axis=0), cols),
    ):
        is_border = np.zeros(len(changes), np.bool_)
        is_border[[line - 1 for line in lines if 0 < line <= len(changes)]] = True
        borders.append(changes[is_border])
        others.append(changes[~is_border])
    border, other = np.concatenate(borders), np.concatenate(others)
    rng = np.random.default_rng(seed)
    drawn = [
        rng.choice(border, len(border)).mean() / rng.choice(other, len(other)).mean() for _ in range(_DRAWS)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Seams(float(border.mean() / other.mean()), float(low), float(high))


if __name__ == "__main__":
    main()
