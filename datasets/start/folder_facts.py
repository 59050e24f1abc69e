"""Files of a folder that nobody described: pairs of image and label, or masks, and their patterns."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations, islice
from pathlib import Path, PurePosixPath

import numpy as np

from segmenter.base.errors import ConfigError, DatasetError, LabelError, SegmenterError, counted
from segmenter.base.files import is_vector
from segmenter.config.layouts import pattern_regex
from segmenter.grid.geometry import Window
from segmenter.raster import outlines
from segmenter.raster.masks import UNLABELLED, Masks

from ..files import few
from ..folder import candidates_of
from .names import (
    MARK,
    SPLIT_WORDS,
    USUAL,
    Patterns,
    band_files,
    common_start,
    pair,
    pattern_of_band,
    patterns_of,
    role_of,
)
from .sight import Place, sort_files

_LEAST_ROLE = 0.02
"""Share of the pairs that another spelling of names must have to be used, too."""
_EQUAL = 0.75
"""Share of the commonest kind's pairs from which another kind may be preferred to it."""
_LOOKED_AT, _MOST_VIEWED = 40, 6


def find_pairs(place: Place) -> Patterns:
    """Return the images and labels among the files.

    Raises:
        DatasetError: there is no reading of the folder as images and labels; the line says what was found.
    """
    images, rasters, vectors = sort_files(place)
    labels = rasters or vectors
    if not images or not labels:
        raise DatasetError(place.root, _nothing(place, images, rasters))
    counts = [sight.info.count for p in images if (sight := place.looked.get(p)) and sight.info]
    single = 2 * counts.count(1) > len(counts) and 2 * len(labels) <= len(images)
    bands = band_files(images) if single else {}
    if {*chain(*bands.values())} & {PurePosixPath(label).stem for label in labels}:
        bands = {}  # words of labels name scenes
    place.first.update((scene, next(iter(own.values()))) for scene, own in bands.items())
    scenes = list(bands or images)
    if shared := len(labels) == 1 < len(scenes) and _serves_all(place, labels[0], scenes):
        patterns = replace(_image_patterns(scenes), labels=labels[0])
    else:
        patterns = _paired(place, scenes, labels)
    if rasters and vectors:
        patterns.others[1].insert(0, f"polygons of {few(vectors, 2)}")
    if not patterns.masks:
        of = islice(filter(pattern_regex(patterns.labels, "names").fullmatch, rasters), _MOST_VIEWED)
        if info := next((seen.info for path in of if (seen := place.sight(path)).masks), None):
            told = tuple(dict.fromkeys(filter(None, info.descriptions)))
            numbered = tuple(f"class {i}" for i in range(1, info.count + 1))
            patterns = replace(patterns, masks=told if len(told) == info.count else numbered)
    matched = pattern_regex(patterns.images[0], "names").fullmatch
    some = next((own for scene, own in bands.items() if matched(scene)), {})
    files = tuple(pattern_of_band(patterns.images[0], *each) for each in some.items()) or patterns.images
    return replace(patterns, images=files, shared=shared)


