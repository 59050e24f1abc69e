"""Choice among several kinds of images, or of labels, of the same scenes, by their pixels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from segmenter.base.errors import SegmenterError, counted
from segmenter.base.files import is_vector
from segmenter.pages.parts import percent

from . import pixels
from .legends import find_legend
from .names import AUXILIARY, words_of
from .sight import DataPlace

_LOOKED_AT, _MOST_KINDS = 8, 8
"""Scenes of which all kinds are looked at, and kinds that are compared."""
_SMALLER, _COPIED = 0.9, 0.6
"""Share of an image's pixels below which a copy is smaller, and share of its bands that must follow."""
_FORM = 0.05
"""Share by which the ratio of an image's sides may differ from that of its preview."""
_NAMED = 0.9
"""Share of a label's values that a list must name to fit it."""

Role = tuple[str, str]
"""What names of images, and of labels, have beside what they share."""


@dataclass
class SetBack:
    """Kinds of files that come after others of the same scenes, by what their names have, with the reason."""

    images: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def set_back(roles: Mapping[Role, Sequence[tuple[str, str]]], place: DataPlace) -> SetBack:
    """Return which of several kinds of images and labels are no images, or labels of no classes.

    Args:
        roles: (image, label) pairs of the kinds of names that are equally common.
    """
    back, labels = SetBack(), dict[str, dict[str, str]]()
    images: dict[str, dict[str, str]] = {}
    for (of_image, of_label), members in sorted(roles.items())[: _MOST_KINDS**2]:
        for image, label in members:
            images.setdefault(label, {})[of_image] = image
            labels.setdefault(image, {})[of_label] = label
    _compare(images, back.images, lambda one, other: _no_image(place, one, other))
    if not any(is_vector(label) for label in images):
        fit_lists(place, labels, back.labels)
        _compare(labels, back.labels, lambda one, other: _no_classes(place, one, other))
    return back


def _compare(
    kinds: Mapping[str, Mapping[str, str]],
    back: dict[str, str],
    why: Callable[[Sequence[str], Sequence[str]], str],
) -> None:
    """Set back each kind for which there is a reason beside another kind of the same scenes."""
    names = sorted({name for own in kinds.values() for name in own})[:_MOST_KINDS]
    for one, other in permutations(names, 2):
        both = [own for _, own in sorted(kinds.items()) if one in own and other in own]
        some = both[:: -(-len(both) // _LOOKED_AT) or 1]
        if some and one not in back and other not in back:
            files = ([own[one] for own in some], [own[other] for own in some])
            if reason := why(*files):
                back[one] = reason


def _no_image(place: DataPlace, ones: Sequence[str], others: Sequence[str]) -> str:
    """Return why files are no images beside others of the same scenes: flags, or previews; else nothing."""
    one, other = ones[0], others[0]
    with suppress(SegmenterError):
        here, there = place.thinned(one), place.thinned(other)
        if pixels.has_flags(here) and not pixels.has_flags(there):
            flags = f"{pixels.flag_bands(here)} of {here.shape[2]} bands of {one}"
            return f"{flags} have two values at the most, as flags of quality"
        a, b = place.sight(one).info, place.sight(other).info
        if a is None or b is None:
            return ""
        narrow = np.dtype(a.dtype).itemsize < np.dtype(b.dtype).itemsize
        unplaced = b.georeferenced and not a.georeferenced
        ways = {
            f"of {a.dtype}": narrow,
            "without georeference": unplaced,
            "of fewer pixels": a.size.pixels < _SMALLER * b.size.pixels,
        }
        form = a.size.width / a.size.height, b.size.width / b.size.height
        larger = a.size.pixels > b.size.pixels / _SMALLER
        if any(ways.values()) and not larger and abs(form[0] / form[1] - 1) < _FORM:
            share = pixels.is_copy(here, there)
            how = " and ".join(way for way, held in ways.items() if held)
            if share >= _COPIED:
                return f"{percent(share)} of the bands of {one} follow those of {other}: a preview {how}"
    return ""


def _no_classes(place: DataPlace, ones: Sequence[str], others: Sequence[str]) -> str:
    """Return why labels are of no classes beside others of the same images: objects, edges; else nothing."""
    with suppress(SegmenterError):
        here, there = ([place.codes(path) for path in paths] for paths in (ones, others))
        values = np.unique(np.concatenate([each.reshape(-1) for each in here])).tolist()
        if pixels.are_bits(values):
            return f"{len(values)} values of {ones[0]} up to {values[-1]} ({values[-1]:b}) are flags in bits"
        if purity := pixels.object_purity(here, there):
            told = f"{percent(purity[0])} of the pixels of a number lie in one class of {others[0]}"
            return f"{ones[0]} numbers objects: {told}, over all images {percent(purity[1])}"
        least = 2 * len(np.unique(np.concatenate([each.reshape(-1) for each in there])))
        count = pixels.count_objects(here, least)
        if count and not pixels.count_objects(there):
            return f"{ones[0]} numbers objects: values are one area each, up to {count} in a label"
        if share := pixels.edge_share(here, there):
            return f"{percent(share)} of {ones[0]} lie on edges of {others[0]}"
    return ""


def fit_lists(place: DataPlace, kinds: Mapping[str, Mapping[str, str]], back: dict[str, str]) -> None:
    """Set back the kinds whose values no list names, if a list names those of another kind."""
    files: dict[str, list[str]] = defaultdict(list)
    for _, own in sorted(kinds.items()):
        for name, path in own.items():
            files[name].append(path)
    if len(files) < 2 or len(files) > _MOST_KINDS:
        return
    fits: dict[str, tuple[float, int, str]] = {}
    for name, paths in files.items():
        values, colours = set[int](), False
        for path in paths[:: -(-len(paths) // _LOOKED_AT)]:
            with suppress(SegmenterError):
                info = place.sight(path).info
                colours = info is not None and info.count >= 3
                values |= set(np.unique(place.codes(path)).tolist()) - {-1}
        legend = find_legend(place.root, sorted(place.stored.values()), sorted(values), colours=colours)
        sure = not legend.doubt or legend.other
        named = len(legend.by_value(colours=colours).keys() & values) if sure else 0
        fits[name] = (named / max(1, len(values)), named, legend.file)
    told = max(fits.values())
    for name, (share, named, _) in fits.items():
        if told[0] >= _NAMED > share:
            back[name] = f"{told[2]} names {counted(told[1], 'value')} of other labels, {named} of these"


def auxiliary(text: str) -> int:
    """Return the number of words of a name that tell of objects, edges, quality or pictures of a label."""
    return sum(word in AUXILIARY for word in words_of(text))
