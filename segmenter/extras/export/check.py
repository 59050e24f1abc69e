"""Comparison of an exported model with predict.py: the law that every exported file satisfies.

The law: **classes are equal at every pixel, except where the two best probabilities of the original differ by
less than a tolerance; and no probability differs by the tolerance or more.** If two classes are that close,
rounding decides, also in predict.py: other runtimes sum in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ExportError, RasterError
from segmenter.extras.export.formats import Runtime
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.windows import round_up
from segmenter.inference.prediction import Worker
from segmenter.raster import Raster, open_raster
from segmenter.runs.records import VALIDATION_FILE, validation_images
from segmenter.runs.run import Run

TOLERANCE, TOLERANCE_FP16 = 1e-3, 5e-2
"""Tolerance of a probability: a hundred times float32's observed difference, a few times float16's."""
_IMAGES, _SIDE, _MADE = 6, 384, 2
"""Images that windows are taken of, two of each; their side where any will do; made batches."""


@dataclass(frozen=True, eq=False)
class ProbePixels:
    """Pixels for the comparison.

    Attributes:
        image_BHWC: pixels in the images' own type.
        valid_BHW: mask of pixels with data.
    """

    image_BHWC: NDArray[np.generic]
    valid_BHW: NDArray[np.bool_]


@dataclass(frozen=True)
class ExportAgreement:
    """Agreement of an exported model with the original.

    Attributes:
        windows, pixels: numbers compared; only pixels with data.
        largest: largest difference of a probability.
        ties: pixels with another class, whose two best probabilities differ by less than the tolerance.
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
    probes: Iterable[ProbePixels],
    stride: int,
    *,
    nodata: bool,
    tolerance: float,
) -> ExportAgreement:
    """Run both models on the same windows and compare them.

    Args:
        stride: stride to whose multiples the original's windows are padded.
        nodata: True if NaN marks pixels without data in the exported model; else all pixels have data.

    Raises:
        ExportError: the law does not hold; the message has the difference.
    """
    windows = pixels = ties = 0
    largest = 0.0
    for probe in probes:
        valid = probe.valid_BHW if nodata else np.ones_like(probe.valid_BHW)
        expected = _original(original, probe.image_BHWC, valid, stride)
        image = probe.image_BHWC.astype(np.float32)
        if nodata:
            image[~valid] = np.nan
        probabilities, classes = runtime(image)
        _check_nodata(probabilities, classes, valid)
        best = expected.argmax(axis=-1).astype(np.uint8)
        two = np.partition(expected, -2, axis=-1)[..., -2:] if expected.shape[-1] > 1 else None
        margin: NDArray[Any] = np.ones(best.shape) if two is None else two[..., 1] - two[..., 0]
        other = (classes != best) & valid
        largest = max(largest, _largest(probabilities, expected, valid))
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
    return ExportAgreement(windows, pixels, largest, ties, tolerance)


def _original(
    worker: Worker, image_BHWC: NDArray[np.generic], valid_BHW: NDArray[np.bool_], stride: int
) -> NDArray[np.float32]:
    """Return predict.py's probabilities; its windows are padded with pixels without data."""
    batch, height, width = valid_BHW.shape
    below, right = round_up(height, stride) - height, round_up(width, stride) - width
    margins = ((0, 0), (0, below), (0, right))
    image, valid = np.pad(image_BHWC, (*margins, (0, 0))), np.pad(valid_BHW, margins)
    image[~valid] = 0
    rows, cols = (np.ones((batch, length), np.float32) for length in valid.shape[1:])
    return worker.weighted(image, valid, rows, cols)[:, :height, :width]


def _largest(found: NDArray[np.float32], expected: NDArray[np.float32], valid: NDArray[np.bool_]) -> float:
    """Return the largest difference of probabilities in pixels with data; infinite if one is NaN."""
    differences = np.abs(found - expected)[valid]
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _check_nodata(
    found: NDArray[np.float32], classes: NDArray[np.uint8], valid_BHW: NDArray[np.bool_]
) -> None:
    """Check that pixels without data have class 255 and probabilities 0."""
    wrong = (classes != IGNORE) | (found != 0).any(axis=-1)
    if count := int((wrong & ~valid_BHW).sum()):
        raise ExportError(f"it gives a class to {count:,} pixels that have no data")


# ---------------------------------------------------------------------------------------------------- windows


