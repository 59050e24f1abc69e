"""Files of a folder that nobody described: pairs of image and label, and their patterns."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from segmenter.base.errors import DatasetError, counted
from segmenter.base.finding import is_vector
from segmenter.raster import outlines

from ..files import few
from ..folder import pattern_regex
from .names import MARK, Patterns, band_files, pair, pattern_of_band, patterns_of, role_of
from .sight import Place, Sorted, look_at, sort_files

_LEAST_ROLE = 0.02
"""Share of the pairs that another spelling of names must have to be used, too."""
_LOOKED_AT = 40
_USUAL = {"image", "images", "img", "rgb", "sat", "mask", "masks", "msk", "label", "labels", "gt"}
_USUAL |= {"annot", "annotation", "annotations"}


@dataclass(frozen=True)
class FolderFacts:
    """Images and labels of a folder dataset.

    Attributes:
        images: pattern of each band's file, or one pattern.
        labels: pattern of label files, or the file for all images.
        splits: globs of images by split, where folders tell it.
        shared: one label file serves all images.
        others: other readings of the images, and of the labels.
        unreadable: number of files looked at that cannot be read.
    """

    images: tuple[str, ...]
    labels: str
    splits: dict[str, list[str]]
    shared: bool
    others: tuple[list[str], list[str]]
    unreadable: int


def find_pairs(place: Place) -> FolderFacts:
    """Return the images and labels among the files.

    Raises:
        DatasetError: there is no reading of the folder as images and labels; the line says what was found.
    """
    files = sort_files(place)
    labels = files.labels or files.vectors
    if not files.images or not labels:
        raise DatasetError(f"{place.root}: {_nothing(place, files)}")
    bands = _bands(files, len(labels))
    scenes = list(bands or files.images)
    first = [next(iter(own.values())) for own in bands.values()] or scenes
    if len(labels) == 1 and _serves_all(place.root, labels[0], first):
        patterns, others = replace(_image_patterns(scenes), labels=labels[0]), (list[str](), list[str]())
    else:
        ties = pair(scenes, labels)
        chosen, others = _chosen(ties)
        patterns = patterns_of(chosen) if chosen else Patterns("", "", {})
        alone = len(labels) == 1 and len(ties[labels[0]]) > 1  # any of them might be its image
        if alone or 2 * _fitting(patterns, chosen) < min(len(scenes), len(labels)):
            raise DatasetError(
                f"{place.root}: found {counted(len(scenes), 'image')} ({few(scenes, 2)}) and "
                f"{counted(len(labels), 'label')} ({few(labels, 2)}), but no names that pair most of them, "
                "nor one georeferenced label; give image and label of a scene the same name in two folders"
            )
        patterns = _with_all_endings(place, patterns, chosen)
        scenes = [scene for scene, _ in chosen]
    if files.labels and files.vectors:
        others[1].insert(0, f"polygons of {few(files.vectors, 2)}")
    some = next(iter(bands.values())).values() if bands else ()
    images = tuple(pattern_of_band(patterns.images, path) for path in some) or (patterns.images,)
    shared = patterns.labels == labels[0] and len(scenes) > 1
    unreadable = sum(sight.info is None for sight in files.looked.values())
    return FolderFacts(images, patterns.labels, _globs(patterns), shared, others, unreadable)


def _nothing(place: Place, files: Sorted) -> str:
    """Return what was looked for and found, if that is no dataset."""
    if files.images:
        found = f"found {counted(len(files.images), 'image')} ({few(files.images, 2)}) and no labels"
        return f"{found}: looked for rasters of a few values and for polygons; --labels names them"
    if files.labels:
        found = f"found {counted(len(files.labels), 'raster')} of a few values ({few(files.labels, 2)})"
        return f"{found}, as labels have, and no image; --labels names the labels"
    endings = Counter(PurePosixPath(path).suffix.lower() or "no ending" for path in place.paths)
    found = ", ".join(f"{n} {ending}" for ending, n in endings.most_common(4)) or "no file"
    return f"looked for GeoTIFF, PNG, JPEG or JPEG 2000 images and their labels, found {found}"


def _bands(files: Sorted, labels: int) -> dict[str, dict[str, str]]:
    """Return scenes of several files, if most images have one band and at most half as many have labels."""
    counts = [sight.info.count for p in files.images if (sight := files.looked.get(p)) and sight.info]
    single = 2 * sum(count == 1 for count in counts) > len(counts)
    return band_files(files.images) if single and 2 * labels <= len(files.images) else {}


def _serves_all(root: Path, label: str, images: Sequence[str]) -> bool:
    """Return whether several images lie on a label file by georeference."""
    if len(images) < 2 or is_vector(label):
        return len(images) > 1
    infos = [sight.info for path in (label, *images[:_LOOKED_AT]) if (sight := look_at(root, path)).info]
    ground, *grounds = outlines(infos)
    placed = [each for each in grounds if each is not None]
    if ground is None or not placed:
        return False
    low, high = np.min(placed, axis=1), np.max(placed, axis=1)
    return bool(((low < ground.max(axis=0)) & (high > ground.min(axis=0))).all(axis=1).sum() > 1)


def _chosen(ties: dict[str, list[str]]) -> tuple[list[tuple[str, str]], tuple[list[str], list[str]]]:
    """Return (image, label) pairs of the commonest kinds of names, and the other readings."""
    roles: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for label, images in ties.items():
        for image in images:
            roles.setdefault((role_of(image, label), role_of(label, image)), []).append((image, label))
    ranked = sorted(
        roles.items(), key=lambda item: (-len({i for i, _ in item[1]}), _oddness(item[0]), item[0])
    )
    least = max(2, _LEAST_ROLE * len({image for members in roles.values() for image, _ in members}))
    chosen: dict[str, str] = {}
    used, others = set[str](), (list[str](), list[str]())
    stems = {_stems(role) for role, _ in ranked[:1]}
    for role, members in ranked:
        free = [(image, label) for image, label in members if image not in chosen and label not in used]
        if (_stems(role) in stems or len(free) >= least) and 2 * len(free) > len(members):
            for image, label in free:
                if image not in chosen and label not in used:
                    chosen[image] = label
                    used.add(label)
            stems.add(_stems(role))
        elif len(members) >= least:
            image, label = members[0]
            kind, like = (0, f"images like {image}") if label in used else (1, f"labels like {label}")
            others[kind].append(f"{len(members)} {like}")
    return sorted(chosen.items()), others


def _stems(role: tuple[str, str]) -> tuple[str, ...]:
    return tuple(PurePosixPath(text).stem for text in role)


def _oddness(role: tuple[str, str]) -> int:
    """Return the number of unusual words in the names of images and labels; decides between equals."""
    words = re.findall(r"[^\W_]{2,}", " ".join(role).lower())
    return sum(word not in _USUAL for word in words)


def _fitting(patterns: Patterns, pairs: Sequence[tuple[str, str]]) -> int:
    """Return the number of pairs that patterns pair, too."""
    images, labels = (pattern_regex(each, "names") for each in (patterns.images, patterns.labels))
    matches = [(images.fullmatch(image), labels.fullmatch(label)) for image, label in pairs]
    return sum(bool(a and b and a.groupdict() == b.groupdict()) for a, b in matches)


def _with_all_endings(place: Place, patterns: Patterns, pairs: Sequence[tuple[str, str]]) -> Patterns:
    """Return patterns with a star for several endings of files, if they then match no other file."""
    made = []
    for pattern, wanted in zip(
        (patterns.images, patterns.labels), map(set, zip(*pairs, strict=True)), strict=True
    ):
        endings = {PurePosixPath(path).suffix for path in wanted}
        common = os.path.commonprefix(list(endings))  # noqa: RUF071 - of characters, as .jp of .jpg and .jpeg
        loose = f"{pattern.removesuffix(PurePosixPath(pattern).suffix)}{common}*"
        regex = pattern_regex(loose, "names")
        exact = len(endings) > 1 and {path for path in place.paths if regex.fullmatch(path)} == wanted
        made.append(loose if exact else pattern)
    return replace(patterns, images=made[0], labels=made[1])


def _globs(patterns: Patterns) -> dict[str, list[str]]:
    """Return globs of the images of validation and test, where a folder names the split."""
    before, _, behind = patterns.images.partition("{split}")
    ends = re.sub(r"\*\*/|\{\w+\}", "*", before), behind.partition("/")[0]
    globs: dict[str, list[str]] = {}
    for value, split in sorted(patterns.splits.items()):
        globs.setdefault(split, []).append(f"{ends[0]}{value}{ends[1]}/*")
    globs.pop("train", None)
    return globs


def _image_patterns(scenes: Sequence[str]) -> Patterns:
    """Return the pattern of images that one label serves: the stem is the name, if it tells them apart."""
    stems = [PurePosixPath(scene).stem.removesuffix(MARK) for scene in scenes]
    whole = [scene.removesuffix(PurePosixPath(scene).suffix).removesuffix(MARK) for scene in scenes]
    ends = stems if len(set(stems)) == len(stems) and all(stems) else whole
    return patterns_of([(scene, f"labels/{end}.tif") for scene, end in zip(scenes, ends, strict=True)])
