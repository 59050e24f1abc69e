"""Facts in the pixels of a few files: flags, copies, objects, edges of masks, fill, and empty images."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.generic]
Codes = NDArray[np.int64]

_FLAGS = 0.5
"""Share of the bands with two values at the most, from which an image is one of flags."""
_BIT_VALUES, _BIT_GAP, _LEAST_BITS, _BIT_SHARE = 4096, 16, 4, 0.8
"""Flags packed into bits: the least highest value, the least usual distance of two values, the least number
of values, and their share that one or two bits tell from another one."""
_FOLLOWS, _SAMPLE = 0.95, 4096
"""Rank correlation from which a band is drawn from another one, and pixels that are compared."""
_WITHIN, _ACROSS, _ONCE = 0.85, 0.9, 0.8
"""Share of an object's pixels in one class; share of a number's pixels in one class over all images, above
which numbers are classes of a finer list; share of the values that occur in one image only."""
_MOST_PIECES = 64
"""Values of a label whose connected areas are counted."""
_NEAR, _ON_EDGE, _INSIDE = (2, 3, 5, 8), 0.95, 0.3
"""Pixels from an edge that may be near, share of a mask near edges of the other one, and share of that one's
set pixels that lie farther inside."""
_PIECES, _LEAST_OBJECTS, _AREA = 0.9, 10, 16
"""Share of the values that are one connected area each, values from which a label may be of objects, and
their pixels on average."""


def has_flags(image_HWC: Pixels) -> bool:
    """Return whether an image is a layer of flags: half of its bands or more have two values at the most.

    As usable data masks (udm2), whose bands are 0 or 1 beside one of confidence.
    """
    bands = image_HWC.shape[2]
    return bands > 1 and flag_bands(image_HWC) >= _FLAGS * bands


def flag_bands(image_HWC: Pixels) -> int:
    """Return the number of bands with two values at the most."""
    bands = image_HWC.reshape(-1, image_HWC.shape[2]).T
    return sum(len(np.unique(band[: 1 << 18])) <= 2 for band in bands)


def are_bits(values: Iterable[int]) -> bool:
    """Return whether values are flags packed into bits: far apart, and one or two bits tell them apart.

    As 21824, 21888, 21952 and 22280 of Landsat's QA_PIXEL; codes of classes are of tens or consecutive.
    """
    known = np.array(sorted({value for value in values if value > 1}), np.int64)
    if len(known) < _LEAST_BITS or known[-1] < _BIT_VALUES or not (known % 10).any():
        return False
    if np.median(np.diff(known)) < _BIT_GAP:
        return False
    differ = np.bitwise_count(known[:, None] ^ known[None])
    np.fill_diagonal(differ, 99)
    return float((differ.min(axis=1) <= 2).mean()) >= _BIT_SHARE


def is_copy(copy_HWC: Pixels, of_HWC: Pixels) -> float:
    """Return the share of an image's bands that follow a band of another one: 1 for a preview of it.

    A band follows another one if the ranks of their values correlate; so a stretch or a change of type is
    nothing.
    """
    step = max(1, int(np.sqrt(copy_HWC.shape[0] * copy_HWC.shape[1] / _SAMPLE)))
    copy, of = (_ranks(each[::step, ::step].reshape(-1, each.shape[2])) for each in (copy_HWC, of_HWC))
    alike = np.abs(copy.T @ of).max(axis=1) >= _FOLLOWS
    return float(alike.mean())


def _ranks(values_NC: Pixels) -> NDArray[np.float64]:
    """Return ranks of each column, of mean 0 and length 1; ties have their mean rank."""
    from scipy.stats import rankdata

    ranks = rankdata(np.nan_to_num(values_NC.astype(np.float64)), axis=0)
    ranks -= ranks.mean(axis=0)
    made: NDArray[np.float64] = ranks / np.maximum(np.linalg.norm(ranks, axis=0), 1e-9)
    return made


def object_purity(objects: Sequence[Codes], classes: Sequence[Codes]) -> tuple[float, float] | None:
    """Return how far a label's numbers lie each in one class of another label; None if they are no objects.

    The numbers of objects begin anew in each image, or never recur: within an image each lies in one class,
    over all images they do not, or each is in one image alone. Numbers of a finer list of classes lie in one
    class everywhere.

    Args:
        objects, classes: (H, W) labels of the same images; below 0: without a label.

    Returns:
        Shares of pixels, of their number's commonest class, within images and over all of them.
    """
    within, pixels = 0, 0
    over: dict[int, Counter[int]] = defaultdict(Counter)
    images: Counter[int] = Counter()
    kinds: set[int] = set()
    for numbers, coarse in zip(objects, classes, strict=True):
        if numbers.shape != coarse.shape:
            return None
        kinds |= set(np.unique(coarse[coarse >= 0]).tolist())
        ground = (numbers < 0) | (coarse < 0) | (numbers == 0)
        pairs, counts = np.unique(np.stack([numbers[~ground], coarse[~ground]]), axis=1, return_counts=True)
        own: dict[int, Counter[int]] = defaultdict(Counter)
        for (number, kind), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            own[number][kind] += count
            over[number][kind] += count
        images.update(own.keys())
        within += sum(max(each.values()) for each in own.values())
        pixels += int(counts.sum())
    if not pixels or len(over) <= len(kinds):
        return None
    inside = within / pixels
    across = sum(max(each.values()) for each in over.values()) / pixels
    once = sum(count == 1 for count in images.values()) >= _ONCE * len(images) and len(objects) > 2
    anew = across <= _ACROSS and 1 - inside <= (1 - across) / 2
    if inside < _WITHIN or not (anew or (once and len(over) >= 3 * len(kinds))):
        return None
    return inside, across


def count_objects(labels: Sequence[Codes], least: int = _LEAST_OBJECTS) -> int:
    """Return the most objects of a label if labels number objects; 0 if they may be of classes.

    Numbers, or colours, of objects are one connected area each. They begin anew in each image, as far as it
    has objects: those of an image are among those of one with more. Or each is in one image only.

    Args:
        least: fewer values in each label are no objects.
    """
    pieces = areas = pixels = 0
    own = list[set[int]]()
    for label in labels:
        numbers = np.unique(label[label > 0])
        some = numbers[:: -(-len(numbers) // _MOST_PIECES) or 1].tolist()
        own, areas, pixels = [*own, {*numbers.tolist()}], areas + len(some), pixels + int((label > 0).sum())
        pieces += sum(_is_one_area(label == number) for number in some)
    own.sort(key=len)
    seen = Counter(chain.from_iterable(own))
    if len(own) < 3 or len(own[-1]) < least or pieces < _PIECES * areas or pixels < _AREA * seen.total():
        return 0
    once = sum(count == 1 for count in seen.values()) >= _ONCE * len(seen)
    nested = sum(one <= other for one, other in pairwise(own)) >= _PIECES * (len(own) - 1)
    return len(own[-1]) if once or (nested and len(own[0]) < len(own[-1])) else 0


def _is_one_area(held_HW: NDArray[np.bool_]) -> bool:
    rows, cols = np.flatnonzero(held_HW.any(axis=1)), np.flatnonzero(held_HW.any(axis=0))
    cut = held_HW[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
    return cv2.connectedComponents(cut.astype(np.uint8), connectivity=8)[0] == 2


def edge_share(masks: Sequence[Codes], others: Sequence[Codes]) -> float:
    """Return the share of a mask's set pixels that lie on edges of another one; 0 if it is none of edges.

    As of borders, contours and corners of buildings beside the buildings: a mask is set where it has its
    rarer value. The other one's areas must reach farther than the edges are wide.

    Args:
        masks, others: (H, W) labels of the same images.
    """
    pairs = list(zip(masks, others, strict=True))
    if any(mask.shape != other.shape for mask, other in pairs):
        return 0.0
    for reach in _NEAR:
        counts = np.array([_on_edges(*pair, reach) for pair in pairs], np.int64)
        near, total, inside, area = counts.sum(axis=0).tolist()
        if near >= _ON_EDGE * max(1, total) and inside >= _INSIDE * max(1, area):
            return float(near / total)
    return 0.0


def _on_edges(mask: Codes, other: Codes, reach: int) -> tuple[int, int, int, int]:
    """Return pixels of a mask near edges, all of it, pixels of the other far from edges, and all of it."""
    edge = np.zeros(other.shape, np.uint8)
    edge[1:] |= other[1:] != other[:-1]
    edge[:, 1:] |= other[:, 1:] != other[:, :-1]
    wide = cv2.dilate(edge, np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)).astype(bool)
    held, area = mask == _rarer(mask), other == _rarer(other)
    return int((held & wide).sum()), int(held.sum()), int((area & ~wide).sum()), int(area.sum())


def _rarer(label: Codes) -> int:
    """Return the rarest value but 0, or the rarest one."""
    values, counts = np.unique(label[label >= 0], return_counts=True)
    order = sorted(zip((values == 0).tolist(), counts.tolist(), values.tolist(), strict=True))
    return order[0][2] if order else -1
