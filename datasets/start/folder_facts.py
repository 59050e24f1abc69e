"""Files of a folder that nobody described: pairs of image and label, or masks, and their patterns."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations, islice, permutations
from pathlib import Path, PurePosixPath
from typing import NoReturn

import numpy as np

from segmenter.base.errors import ConfigError, DatasetError, LabelError, SegmenterError, counted
from segmenter.base.files import is_vector
from segmenter.config.layouts import pattern_regex
from segmenter.grid.geometry import Window
from segmenter.raster import outlines
from segmenter.raster.masks import UNLABELLED, Masks

from ..files import few
from ..folder import candidates_of
from .kinds import SetBack, auxiliary, set_back
from .names import (
    MARK,
    RESULTS,
    SPLIT_WORDS,
    USUAL,
    Patterns,
    band_files,
    common_start,
    pair,
    pattern_of_band,
    patterns_of,
    role_of,
    words_of,
)
from .pixels import count_objects, edge_share
from .polygons import file_of_classes
from .sight import DataPlace, sort_files

_APART = re.compile(r"(?<![^/_\-. ])(\d+|\*)(?![^/_\-. ])")
"""A number of its own in a path, or a star."""
_LEAST_ROLE = 0.02
"""Share of the pairs that another spelling of names must have to be used, too."""
_EQUAL = 0.75
"""Share of the commonest kind's pairs from which another kind may be preferred to it."""
_LOOKED_AT, _MOST_VIEWED = 40, 6
_MOST_VECTORS, _MOST_SHEETS, _LARGER = 40, 1000, 1.2
"""Files of polygons of which one may tell the classes, images and labels whose places are compared, and times
that the sheets of a map are larger than images, or smaller."""


def find_pairs(place: DataPlace) -> Patterns:
    """Return the images and labels among the files.

    Raises:
        DatasetError: there is no reading of the folder as images and labels; the line says what was found.
    """
    images, rasters, vectors = sort_files(place)
    labels = rasters or vectors
    if not rasters and len(vectors) > 1 and 1 < len(vectors) <= _MOST_VECTORS:
        labels = _file_of_classes(place, images, vectors)
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
        patterns = _pair_names(place, scenes, labels)
    if beside := [path for path in vectors if rasters or (labels != vectors and path not in labels)]:
        patterns.others[1].insert(0, f"polygons of {few(beside, 2)}")
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


def _pair_names(place: DataPlace, scenes: Sequence[str], labels: Sequence[str]) -> Patterns:
    """Return patterns of images and labels.

    Raises:
        DatasetError: no names pair most of them, or several files of polygons would be of one image.
    """
    ties = pair(scenes, labels)
    for numbered, several in ((False, True), (False, False), (True, True)):
        chosen, others, left, rivals = _commonest_pairs(ties, place, numbered=numbered, several=several)
        if not is_vector(labels[0]) and (masks := _mask_patterns(place, chosen, ties)) is not None:
            return replace(masks, others=(others[0], masks.others[1]))
        patterns = patterns_of(chosen) if chosen else Patterns(("",), "", {})
        fitting = _fitting(patterns, chosen, (*scenes, *labels))
        alone = len(labels) == 1 and len(ties[labels[0]]) > 1  # any of them might be its image
        if not alone and 2 * fitting > min(len(scenes), fitting + len(left)):
            matched = pattern_regex(patterns.labels, "names").fullmatch
            unused = [path for path in sorted(left) if not matched(path)]
            if unused and len(scenes) == 1 and is_vector(labels[0]):
                _refuse_unpaired(place, scenes, labels)
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
            rival = patterns_of(rivals) if rivals else patterns
            asked = rival.labels if rival.images == patterns.images and rival.labels != labelled else ""
            made = replace(patterns, images=(images,), labels=labelled, others=others, rival=asked)
            return with_dates(made, place, {label: ties[label] for _, label in chosen})
    return _by_dates(scenes, ties) or _refuse_unpaired(place, scenes, labels)


_DATE = "\x02"
"""Stands for the date in a path."""


def _by_dates(scenes: Sequence[str], ties: Mapping[str, Sequence[str]]) -> Patterns | None:
    """Return patterns of images that have one number more than their label, another one in each; or None."""
    pairs = set[tuple[str, str]]()
    for label, images in ties.items():
        known = {*re.findall(r"\d+", label)}
        for image in images:
            dates = [part for part in _APART.finditer(image) if part[0].isdecimal() and part[0] not in known]
            if len(dates) == 1:
                pairs.add((f"{image[: dates[0].start()]}{_DATE}{image[dates[0].end() :]}", label))
    if len(pairs) < 2 or 2 * len(pairs) <= len(ties):
        return None
    patterns = patterns_of(sorted(pairs))
    images = patterns.images[0].replace(_DATE, "{date}")
    found = candidates_of(Path(), images, patterns.labels, [*scenes, *ties])
    whole = [name for name, own in found.images.items() if len(own) == len(found.labels.get(name, ())) == 1]
    fits = "{date}" in images and "{name}" in images and 2 * len(whole) > len(scenes)
    splits = {key: [glob.replace(_DATE, "*") for glob in globs] for key, globs in patterns.splits.items()}
    return replace(patterns, images=(images,), splits=splits) if fits else None


