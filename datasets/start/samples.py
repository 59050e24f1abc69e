"""Samples of a dataset's labels: coarse whole scenes and fine windows, and what they tell.

A few dozen scenes are enough for shares, sizes of areas, and the distance over which labels are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.base.threads import in_threads
from segmenter.grid.components import components
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, class_pixels
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import KnownRasters

MOST_SCENES = 64
_COARSE, _FINE = 256, 512
"""Pixels along the longer side of a coarse label; along each side of a fine window."""
_SILL = 0.95
"""Share of the sill at which the practical range lies."""
LEAST_SCENES = 8
"""Scenes from which their upper and lower parts can be compared."""
_UPRIGHT = 3.0
"""Times that upper and lower parts differ more than left and right ones, from which images have an up."""
_LEAST_DIFFERENCE = 0.2
"""Share of the pixels whose class differs between upper and lower parts, for that."""

Ids = NDArray[np.uint8]


@dataclass(frozen=True)
class LabelSample:
    """Label of one scene, twice.

    Attributes:
        coarse: (h, w) class ids of the whole scene, thinned.
        step: scene pixels from one pixel of `coarse` to the next.
        fine: (h, w) class ids of the central window at full resolution.
    """

    coarse: Ids
    step: float
    fine: Ids


def samples_of(dataset: Dataset, files: KnownRasters) -> list[LabelSample]:
    """Return samples of at most `MOST_SCENES` labels, evenly chosen.

    Args:
        files: opener that knows labels which were read before.

    Raises:
        LabelError, RasterError: a label cannot be read, or has a value that is no class.
    """
    chosen = np.unique(np.linspace(0, len(dataset.scenes) - 1, MOST_SCENES).round().astype(int))

    def read(scene: Scene) -> LabelSample:
        assert scene.label is not None, "the loader pairs them"
        with files.label(scene.label, dataset.classes) as label:
            size = label.info.size
            step = max(1.0, max(size.height, size.width) / _COARSE)
            shape = Size(max(1, round(size.height / step)), max(1, round(size.width / step)))
            return LabelSample(label.ids(shape=shape), step, label.ids(Window.middle(size, _FINE)))

    scenes = [dataset.scenes[i] for i in chosen]
    return list(in_threads(read, scenes, description="looking at labels", unit="scene"))


def label_range(samples: Sequence[LabelSample]) -> tuple[float, bool]:
    """Return the pixels over which labels are alike, and True if the scenes are long enough to tell.

    The sum of the classes' indicator variograms at a lag is the probability that two pixels so far apart, in
    a row or column, differ in class; its sill is that of two pixels drawn at random. The practical range is
    the least lag at 95 % of the sill (Goovaerts, Geostatistics for Natural Resources Evaluation, 1997).
    """
    reach = max(s.step * (max(s.coarse.shape) // 2) for s in samples)
    lags = np.unique(np.geomspace(1, max(2.0, reach), 40).round())
    counts = np.sum([class_pixels(s.coarse, IGNORE) for s in samples], axis=0)
    share = counts / max(1, counts.sum())
    sill = 1 - float((share**2).sum())
    for lag in lags:
        differ = pairs = 0
        for sample in samples:
            steps = round(lag / sample.step)
            for ids in (sample.coarse, sample.coarse.T) if steps else ():
                a, b = ids[steps:], ids[:-steps]
                both = (a != IGNORE) & (b != IGNORE)
                pairs += int(both.sum())
                differ += int((both & (a != b)).sum())
        if pairs and differ / pairs >= _SILL * sill:
            return float(lag), bool(lag < reach)
    return float(reach), False


def has_fixed_orientation(samples: Sequence[LabelSample]) -> tuple[bool, float]:
    """Return True if upper and lower parts of the scenes show other classes, and how much they differ.

    From above, neither side of many images is special; in a picture of a street the sky is above. The
    difference is the total variation distance of the class shares of upper and lower thirds, compared with
    that of left and right thirds.
    """

    def differ(scenes: Sequence[Ids]) -> float:
        """Return the difference of first and last rows."""
        ends = np.zeros((2, IGNORE))
        for ids in scenes:
            third = max(1, len(ids) // 3)
            counts = np.stack([class_pixels(ids[:third], IGNORE), class_pixels(ids[-third:], IGNORE)])
            ends += counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        shares = ends / np.maximum(1e-12, ends.sum(axis=1, keepdims=True))
        return float(np.abs(shares[0] - shares[1]).sum() / 2)

    vertical, horizontal = differ([s.coarse for s in samples]), differ([s.coarse.T for s in samples])
    special = vertical >= _LEAST_DIFFERENCE and vertical >= _UPRIGHT * horizontal
    return special and len(samples) >= LEAST_SCENES, vertical


def area_of(samples: Sequence[LabelSample], class_id: int) -> float | None:
    """Return the median pixels of a class's connected areas in the fine windows; None if they show none."""
    areas: list[int] = []
    for sample in samples:
        strip = components(Window(0, 0, *sample.fine.shape), np.where(sample.fine == class_id, 0, IGNORE))
        areas += np.bincount(strip.labels.reshape(-1))[1:].tolist()
    large = [area for area in areas if area > 4]  # fewer are noise of drawing and decoding
    return float(np.median(large or areas)) if areas else None