def _paired(place: Place, scenes: Sequence[str], labels: Sequence[str]) -> Patterns:
    """Return patterns of images and labels.

    Raises:
        DatasetError: no names pair most of them, or several files of polygons would be of one image.
    """
    ties = pair(scenes, labels)
    for numbered, several in ((False, True), (False, False), (True, True)):
        chosen, others, left = _chosen(ties, place, numbered=numbered, several=several)
        if not is_vector(labels[0]) and (masks := _mask_patterns(place, chosen, ties)) is not None:
            return replace(masks, others=(others[0], masks.others[1]))
        patterns = patterns_of(chosen) if chosen else Patterns(("",), "", {})
        fitting = _fitting(patterns, chosen, (*scenes, *labels))
        alone = len(labels) == 1 and len(ties[labels[0]]) > 1  # any of them might be its image
        if not alone and 2 * fitting > min(len(scenes), fitting + len(left)):
            matched = pattern_regex(patterns.labels, "names").fullmatch
            unused = [path for path in sorted(left) if not matched(path)]
            if unused and len(scenes) == 1 and is_vector(labels[0]):
                raise DatasetError(
                    place.root,
                    expected="one file of polygons for one image",
                    got=few(labels, 3),
                    remedy="name one by --labels, or merge them with an attribute that tells the class: "
                    "ogrmerge.py -single -src_layer_field_name class -o all.gpkg FILES",
                )
            if unused:
                others[1].append(f"labels not used: {few(unused, 2)}")
            images = _with_all_endings(place, patterns.images[0], {image for image, _ in chosen})
            matched = pattern_regex(images, "names").fullmatch
            if unlike := [image for image, _ in chosen if not matched(image)]:  # the labels go with the rest
                others[0].append(f"{counted(len(unlike), 'image')} like {unlike[0]}")
                chosen = [each for each in chosen if matched(each[0])]
                patterns = patterns_of(chosen)
                images = patterns.images[0]
            labelled = _with_all_endings(place, patterns.labels, {label for _, label in chosen})
            return replace(patterns, images=(images,), labels=labelled, others=others)
    raise DatasetError(
        place.root,
        f"found {counted(len(scenes), 'image')} ({few(scenes, 2)}) and {counted(len(labels), 'label')} "
        f"({few(labels, 2)}), but no names that pair most of them, nor one georeferenced label",
        remedy="give image and label of a scene the same name in two folders, or name labels of one kind: "
        "--labels '*_mask.tif'",
    )


def _nothing(place: Place, images: Sequence[str], rasters: Sequence[str]) -> str:
    """Return what was looked for and found, if that is no dataset."""
    paths = map(PurePosixPath, place.paths)
    files = Counter(f"{path.suffix or 'without ending'} in {path.parent}" for path in paths).most_common(4)
    among = ", ".join(f"{n} {kind}" for kind, n in files) or "no file"
    return (
        f"found {counted(len(images), 'image')} and {counted(len(rasters), 'label')} among {among}; looked "
        "for GeoTIFF, PNG, JPEG or JPEG 2000 images, labels of a few values, polygons; --labels names labels"
    )


def _serves_all(place: Place, label: str, images: Sequence[str]) -> bool:
    """Return whether several images lie on a label file by georeference."""
    if is_vector(label):
        return True
    infos = [info for path in (label, *images[:_LOOKED_AT]) if (info := place.sight(path).info)]
    ground, *grounds = outlines(infos)
    placed = [each for each in grounds if each is not None]
    if ground is None or not placed:
        return False
    low, high = np.min(placed, axis=1), np.max(placed, axis=1)
    return bool(((low < ground.max(axis=0)) & (high > ground.min(axis=0))).all(axis=1).sum() > 1)


