"""Tiles of one picture: their borders fit, where their numbers put them side by side."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Size

from .landmarks import Floats, Guess
from .start.names import split_of_word

_BINS = 16
"""Means along a border: noise and compression of single pixels do not count."""
_SAMPLED, _SERIES = 24, 12
"""Tiles of a series whose neighbours are looked for, and series."""
_CLEAR = 0.5
"""Share of the next best difference below which a border fits."""
_LEAST, _MOSTLY = 4, 0.25
"""Borders that must fit at the same distance of numbers, and their share of those looked at."""

Ints = NDArray[np.int64]


def borders_of(grey_HW: Floats) -> Floats:
    """Return means along the upper, lower, left and right border (4, 16)."""
    lines = grey_HW[0], grey_HW[-1], grey_HW[:, 0], grey_HW[:, -1]
    return np.array([_means(line.astype(np.float64)) for line in lines], np.float32)


def _means(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of sixteen parts of a line, the first ones longer; 0 of parts without a pixel."""
    length, longer = divmod(len(line), _BINS)
    ends = np.cumsum(np.where(np.arange(_BINS) < longer, length + 1, length))
    sums = np.append(0.0, np.cumsum(line))[np.append(0, ends)]
    return np.diff(sums) / np.maximum(1, np.diff(np.append(0, ends)))


def series_of(images: Sequence[Path]) -> tuple[list[str], Ints]:
    """Return for each image what its path begins with, and the number at its end; -1 if it has none.

    Folders of a split do not count: one series may lie in several.
    """
    found = [re.fullmatch(r"(.*?)(\d+)", image.stem) for image in images]
    begins = []
    for match, image in zip(found, images, strict=True):
        folders = [part for part in image.parent.parts if not split_of_word(part)]
        begins.append(str(Path(*folders, match[1] if match else image.stem)))
    return begins, np.array([int(match[2]) % 10**12 if match else -1 for match in found], np.int64)


def pictures_of(images: Sequence[Path], borders: Sequence[Floats | None]) -> tuple[list[str], Ints] | None:
    """Return the picture of each image and its row and column (S, 2), if images are tiles that continue.

    Borders are compared within series of names alone. Tiles continue if many a right border fits one left
    border far better than all others, and mostly that of a tile as many numbers on; lower borders likewise.
    None: there is no such number, or many tiles would have one place, as those that overlap.
    """
    begins, numbers = series_of(images)
    members: dict[str, list[int]] = defaultdict(list)
    for i, begin in enumerate(begins):
        if borders[i] is not None and numbers[i] >= 0:
            members[begin].append(i)
    large = sorted((own for own in members.values() if len(own) > _LEAST), key=len, reverse=True)[:_SERIES]
    steps = []
    for here, there in ((3, 2), (1, 0)):  # right to left, lower to upper
        found: Counter[int] = Counter()
        looked = 0
        for own in large:
            own_S4E = np.stack([border for i in own if (border := borders[i]) is not None])
            sampled = np.unique(np.linspace(0, len(own) - 1, _SAMPLED).round().astype(int))
            away = np.abs(own_S4E[sampled, None, here] - own_S4E[None, :, there]).mean(axis=2)
            away[np.arange(len(sampled)), sampled] = np.inf
            best, next_best = np.partition(away, 1, axis=1)[:, :2].T
            fits = best < _CLEAR * next_best
            after = numbers[np.array(own)[np.argmin(away, axis=1)]] - numbers[np.array(own)[sampled]]
            found.update(after[fits].tolist())
            looked += len(sampled)
        step, count = found.most_common(1)[0] if found else (0, 0)
        steps.append(step if step > 0 and count >= max(_LEAST, _MOSTLY * looked) else 0)
    right, below = steps
    if not right and not below:
        return None
    least = {begin: min(numbers[own]) for begin, own in members.items()}
    from_first = numbers - np.array([least.get(begin, 0) for begin in begins])
    if right and below and right > below:  # numbered down columns
        col, row = np.divmod(from_first, right)
        row = row // below
    else:
        row, col = np.divmod(from_first, below) if below else (np.zeros_like(from_first), from_first)
        col = col // max(1, right)
    if len({*zip(begins, row.tolist(), col.tolist(), strict=True)}) < (1 - _MOSTLY) * len(images):
        return None
    return begins, np.stack([row, col], axis=1)


def named_windows(images: Sequence[Path], sizes: Sequence[Size]) -> list[list[Guess]]:
    """Return guesses for windows whose names say row and column, or x and y, in steps shorter than a window.

    Two readings, each a list of neighbours along both axes.
    """
    readings: list[list[Guess]] = [[], []]
    series: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)
    for i, image in enumerate(images):
        if match := re.fullmatch(r"(.*?)(\d{1,9})[_-]\D?(\d{1,9})", image.stem):
            series[match[1]][int(match[2]), int(match[3])] = i
    for own in series.values():
        for axis in (0, 1):
            values = np.unique([number[axis] for number in own])
            step = int(np.diff(values).min()) if len(values) > 1 else 0
            if not _LEAST < step < min(min(sizes[i].height, sizes[i].width) for i in own.values()):
                continue
            for number, i in own.items():
                after = (number[0] + step, number[1]) if axis == 0 else (number[0], number[1] + step)
                if (j := own.get(after)) is not None:
                    for reading, down in enumerate((axis == 0, axis == 1)):
                        shift = (0.0, -float(step)) if down else (-float(step), 0.0)
                        matrix = np.concatenate([np.eye(2), np.array(shift)[:, None]], axis=1)
                        readings[reading].append(Guess(i, j, matrix, 0))
    return readings
