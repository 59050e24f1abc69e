"""Whether an exported model gives the classes of predict.py: the law that a file keeps, or is not written.

The law: **classes are equal at every pixel, except where the two best probabilities of the original differ
by less than a tolerance; and no probability differs by the tolerance or more.** Where two classes are that
close, rounding decides, in predict.py as well: other runtimes add up in another order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ExportError
from segmenter.extras.export.formats import Runtime
from segmenter.grid.labels import IGNORE
from segmenter.grid.windows import round_up
from segmenter.inference.prediction import Worker

TOLERANCE, TOLERANCE_FP16 = 1e-3, 5e-2
"""Of a probability: a hundred times what float32 was seen to differ by, and a few times what float16 was."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Pixels to check on.

    Attributes:
        image_BHWC: in the images' own type.
        valid_BHW: which have data.
    """

    image_BHWC: NDArray[np.generic]
    valid_BHW: NDArray[np.bool_]


@dataclass(frozen=True)
class Agreement:
    """How an exported model agrees with the original.

    Attributes:
        windows, pixels: that were compared; pixels have data.
        largest: difference of a probability.
        ties: pixels of another class whose two best probabilities are closer than the tolerance.
        tolerance: of a probability.
    """

    windows: int
    pixels: int
    largest: float
    ties: int
    tolerance: float

    def __str__(self) -> str:
        other = (
            "the same classes"
            if not self.ties
            else f"the same classes but at {self.ties:,}, where the two best probabilities differ by less "
            f"than {self.tolerance:g}"
        )
        return (
            f"{self.windows} windows, {self.pixels:,} pixels: {other}; largest difference of a probability "
            f"{self.largest:.1e}"
        )


def compare(
    original: Worker,
    runtime: Runtime,
    probes: Iterable[Probe],
    stride: int,
    *,
    nodata: bool,
    tolerance: float,
) -> Agreement:
    """Run both on the same windows.

    Args:
        original: predict.py's own compiled model.
        stride: to whose multiples its windows are filled up.
        nodata: whether the exported model knows pixels without data, as NaN; else all have them.

    Raises:
        ExportError: the law does not hold; says by how much.
    """
    windows = pixels = ties = 0
    largest = 0.0
    for probe in probes:
        valid = probe.valid_BHW if nodata else np.ones_like(probe.valid_BHW)
        expected = _original(original, probe.image_BHWC, valid, stride)
        image = probe.image_BHWC.astype(np.float32)
        if nodata:
            image[~valid] = np.nan
        found, classes = runtime(image)
        _check_nodata(found, classes, valid)
        best = expected.argmax(axis=-1).astype(np.uint8)
        two = np.partition(expected, -2, axis=-1)[..., -2:] if expected.shape[-1] > 1 else None
        margin: NDArray[Any] = np.ones(best.shape) if two is None else two[..., 1] - two[..., 0]
        other = (classes != best) & valid
        largest = max(largest, _largest(found, expected, valid))
        if wrong := int((other & (margin >= tolerance)).sum()):
            raise ExportError(
                f"it gives another class than predict.py at {wrong:,} of {int(valid.sum()):,} pixels, where "
                f"the two best probabilities differ by up to {margin[other].max():.2g} (expected less than "
                f"{tolerance:g})"
            )
        windows, pixels, ties = windows + len(best), pixels + int(valid.sum()), ties + int(other.sum())
    if not largest < tolerance:
        raise ExportError(
            f"its probabilities differ from predict.py's by up to {largest:.2g} (expected less than "
            f"{tolerance:g})"
        )
    return Agreement(windows, pixels, largest, ties, tolerance)


def _original(
    worker: Worker, image_BHWC: NDArray[np.generic], valid_BHW: NDArray[np.bool_], stride: int
) -> NDArray[np.float32]:
    """Probabilities of predict.py: its windows are filled up with pixels without data."""
    batch, height, width = valid_BHW.shape
    below, right = round_up(height, stride) - height, round_up(width, stride) - width
    margins = ((0, 0), (0, below), (0, right))
    image, valid = np.pad(image_BHWC, (*margins, (0, 0))), np.pad(valid_BHW, margins)
    image[~valid] = 0
    rows, cols = (np.ones((batch, length), np.float32) for length in valid.shape[1:])
    return worker.weighted(image, valid, rows, cols)[:, :height, :width]


def _largest(found: NDArray[np.float32], expected: NDArray[np.float32], valid: NDArray[np.bool_]) -> float:
    """Difference of two probabilities where there are data; NaN, where one is, is infinite."""
    differences = np.abs(found - expected)[valid]
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _check_nodata(
    found: NDArray[np.float32], classes: NDArray[np.uint8], valid_BHW: NDArray[np.bool_]
) -> None:
    """Where there are no data: class 255, probabilities 0."""
    wrong = (classes != IGNORE) | (found != 0).any(axis=-1)
    if count := int((wrong & ~valid_BHW).sum()):
        raise ExportError(f"it gives a class to {count:,} pixels that have no data")