def _chosen(
    ties: dict[str, list[str]], place: Place, *, numbered: bool, several: bool
) -> tuple[list[tuple[str, str]], tuple[list[str], list[str]], set[str]]:
    """Return (image, label) pairs of the commonest kinds of names, other readings, and labels of neither.

    A scene has one image and one label: a further kind of names counts for scenes that have none yet.

    Args:
        numbered: numbers never tell kinds of names apart.
        several: use further kinds.
    """
    roles: dict[tuple[str, str], list[tuple[str, str]]] = {}
    tied: dict[str, list[str]] = {}
    for label, images in ties.items():
        for image in images:
            role = (role_of(image, label, numbered=numbered), role_of(label, image, numbered=numbered))
            roles.setdefault(role, []).append((image, label))
            tied.setdefault(image, []).append(label)
    counts = {role: min(map(len, map(set, zip(*own, strict=True)))) for role, own in roles.items()}
    least, many = max(2, _LEAST_ROLE * len(tied)), _EQUAL * max(counts.values(), default=0)
    if len(likely := [role for role, count in counts.items() if count >= many]) > _LOOKED_AT:
        likely = []  # no names tell what belongs together
    keys = {role: (-many, *_unlikely(role, roles[role], place)) for role in likely}
    ranked = sorted(roles, key=lambda role: (*keys.get(role, (-counts[role],)), -counts[role], role))
    chosen: dict[str, str] = {}
    stems = {role: tuple(PurePosixPath(text).stem for text in role) for role in ranked}
    used, told, taken = set[str](), set[str](), set[tuple[str, ...]]()
    others: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for role in ranked:
        members = roles[role]
        free = [(i, k) for i, k in members if not (chosen.keys() & ties[k] or used & set(tied[i]))]
        further = role == ranked[0] or (several and (stems[role] in taken or len(free) >= least))
        if further and 2 * len(free) > len(members):
            for image, label in free:
                if image not in chosen and label not in used:
                    chosen[image] = label
                    used.add(label)
            taken.add(stems[role])
        elif len(members) >= least:
            side = int(members[0][1] not in used)
            kind, what = {each[side] for each in members} - {*chosen, *used}, ("images", "labels")[side]
            told |= kind
            if kind:
                others[side].setdefault(role[side], f"{len(kind)} {what} like {min(kind)}")
    return sorted(chosen.items()), ([*others[0].values()], [*others[1].values()]), ties.keys() - used - told


def _unlikely(role: tuple[str, str], members: Sequence[tuple[str, str]], place: Place) -> tuple[object, ...]:
    """Return a key by which the likeliest of equally common kinds of names is first.

    Images: on the grid of their label, or the finest if it has none, three bands or more, usual words, most
    bands. Labels: usual words, no instances, most classes.
    """
    image, label = min(members, key=lambda each: (each[1], each[0]))
    of, on = place.sight(image).info, None if is_vector(label) else place.sight(label).info
    if of is None:
        return (True, 0, 0, 0, 0, 0)
    finest = (False, -of.size.pixels) if on is None else (of.size != on.size, 0)
    classes = max(place.sight(label).values for _, label in members[:_MOST_VIEWED]) if on else 0
    text = " ".join(role).lower()
    words = re.findall(r"[^\W\d_]{2,}", text)
    odd = sum(-1 if word in USUAL else 1 for word in words) + len(words) * text.count("instance")
    return (*finest, -min(of.count, 3), odd, -of.count, -classes)


def _fitting(patterns: Patterns, pairs: Sequence[tuple[str, str]], paths: Sequence[str]) -> int:
    """Return the number of pairs that the dataset would have by these patterns, too."""
    try:
        found = candidates_of(Path(), patterns.images[0], patterns.labels, paths)
    except ConfigError:  # both match the same files
        return 0
    made = {(*images, *found.labels.get(name, ())) for name, images in found.images.items()}
    return len(made.intersection(pairs))


def _with_all_endings(place: Place, pattern: str, wanted: set[str]) -> str:
    """Return a pattern with a star for several endings of files, if it then matches no other file."""
    endings = {PurePosixPath(path).suffix for path in wanted}
    loose = f"{pattern.removesuffix(PurePosixPath(pattern).suffix)}{common_start(list(endings))}*"
    exact = len(endings) > 1 and {*filter(pattern_regex(loose, "names").fullmatch, place.paths)} == wanted
    return loose if exact else pattern


def _image_patterns(scenes: Sequence[str]) -> Patterns:
    """Return the pattern of images that one label serves: the stem is the name, if it tells them apart."""
    stems = [PurePosixPath(scene).stem.removesuffix(MARK) for scene in scenes]
    whole = [scene.removesuffix(PurePosixPath(scene).suffix).removesuffix(MARK) for scene in scenes]
    ends = stems if len(set(stems)) == len(stems) and all(stems) else whole
    return patterns_of([(scene, f"labels/{end}.tif") for scene, end in zip(scenes, ends, strict=True)])


# ------------------------------------------------------------------------------------------------- masks

