"""Masks, a file or a band for each class: classes by a word in the names of files, and their pixels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, LabelError, SegmenterError, counted
from segmenter.base.threads import in_threads
from segmenter.evaluation.drawing import hex_colour
from segmenter.grid.geometry import Window
from segmenter.grid.labels import own_colour
from segmenter.grid.scenes import Scene
from segmenter.pages.parts import percent
from segmenter.raster.masks import UNLABELLED, Masks

from ..files import few
from ..folder import pattern_regex
from ..leaks import in_turn
from .choice import Choice
from .names import SPLIT_WORDS, USUAL, Patterns, patterns_of, role_of
from .sight import Place

_LOOKED_AT, _WINDOW = 8, 1024
"""Scenes whose masks are looked at, and the side of their window."""
_LEAST_MASKS, _MOST_SHARED = 1.5, 0.5
"""Masks of a scene on average; share of set pixels in several, above which they are versions of one label."""
_MOST_KINDS, _TRIED = 4, 64
"""Further kinds of names that are looked at, and images on which words are tried as the class."""
_NO_CLASS = {*USUAL, *SPLIT_WORDS, "full", "eroded", "instance", "id", "ids", "valid", "ignore", "weight"}
_NO_CLASS |= {"boundary", "boundaries", "border", "borders", "edge", "edges", "contour", "contours"}
"""Words that tell kinds or versions of labels apart."""
_WORDS = re.compile(r"[^\W_]([^/{*]*[^\W_])?")
_CLASS = "\0"
"""Stands for the class in a path."""

_Scenes = dict[tuple[str, str], dict[str, str]]
"""Image, and the path of its masks with `_CLASS` → file of each class."""


def mask_patterns(
    place: Place, chosen: Sequence[tuple[str, str]], ties: Mapping[str, Sequence[str]]
) -> Patterns | None:
    """Return the patterns of images and of their masks, a file for each class; None if labels are none.

    Args:
        chosen: (image, label) of the likeliest reading.
        ties: images of each label.
    """
    if len(ties) < _LEAST_MASKS * len(chosen) or not chosen:
        return None
    some = {image for image, _ in chosen[:: -(-len(chosen) // _TRIED)]}
    few_ties = {label: own for label, tied in ties.items() if (own := sorted(some.intersection(tied)))}
    forms = [each for kind in map(patterns_of, _kinds(place, chosen, ties)) for each in _forms(kind)]
    sizes = [sum(map(len, _with_class(*form, few_ties).values())) for form in forms]
    scenes = _with_class(*forms[sizes.index(max(sizes))], ties) if any(sizes) else _Scenes()
    used = {path: word for own in scenes.values() for word, path in own.items()}
    least = _LEAST_MASKS * max(len(scenes), len(chosen) // 2)
    if not used or len(used) < least or not _are_masks(place, scenes):
        return None
    patterns = patterns_of(sorted(scenes))
    classes, unused = sorted({*used.values()}), sorted(ties.keys() - used.keys())
    others = [f"one class alone: --labels '{patterns.labels.replace(_CLASS, classes[0])}'"]
    others += [f"labels not used: {few(unused, 2)}"] if unused else []
    labels = patterns.labels.replace(_CLASS, "{class}")
    return replace(patterns, labels=labels, masks=tuple(classes), others=([], others))


def _kinds(
    place: Place, chosen: Sequence[tuple[str, str]], ties: Mapping[str, Sequence[str]]
) -> list[list[tuple[str, str]]]:
    """Return the pairs of the commonest kinds of names, the chosen one first; it alone, if it has classes."""
    common = Counter(role_of(label, image) for image, label in chosen).most_common(1)[0][0]
    images, kinds = {image for image, _ in chosen}, dict[str, list[tuple[str, str]]]()
    for label, tied in ties.items():
        for image in images.intersection(tied):
            kinds.setdefault(role_of(label, image), []).append((image, label))
    first = kinds.pop(common)
    if max(place.sight(label).values for _, label in first[:_LOOKED_AT]) > 2:
        return [first]
    return [first, *sorted(kinds.values(), key=lambda pairs: (-len(pairs), pairs))[:_MOST_KINDS]]


def _forms(first: Patterns) -> list[tuple[Patterns, str]]:
    """Return the patterns with each word of the labels' that may name the class, short ones first."""
    parts = re.split(r"([/_\-. ]|\{\w+\})", first.labels.removesuffix(PurePosixPath(first.labels).suffix))
    texts = {"".join(parts[i:j]) for i, j in combinations(range(len(parts) + 1), 2)}
    return [
        (first, word) for word in sorted(filter(_WORDS.fullmatch, texts), key=lambda text: (len(text), text))
    ]