def with_dates(patterns: Patterns, place: DataPlace, ties: Mapping[str, Sequence[str]]) -> Patterns:
    """Return patterns by which a label serves the images of all dates, if images of one kind differ in them.

    A date is a number of its own, between signs; images of other bands or another type are of another kind.

    Args:
        ties: images that share a label's name.
    """
    dated = {label: own for label, own in ties.items() if len(own) > 1}
    if 2 * len(dated) <= len(ties) or MARK in "".join(chain.from_iterable(ties.values())):
        return patterns
    kinds = Counter(re.sub(r"\d+", "#", image) for own in dated.values() for image in own)
    kind = max(kinds, key=lambda each: (kinds[each], each))
    several = {
        label: [image for image in own if re.sub(r"\d+", "#", image) == kind] for label, own in ties.items()
    }
    few_of = [image for own in list(several.values())[:_MOST_VIEWED] for image in own]
    forms = {(info.count, info.dtype) for image in few_of if (info := place.sight(image).info)}
    if len(forms) != 1 or 2 * sum(len(own) > 1 for own in several.values()) <= len(ties):
        return patterns
    text = patterns.images[0]
    for part in _APART.finditer(text):
        images = f"{text[: part.start()]}{{date}}{text[part.end() :]}"
        found = candidates_of(Path(), images, patterns.labels, place.paths)
        of_labels: dict[str, set[str]] = defaultdict(set)
        for name, own in found.labels.items():
            of_labels[own[0]].update(found.images.get(name, ()))
        fits = sum(of_labels.get(label) == set(own) for label, own in several.items())
        if 2 * fits > len(several) and all(len(own) == 1 for own in found.images.values()):
            others = [
                each for each in patterns.others[0] if re.sub(r"\d+", "#", each.split(" like ")[-1]) != kind
            ]
            one = "" if part[0] == "*" else text
            return replace(patterns, images=(images,), others=(others, patterns.others[1]), one_date=one)
    return patterns


def _file_of_classes(place: DataPlace, images: Sequence[str], vectors: list[str]) -> list[str]:
    """Return the one of several files of polygons that tells classes, if names pair none with images."""
    ties = pair(images, vectors)
    if len(images) > 1 and all(ties.values()):
        return vectors
    one = file_of_classes(place.root, [place.stored[path] for path in vectors])
    return [path for path in vectors if one in (None, place.stored[path])]


def _refuse_unpaired(place: DataPlace, scenes: Sequence[str], labels: Sequence[str]) -> NoReturn:
    """Refuse images and labels that no names pair; the line says what they look like.

    Raises:
        DatasetError: always.
    """
    found = (
        f"found {counted(len(scenes), 'image')} ({few(scenes, 2)}) and {counted(len(labels), 'label')} "
        f"({few(labels, 2)}), but no names that pair most of them"
    )
    if is_vector(labels[0]):
        raise DatasetError(
            place.root,
            expected=f"one file of polygons for {counted(len(scenes), 'image')}, or one named like each",
            got=few(labels, 3),
            remedy="name one by --labels, or merge them with an attribute that tells the class: "
            "ogrmerge.py -single -src_layer_field_name class -o all.gpkg FILES",
        )
    refuse_sheets(place, scenes, labels)
    if alike := _but_for_zeros(scenes, labels):
        raise DatasetError(
            place.root,
            f"{found}: numbers agree but for zeros, as in {alike[0]} and {alike[1]}",
            remedy=f"rename files of one kind so that both have the same number, as {alike[2]}",
        )
    raise DatasetError(
        place.root,
        f"{found}, nor one georeferenced label",
        remedy="give image and label of a scene the same name in two folders, or name labels of one kind: "
        "--labels '*_mask.tif'",
    )