@dataclass(frozen=True)
class CheckImages:
    """Images for checking an exported model.

    Attributes:
        images: files to read windows from; empty: synthetic pixels.
    """

    images: tuple[Path, ...]
    said: str

    @property
    def kind(self) -> str:
        """Kind of the images without paths of this machine, for recipients of the file."""
        return self.said.partition(":")[0]


def find_source(run: Run, named: Sequence[Path]) -> CheckImages:
    """Return images that the user named, else the run's validation images, else none.

    Raises:
        RasterError: a named image cannot be opened, or lacks the run's bands.
    """
    if named:
        for path in named:
            _open(path, run).close()
        return CheckImages(tuple(named), f"{len(named)} named image{'s' * (len(named) > 1)}")
    recorded = validation_images(run.path)
    existing = tuple(path for path in recorded if path.is_file())
    if existing:
        return CheckImages(_evenly(existing), "the run's validation images")
    why = (
        f"the run's validation images are not here ({recorded[0]} …)"
        if recorded
        else f"the run does not say where its validation images are ({VALIDATION_FILE} names none)"
    )
    return CheckImages((), f"MADE PIXELS, not imagery: {why}; to check on real ones, name some with --images")


def probes(run: Run, source: CheckImages, size: int | None, batch: int) -> Iterator[ProbePixels]:
    """Yield batches of windows, of one size if it is fixed, else of odd sizes.

    Args:
        batch: windows of a batch, 1 or 2.

    Raises:
        RasterError: a window cannot be read.
    """
    shapes = [Size(size, size)] * 2 if size else [Size(_SIDE + 5, _SIDE - 31), Size(_SIDE // 2 - 9, _SIDE)]
    if not source.images:
        rng = np.random.default_rng(16)
        for shape in shapes[:_MADE]:
            yield from _split(_make_probe(run, rng, shape), batch)
        return
    for number, path in enumerate(_evenly(source.images)):
        with _open(path, run) as raster:
            yield from _split(_read(raster, shapes[number % 2]), batch)


def _open(path: Path, run: Run) -> Raster:
    raster = open_raster(path, run.bands)
    raster.mean_C = run.mean_C  # as predict.py fills single bands without data
    if len(raster.bands) != run.band_count:
        raster.close()
        raise RasterError(
            path,
            expected=f"{run.band_count} bands of data, as the run was trained with",
            got=len(raster.bands),
        )
    return raster


def _evenly(images: Sequence[Path]) -> tuple[Path, ...]:
    count = min(len(images), _IMAGES)
    return tuple(images[i * len(images) // count] for i in range(count))


def _read(raster: Raster, shape: Size) -> ProbePixels:
    """Read two windows: one in the middle, one across the lower right corner, partly without data."""
    size = raster.info.size
    places = (
        (max(0, (size.height - shape.height) // 2), max(0, (size.width - shape.width) // 2)),
        (max(0, size.height - shape.height + 7), max(0, size.width - shape.width + 11)),
    )
    read = [raster.read(Window(row, col, shape.height, shape.width)) for row, col in places]
    return ProbePixels(np.stack([image for image, _ in read]), np.stack([valid for _, valid in read]))


def _make_probe(run: Run, rng: np.random.Generator, shape: Size) -> ProbePixels:
    """Return smooth noise with the bands' mean and deviation, in the images' type, with holes."""
    coarse = rng.normal(size=(2, shape.height // 16 + 2, shape.width // 16 + 2, run.band_count))
    smooth = coarse.repeat(16, axis=1).repeat(16, axis=2)[:, : shape.height, : shape.width]
    values = (smooth + rng.normal(size=smooth.shape) / 4) * run.normalisation.std + run.normalisation.mean
    if np.issubdtype(np.dtype(run.dtype), np.integer):
        limits = np.iinfo(run.dtype)
        values = values.round().clip(float(limits.min), np.nextafter(float(limits.max), 0))
    valid = np.ones(values.shape[:3], np.bool_)
    valid[:, : shape.height // 5, shape.width // 2 :] = False
    return ProbePixels(values.astype(run.dtype), valid)


def _split(probe: ProbePixels, batch: int) -> Iterator[ProbePixels]:
    for start in range(0, len(probe.valid_BHW), batch):
        part = slice(start, start + batch)
        yield ProbePixels(probe.image_BHWC[part], probe.valid_BHW[part])