def _with_class(first: Patterns, word: str, ties: Mapping[str, Sequence[str]]) -> _Scenes:
    """Return the labels that are as a pattern says, but for one of its words, which names their class."""
    regex, images = pattern_regex(first.images[0], "names"), sorted({*chain.from_iterable(ties.values())})
    names = {image: match.groupdict() for image in images if (match := regex.fullmatch(image))}
    form = re.sub(rf"(?<![^\W_])(?<!{{){re.escape(word)}(?![^\W_]|}})", _CLASS, first.labels)
    scenes = _Scenes()
    for label, image in ((label, image) for label, tied in ties.items() for image in names.keys() & tied):
        path = form.format_map(names[image])
        around = path.split(_CLASS)
        stop = len(around[0]) + (len(label) - len(path)) // max(1, len(around) - 1) + 1
        name = label[len(around[0]) : stop]
        kinds = _NO_CLASS.intersection(re.findall(r"[a-z]+", name.lower()))
        if name and label == name.join(around) and not kinds:
            scenes.setdefault((image, path), {})[name] = label
    return scenes


def _are_masks(place: Place, scenes: _Scenes) -> bool:
    """Return whether files have 0 and one other value each, and few pixels are set in several of a scene."""
    shared = claimed = 0
    for own in [scenes[key] for key in sorted(scenes)[:: max(1, len(scenes) // _LOOKED_AT)]]:
        try:
            with Masks([(i, place.root / label) for i, label in enumerate(own.values(), 1)]) as masks:
                claimed += int((masks.read(Window.middle(masks.info.size, _WINDOW)) > 0).sum())
                shared += masks.several
        except LabelError:
            return False
        except SegmenterError:  # to be left out
            continue
    return claimed > 0 and shared <= _MOST_SHARED * claimed


def mask_choices(facts: Patterns, scenes: Sequence[Scene], drivers: Sequence[str]) -> Iterator[Choice]:
    """Yield `dataset.encoding` and `dataset.classes` for masks; reads them whole, with a bar.

    Raises:
        SegmenterError: a file is no mask, or there is one class alone.
    """
    names = ["none" if "background" in facts.masks else "background", *facts.masks]

    def count(scene: Scene) -> NDArray[np.int64]:
        assert scene.label is not None, "the loader pairs them"
        with Masks(scene.masks or ((0, scene.label),), drivers) as masks, in_turn(masks.info.size):
            strips = (codes[codes < UNLABELLED] for _, codes in masks.strips())
            own = [np.bincount(codes, minlength=len(names)) for codes in strips]
            return np.append(np.sum(own, axis=0), masks.several)

    counts = in_threads(count, scenes, description="values of labels", unit="file")
    *pixels, several = np.sum(list(counts), axis=0).tolist()
    there = [(code, name) for code, name in enumerate(names) if pixels[code]]
    if len(there) < 2:
        got = f"{there[0][1]} alone"
        raise DatasetError("labels", expected="two classes or more", got=got, remedy="--labels names others")
    why = f"{counted(len(facts.masks), 'mask')} a scene, each of 0 and one other value"
    lacking = sum(len(facts.masks) - len(scene.masks) for scene in scenes if scene.masks)
    why += f"; {lacking} of all lack: no such class" if lacking else ""
    yield Choice("dataset.encoding", "masks", why)
    why = ", ".join(f"{name} {percent(pixels[code] / sum(pixels))}" for code, name in there)
    why += f" of {counted(sum(pixels), 'pixel')}"
    why += f"; {percent(several / sum(pixels))} in several masks: the last class counts" if several else ""
    classes = [{"name": name, "code": code, "colour": hex_colour(own_colour(code))} for code, name in there]
    made_up = "names are made up: bands have none" if facts.masks[0] == "class 1" else ""
    yield Choice("dataset.classes", classes, why, made_up)