def refuse_sheets(
    place: DataPlace, images: Sequence[str], labels: Sequence[str], unlabelled: Sequence[str] | None = None
) -> None:
    """Refuse labels that are sheets or tiles of a map, cut otherwise than the images that lie on them.

    Args:
        unlabelled: images without a label by their names; None: all.

    Raises:
        DatasetError: most of these lie on labels of other names.
    """
    alone = images if unlabelled is None else unlabelled
    grounds = [
        np.array([ground.ravel() for ground in outlines(infos) if ground is not None]).reshape(-1, 4, 2)
        for paths in (labels, alone)
        if (infos := [info for path in paths[:_MOST_SHEETS] if (info := place.sight(path).info)])
    ]
    if len(grounds) < 2 or not all(map(len, grounds)):
        return
    sheets, own = grounds
    reach = [np.median(np.ptp(ground, axis=1).max(axis=1)) for ground in grounds]
    larger, smaller = (sheets, own) if reach[0] >= reach[1] else (own, sheets)
    if max(reach) < _LARGER * min(reach) or (reach[0] < reach[1] and unlabelled is not None):
        return
    middles, low, high = smaller.mean(axis=1)[:, None], larger.min(axis=1), larger.max(axis=1)
    on = int(((low < middles) & (middles < high)).all(axis=2).any(axis=1).sum())
    if 2 * on <= len(smaller):
        return
    what = "images without a label of their name" if smaller is own else "labels"
    raise DatasetError(
        place.root,
        f"{on} of {len(smaller)} {what} lie on {'labels' if smaller is own else 'images'} of other names "
        f"({few(alone, 2)} and {few(labels, 2)}): sheets of one map",
        remedy="join them: rio merge SHEETS all.tif, then --labels all.tif",
    )


def _but_for_zeros(images: Sequence[str], labels: Sequence[str]) -> tuple[str, str, str] | None:
    """Return an image, a label, and the label's number in the image, if numbers pair most but for zeros."""
    numbers: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for image in images:
        numbers[_numbers(image)].append(image)
    pairs = [(own[0], label) for label in labels if len(own := numbers.get(_numbers(label), [])) == 1]
    unlike = [(i, k) for i, k in pairs if re.findall(r"\d+", i) != re.findall(r"\d+", k)]
    if not unlike or 2 * len(pairs) <= min(len(images), len(labels)):
        return None
    image, label = unlike[0]
    texts = [re.findall(r"\d+", PurePosixPath(path).stem)[-1] for path in (image, label)]
    longer = max(texts, key=len)
    kind = image if longer == texts[1] else label
    return image, label, re.sub(r"\d+(?=\D*$)", longer, PurePosixPath(kind).stem) + PurePosixPath(kind).suffix


