"""Predictions brought back from a coarser grid onto a raster's own pixels, against OpenCV's resizing of them.

    python -m studies.regridding [--width 16384] [--step 5]

As `predict.py --gsd` does it: probabilities of K classes interpolated, and the class of the largest chosen.
The baseline does the same with `cv2.resize`, which knows neither pixels without data nor windows. Prints
processor and clock nanoseconds for each of the raster's pixels, and the ratio of the processor's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.inference.regridding import Regridder
from segmenter.raster.resampled import GridColumns, ModelGrid
from segmenter.grid.windows import Columns

CLASSES, ROWS, REPEATS = 7, 100, 3


def main() -> None:
    """Make probabilities, bring them back both ways, print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=16384, help="pixels of the raster")
    parser.add_argument("--step", type=int, default=5, help="of its pixels along one of the grid")
    arguments = parser.parse_args()
    width, step, height = arguments.width, Fraction(arguments.step), ROWS * arguments.step
    own = Window.of(Size(height, width))
    columns = GridColumns(Columns(own, width), ModelGrid(own, step, step))
    (seen,) = columns.remaining(0)
    rng = np.random.default_rng(0)
    probabilities = rng.random((seen.height, seen.width, CLASSES), np.float32)
    probabilities /= probabilities.sum(axis=2, keepdims=True)
    given = Prediction.of_probabilities(probabilities, ExtraOutputs(probabilities="float16"))

    def ours() -> NDArray[np.uint8]:
        back = Regridder(columns, ExtraOutputs(), CLASSES, lambda w: np.ones((w.height, w.width), np.bool_))
        ids = np.empty((height, width), np.uint8)
        for window, found in back.take(seen, given):
            ids[window.slices()] = found.ids
        return ids

    def opencv() -> NDArray[np.uint8]:
        assert given.probabilities is not None
        ids = np.empty((height, width), np.uint8)
        side, rows = arguments.step, 4  # of the grid at once; two more above and below, for the interpolation
        padded = np.pad(given.probabilities, ((2, 2), (0, 0), (0, 0)), "edge")
        for row in range(0, seen.height, rows):
            part = padded[row : row + rows + 4].astype(np.float32)
            large = cv2.resize(part, (seen.width * side, len(part) * side))[2 * side : -2 * side, :width]
            found = Prediction.of_probabilities(np.ascontiguousarray(large), ExtraOutputs()).ids
            ids[row * side : row * side + len(found)] = found[: height - row * side]
        return ids

    same = float((ours() == opencv()).mean())
    line: dict[str, Any] = {"step": arguments.step, "same_class": same}
    for name, way in (("ours", ours), ("opencv", opencv)):
        processor, clock = _nanoseconds(way, own.size.pixels)
        line |= {f"{name}_processor_ns": processor, f"{name}_clock_ns": clock}
    line["ratio"] = line["ours_processor_ns"] / line["opencv_processor_ns"]
    print(json.dumps({key: round(value, 4) for key, value in line.items()}))


def _nanoseconds(way: Callable[[], Any], pixels: int) -> tuple[float, float]:
    """(processor, clock) for each pixel, the least of some repeats."""
    found = []
    for _ in range(REPEATS):
        processor, clock = time.process_time(), time.perf_counter()
        way()
        found.append((time.process_time() - processor, time.perf_counter() - clock))
    least = np.min(found, axis=0) / pixels * 1e9
    return float(least[0]), float(least[1])


if __name__ == "__main__":
    main()
