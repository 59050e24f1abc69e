"""Windows on which an exported model is checked: of images, or made where there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segmenter.base.errors import RasterError
from segmenter.extras.export.check import Probe
from segmenter.grid.geometry import Size, Window
from segmenter.raster import Raster, open_raster
from segmenter.runs.run import Run
from segmenter.runs.validation_images import FILE, validation_images

_IMAGES, _SIDE, _MADE = 6, 384, 2
"""Images that windows are taken of, two of each; their side where any will do; made batches."""


@dataclass(frozen=True)
class Source:
    """Attributes:
    images: files to take windows of; empty: pixels are made.
    said: what these are, for people.
    """

    images: tuple[Path, ...]
    said: str

    @property
    def kind(self) -> str:
        """What they are, for whoever gets the file: no path of this machine."""
        return self.said.partition(":")[0]


def find_source(run: Run, named: Sequence[Path]) -> Source:
    """Images that a user named, else the run's own validation images, else none.

    Raises:
        RasterError: one that was named cannot be opened, or has not the run's bands.
    """
    if named:
        for path in named:
            _open(path, run).close()
        return Source(tuple(named), f"{len(named)} named image{'s' * (len(named) > 1)}")
    recorded = validation_images(run.path)
    there = tuple(path for path in recorded if path.is_file())
    if there:
        return Source(_evenly(there), "the run's validation images")
    why = (
        f"the run's validation images are not here ({recorded[0]} …)"
        if recorded
        else f"the run does not say where its validation images are ({FILE} names none)"
    )
    return Source((), f"MADE PIXELS, not imagery: {why}; to check on real ones, name some with --images")


def probes(run: Run, source: Source, size: int | None, batch: int) -> Iterator[Probe]:
    """Batches of windows, of one size where it is fixed, else of odd ones.

    Args:
        size: fixed height and width.
        batch: windows at once, 1 or 2.

    Raises:
        RasterError: a window cannot be read.
    """
    shapes = [Size(size, size)] * 2 if size else [Size(_SIDE + 5, _SIDE - 31), Size(_SIDE // 2 - 9, _SIDE)]
    if not source.images:
        rng = np.random.default_rng(16)
        for shape in shapes[:_MADE]:
            yield from _split(_made(run, rng, shape), batch)
        return
    for number, path in enumerate(_evenly(source.images)):
        with _open(path, run) as raster:
            yield from _split(_read(raster, shapes[number % 2]), batch)


def _open(path: Path, run: Run) -> Raster:
    raster = open_raster(path, run.bands)
    if len(raster.bands) != run.band_count:
        raster.close()
        raise RasterError(
            f"{path}: expected {run.band_count} bands of data, as the run was trained with, got "
            f"{len(raster.bands)}"
        )
    return raster


def _evenly(images: Sequence[Path]) -> tuple[Path, ...]:
    count = min(len(images), _IMAGES)
    return tuple(images[i * len(images) // count] for i in range(count))


def _read(raster: Raster, shape: Size) -> Probe:
    """Two windows: one in the middle, one over the lower right corner, beyond which there are no data."""
    size = raster.info.size
    places = (
        (max(0, (size.height - shape.height) // 2), max(0, (size.width - shape.width) // 2)),
        (max(0, size.height - shape.height + 7), max(0, size.width - shape.width + 11)),
    )
    read = [raster.read(Window(row, col, shape.height, shape.width)) for row, col in places]
    return Probe(np.stack([image for image, _ in read]), np.stack([valid for _, valid in read]))


def _made(run: Run, rng: np.random.Generator, shape: Size) -> Probe:
    """Smooth noise with the bands' mean and deviation, in the images' type, with holes."""
    coarse = rng.normal(size=(2, shape.height // 16 + 2, shape.width // 16 + 2, run.band_count))
    smooth = coarse.repeat(16, axis=1).repeat(16, axis=2)[:, : shape.height, : shape.width]
    values = (smooth + rng.normal(size=smooth.shape) / 4) * run.normalisation.std + run.normalisation.mean
    if np.issubdtype(np.dtype(run.dtype), np.integer):
        limits = np.iinfo(run.dtype)
        values = values.round().clip(float(limits.min), np.nextafter(float(limits.max), 0))
    valid = np.ones(values.shape[:3], np.bool_)
    valid[:, : shape.height // 5, shape.width // 2 :] = False
    return Probe(values.astype(run.dtype), valid)


def _split(probe: Probe, batch: int) -> Iterator[Probe]:
    for start in range(0, len(probe.valid_BHW), batch):
        part = slice(start, start + batch)
        yield Probe(probe.image_BHWC[part], probe.valid_BHW[part])