_MASKED, _WINDOW = 8, 1024
"""Scenes whose masks are looked at, and the side of their window."""
_LEAST_MASKS, _MOST_SHARED = 1.5, 0.5
"""Masks of a scene on average; share of set pixels in several, above which they are versions of one label."""
_NO_CLASS = {*USUAL, *SPLIT_WORDS, "full", "eroded", "instance", "id", "ids", "valid", "ignore", "weight"}
_NO_CLASS |= {"boundary", "boundaries", "border", "borders", "edge", "edges", "contour", "contours"}
"""Words that tell kinds or versions of labels apart."""
_WORDS = re.compile(r"[^\W_]([^/*]*[^\W_])?")
_CLASS = "\0"
"""Stands for the class in a path."""

_Scenes = defaultdict[tuple[str, str], dict[str, str]]
"""Image, and the path of its masks with `_CLASS` → file of each class."""


def _mask_patterns(
    place: Place, chosen: Sequence[tuple[str, str]], ties: Mapping[str, Sequence[str]]
) -> Patterns | None:
    """Return the patterns of images and of their masks, a file for each class; None if labels are none.

    Args:
        chosen: (image, label) of the likeliest reading.
        ties: images of each label.
    """
    if len(ties) < _LEAST_MASKS * len(chosen) or not chosen:
        return None
    if max(place.sight(label).values for _, label in chosen[:_MASKED]) > 2:
        return None
    images, kinds = {image for image, _ in chosen}, defaultdict[str, _Scenes](lambda: defaultdict(dict))
    for label, tied in ties.items():
        for image in images.intersection(tied):
            role = role_of(label, image)
            for word in _words(role):
                kinds[_without(word, role)][image, _without(word, label)][word] = label
    sizes = {kind: sum(map(len, own.values())) for kind, own in kinds.items()}
    scenes = kinds[max(sizes, key=lambda kind: (sizes[kind], len(kind), kind), default="")]
    used = {path: word for own in scenes.values() for word, path in own.items()}
    least = _LEAST_MASKS * max(len(scenes), len(chosen) // 2)
    if not used or len(used) < least or not _are_masks(place, scenes):
        return None
    patterns = patterns_of(sorted(scenes))
    classes, labels = sorted({*used.values()}), patterns.labels.replace(_CLASS, "{class}")
    matched = pattern_regex(labels, "names", classes).fullmatch
    others = [f"one class alone: --labels '{labels.replace('{class}', classes[0])}'"]
    if unused := [label for label in sorted(ties) if not matched(label)]:
        others.append(f"labels not used: {few(unused, 2)}")
    return replace(patterns, labels=labels, masks=tuple(classes), others=([], others))


@lru_cache
def _words(role: str) -> list[str]:
    """Return the words of a label's name that may be its class; several in a row may be one."""
    parts = re.split(r"([/_\-. *])", role.removesuffix(PurePosixPath(role).suffix))
    texts = {"".join(parts[i:j]) for i, j in combinations(range(len(parts) + 1), 2)}
    words = filter(_WORDS.fullmatch, texts)
    return [word for word in words if not _NO_CLASS.intersection(re.findall(r"[a-z]+", word.lower()))]


def _without(word: str, path: str) -> str:
    """Return a path with `_CLASS` for a word."""
    return re.sub(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", _CLASS, path)


def _are_masks(place: Place, scenes: _Scenes) -> bool:
    """Return whether files have 0 and one other value each, and few pixels are set in several of a scene."""
    shared = claimed = 0
    for own in [scenes[key] for key in sorted(scenes)[:: max(1, len(scenes) // _MASKED)]]:
        try:
            with Masks([(i, place.file(label)) for i, label in enumerate(own.values(), 1)]) as masks:
                codes = masks.read(Window.middle(masks.info.size, _WINDOW))
                claimed += int(((codes > 0) & (codes < UNLABELLED)).sum())
                shared += masks.several
        except LabelError:
            return False
        except SegmenterError:  # to be left out
            continue
    return claimed > 0 and shared <= _MOST_SHARED * claimed
