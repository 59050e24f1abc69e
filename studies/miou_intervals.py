"""Coverage of the interval of mIoU over blocks, on made maps whose classes and errors are alike over a range.

    python -m studies.miou_intervals [--draws 300]

Classes (one of them rare) are the largest of three Gaussian fields; errors are where a fourth, of 64 % of the
variance of which the rest is noise, is high. All have the exponential covariance exp(-3 h / range), whose 95 %
of the sill is at the range. A made pixel stands for 16 × 16. The truth is the mIoU of all draws of a line.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import fft

from segmenter.evaluation.bootstrap import Interval, _drawn_bounds, _units, _weights, miou_interval
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap, LandCoverClass

PIXEL, CLASSES = 16, 3
OFFSETS = (0.0, 0.0, -1.9)
LINES = [(1, 2048, r) for r in (64, 128, 256, 512)] + [(3, 2048, r) for r in (64, 256, 512)]
LINES += [(1, 8192, 512), (5, 640, 64), (10, 1024, 256)]
NAMES = ClassMap(tuple(LandCoverClass(name, (i, i, i), i) for i, name in enumerate("abc")))
PROTOCOL = Protocol(tuple("abc"), "full", "test")


class Maps:
    """Scenes of a side and a range in pixels."""

    def __init__(self, side: int, reach: int, seed: int) -> None:
        self.side, self._made = side, side // PIXEL
        torus = fft.next_fast_len(self._made + 2 * reach // PIXEL)
        distance = np.minimum(np.arange(torus), torus - np.arange(torus)) * PIXEL
        covariance = np.exp(-3 * np.hypot(distance[:, None], distance) / reach)
        self._amplitude = np.sqrt(np.maximum(fft.fft2(covariance).real, 0)) / torus
        self._rng = np.random.default_rng(seed)

    def scene(self) -> ConfusionMatrix:
        """Return the counts of another scene."""
        rng, shape = self._rng, self._amplitude.shape
        fields = []
        for _ in range(4):
            noise = rng.normal(size=shape) + 1j * rng.normal(size=shape)
            field = fft.fft2(self._amplitude * noise)[: self._made, : self._made]
            fields += [field.real, field.imag]
        truth, wrong = (np.argmax([f + o for f, o in zip(fields[i : i + 3], OFFSETS)], 0) for i in (0, 3))
        errs = 0.8 * fields[6] + 0.6 * rng.normal(size=truth.shape) > 0.6
        pair = truth * CLASSES + np.where(errs, wrong, truth)
        found = ConfusionMatrix(NAMES, part=Window(0, 0, self.side, self.side))
        rows = np.arange(self._made) * PIXEL // found.blocks.side
        block = rows[:, None] * found.blocks.counts.shape[1] + rows
        count = np.bincount((block * CLASSES**2 + pair).ravel(), minlength=block[-1, -1] * 9 + 9)
        found.blocks.counts[..., :-1] += PIXEL**2 * count.reshape(*found.blocks.counts.shape[:3], CLASSES)
        found.counts += found.blocks.counts.sum(axis=(0, 1))
        return found


def over_pixels(scenes: list[ConfusionMatrix], rng: np.random.Generator) -> Interval:
    """Return the interval that drawing pixels gives."""
    total = np.sum([scene.counts for scene in scenes], axis=0)[:, :-1]
    draws = rng.multinomial(total.sum(), (total / total.sum()).ravel(), 300).reshape(-1, CLASSES, CLASSES)
    hits = np.diagonal(draws, axis1=1, axis2=2)
    iou = hits / (draws.sum(axis=1) + draws.sum(axis=2) - hits)
    return Interval(tuple(np.percentile(iou.mean(axis=1), (2.5, 97.5))), total.sum())


def finest(scenes: list[ConfusionMatrix]) -> Interval:
    """Return the interval over the smallest blocks."""
    units = np.concatenate([_units(scene.blocks.merged(scene.blocks.side), [0, 1, 2]) for scene in scenes])
    return Interval(_drawn_bounds([units], _weights(units)), 0)


def line(count: int, side: int, reach: int, draws: int) -> str:
    """Return a line of the table."""
    maps = Maps(side, reach, seed=side + reach + count)
    each = [[maps.scene() for _ in range(count)] for _ in range(draws)]
    truth = ConfusionMatrix(NAMES, sum(one.counts for scenes in each for one in scenes)).scores(PROTOCOL).miou
    cells, rng = [], np.random.default_rng(0)
    for interval in (lambda s: over_pixels(s, rng), finest, lambda s: miou_interval(s, PROTOCOL)):
        found = [one for scenes in each if (one := interval(scenes)).bounds is not None]
        holds = np.mean([low <= truth <= high for low, high in (one.bounds for one in found)])
        cells.append((holds, np.mean([high - low for low, high in (one.bounds for one in found)])))
    texts = [f"{100 * holds:.0f} % ({100 * width:.1f})" for holds, width in cells]
    units = str(found[0]).partition("over ")[2].rstrip(")")
    return " | ".join(["", str(count), f"{side:,}", str(reach), *texts, units, ""]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=300)
    draws = parser.parse_args().draws
    print("| scenes | side, px | range, px | over pixels | over the finest blocks | as built | units |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for one in LINES:
        print(line(*one, draws), flush=True)


if __name__ == "__main__":
    main()