def _numbers(path: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", PurePosixPath(path).stem)))


def _nothing(place: DataPlace, images: Sequence[str], rasters: Sequence[str]) -> str:
    """Return what was looked for and found, if that is no dataset."""
    paths = map(PurePosixPath, place.paths)
    files = Counter(f"{path.suffix or 'without ending'} in {path.parent}" for path in paths).most_common(4)
    among = ", ".join(f"{n} {kind}" for kind, n in files) or "no file"
    if images and (lists := _lists_of_polygons(place)):
        return (
            f"found {counted(len(images), 'image')} and {lists}: polygons in JSON, no masks; export masks "
            "(one PNG a picture, a value for each class) from the program that drew them"
        )
    if images and not rasters and (objects := _objects_of(place, images)):
        return f"found {objects[0]} and others that number objects, up to {objects[1]} a file: no classes"
    tables = [path.name for path in map(PurePosixPath, place.paths) if path.suffix.lower() == ".dbf"]
    if place.labels is not None and images and tables:
        shape = PurePosixPath(tables[0]).with_suffix(".shp")
        return f"{tables[0]} is the table of a shapefile, without its polygons: --labels takes {shape}"
    return (
        f"found {counted(len(images), 'image')} and {counted(len(rasters), 'label')} among {among}; looked "
        "for GeoTIFF, PNG, JPEG or JPEG 2000 images, labels of a few values, polygons; --labels names labels"
    )


def _lists_of_polygons(place: DataPlace) -> str:
    """Return the first file of annotations in JSON, as COCO and labelme have them; empty: none."""
    for path in place.paths:
        if path.lower().endswith(".json"):
            with suppress(OSError):
                with place.file(path).open(encoding="utf-8", errors="replace") as file:
                    begun = file.read(1 << 16)
                if re.search(r'"(annotations|segmentation|shapes)"\s*:', begun):
                    return path
    return ""


def _objects_of(place: DataPlace, images: Sequence[str]) -> tuple[str, int] | None:
    """Return the first of the rasters of one band that number objects, and the most of one; or None."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in images:
        folders[str(PurePosixPath(path).parent)].append(path)
    for paths in folders.values():
        infos = [place.sight(path).info for path in paths[:_MOST_VIEWED]]
        if all(info and info.count == 1 and np.dtype(info.dtype).kind in "ui" for info in infos):
            with suppress(SegmenterError):
                if count := count_objects([place.codes(path) for path in paths[:_MOST_VIEWED]]):
                    return paths[0], count
    return None


def _serves_all(place: DataPlace, label: str, images: Sequence[str]) -> bool:
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


def _commonest_pairs(
    ties: dict[str, list[str]], place: DataPlace, *, numbered: bool, several: bool
) -> tuple[list[tuple[str, str]], tuple[list[str], list[str]], set[str], list[tuple[str, str]]]:
    """Return (image, label) pairs of the commonest kinds of names, other readings, labels of neither, rivals.

    A scene has one image and one label: a further kind of names counts for scenes that have none yet. Rivals
    are pairs of the same images with labels of as many classes that may as well be meant.

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
    back = set_back({role: roles[role] for role in likely}, place) if len(likely) > 1 else SetBack()
    keys = {
        role: (-many, role[0] in back.images, role[1] in back.labels, *_unlikely(role, roles[role], place))
        for role in likely
    }
    ranked = sorted(roles, key=lambda role: (*keys.get(role, (-counts[role],)), -counts[role], role))
    chosen: dict[str, str] = {}
    stems = {role: tuple(PurePosixPath(text).stem for text in role) for role in ranked}
    used, told, taken, rivals = set[str](), set[str](), set[tuple[str, ...]](), list[tuple[str, str]]()
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
                why = (back.images, back.labels)[side].get(role[side], "")
                told_of = f"{len(kind)} {what} like {min(kind)}" + (f" ({why})" if why else "")
                others[side].setdefault(role[side], told_of)
                alike = not why and role in keys and keys[role][-1] == keys[ranked[0]][-1]
                if side and not rivals and alike and _as_likely(role[1], ranked[0][1]):
                    rivals = [(image, label) for image, label in members if image in chosen]
    readings = [*others[0].values()], [*others[1].values()]
    return sorted(chosen.items()), readings, ties.keys() - used - told, sorted(rivals)


def _as_likely(labels: str, chosen: str) -> bool:
    """Return whether names tell labels as surely as those that were chosen."""
    words, of_chosen = {*words_of(labels)}, {*words_of(chosen)}
    results = bool(words & RESULTS) > bool(of_chosen & RESULTS)
    return not results and not auxiliary(labels) and bool(words & USUAL) >= bool(of_chosen & USUAL)


def _unlikely(
    role: tuple[str, str], members: Sequence[tuple[str, str]], place: DataPlace
) -> tuple[object, ...]:
    """Return a key by which the likeliest of equally common kinds of names is first.

    Images: on the grid of their label, or the finest if it has none, three bands or more, usual words, most
    bands. Labels: none of results, usual words, none of objects or edges, most classes.
    """
    image, label = min(members, key=lambda each: (each[1], each[0]))
    of, on = place.sight(image).info, None if is_vector(label) else place.sight(label).info
    if of is None:
        return (True, 0, 0, 0, 0, 0, 0)
    finest = (False, -of.size.pixels) if on is None else (of.size != on.size, 0)
    classes = max(place.sight(label).values for _, label in members[:_MOST_VIEWED]) if on else 0
    text = " ".join(role).lower()
    words = re.findall(r"[^\W\d_]{2,}", text)
    odd = sum(-1 if word in USUAL else 1 for word in words) + len(words) * auxiliary(" ".join(role))
    results = not RESULTS.isdisjoint(words_of(role[1]))
    return (*finest, -min(of.count, 3), results, odd, -of.count, -classes)


def _fitting(patterns: Patterns, pairs: Sequence[tuple[str, str]], paths: Sequence[str]) -> int:
    """Return the number of pairs that the dataset would have by these patterns, too."""
    try:
        found = candidates_of(Path(), patterns.images[0], patterns.labels, paths)
    except ConfigError:  # both match the same files
        return 0
    made = {(*images, *found.labels.get(name, ())) for name, images in found.images.items()}
    return len(made.intersection(pairs))


def _with_all_endings(place: DataPlace, pattern: str, wanted: set[str]) -> str:
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
    place: DataPlace, chosen: Sequence[tuple[str, str]], ties: Mapping[str, Sequence[str]]
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
    if not used or len(used) < least or not _are_masks(place, scenes) or _has_edges(place, scenes):
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


def _has_edges(place: DataPlace, scenes: _Scenes) -> bool:
    """Return whether one of the masks of scenes is of the edges of another one."""
    some = [scenes[key] for key in sorted(scenes)[:: max(1, len(scenes) // _MASKED)]]
    for one, other in permutations(sorted({word for own in some for word in own})[:_MASKED], 2):
        both = [own for own in some if one in own and other in own]
        with suppress(SegmenterError):
            if both and edge_share(*([place.codes(own[word]) for own in both] for word in (one, other))):
                return True
    return False


def _are_masks(place: DataPlace, scenes: _Scenes) -> bool:
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
