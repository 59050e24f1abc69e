"""Files of a folder that nobody described: pairs of image and label, and their patterns."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from segmenter.base.errors import DatasetError, counted
from segmenter.base.finding import is_vector
from segmenter.raster import outlines

from ..files import few, files_under
from ..folder import pattern_regex
from .names import MARK, BandFiles, Patterns, band_files, common_start, pair, patterns_of, role_of
from .sight import RASTERS, Sight, Sorted, look_at, sort_files

_LEAST_ROLE = 0.02
"""Share of the pairs that another spelling of names must have to be used, too."""
_EQUAL = 0.75
"""Share of the commonest kind's pairs from which another kind may be preferred to it."""
_LOOKED_AT, _MOST_VIEWED = 40, 6
_USUAL = {"image", "images", "img", "rgb", "rgbnir", "sat", "mask", "masks", "msk", "label", "labels", "gt"}
_USUAL |= {"annot", "annotation", "annotations"}


@dataclass(frozen=True)
class Place:
    """Where the files are.

    Attributes:
        text: `dataset.root` as the user typed it.
        paths: relative paths of all files, sorted.
        is_label: tells label files, if the user named them.
    """

    text: str
    paths: tuple[str, ...]
    is_label: Callable[[str], bool] | None = None

    @property
    def root(self) -> Path:
        """Return the folder that patterns start from."""
        return Path(self.text)


@dataclass(frozen=True)
class FolderFacts:
    """Images and labels of a folder dataset.

    Attributes:
        images: pattern of each band's file, or one pattern.
        labels: pattern of label files, or the file for all images.
        shared: one label file serves all images.
        splits: globs of images by split, where folders tell it.
        others: other readings.
    """

    images: tuple[str, ...]
    labels: str
    splits: dict[str, tuple[str, ...]]
    shared: bool = False
    others: tuple[str, ...] = ()


def place_of(data: Path, labels: Path | None) -> Place:
    """Return the files below a folder, and those of labels beside it.

    Args:
        labels: folder, file, or pattern of files below `data`.

    Raises:
        DatasetError: there is no such folder or file, or both have no folder in common.
    """
    if labels is not None and re.search(r"[*?{]", str(labels)) and not labels.exists():
        place, pattern = place_of(data, None), re.sub(r"\{\w*\}", "*", labels.as_posix())
        named = {path for path in place.paths if PurePosixPath(place.text, path).match(pattern)}
        if not named:
            raise DatasetError(
                f"--labels {labels}: expected folder, file or pattern; no file in {data} is like it"
            )
        return replace(place, is_label=named.__contains__)
    asked = [data] if labels is None else [data, labels]
    if missing := [each for each in asked if not each.exists()]:
        raise DatasetError(f"{missing[0]}: expected a folder or file, there is none (from {Path.cwd()})")
    if data.is_file() and labels is None:
        raise DatasetError(f"{data}: expected a folder; of one image, --labels names its own")
    folders = [os.path.normpath(each if each.is_dir() else each.parent) for each in asked]
    if len({os.path.isabs(folder) for folder in folders}) > 1:
        folders = [os.path.abspath(folder) for folder in folders]
    root = Path(os.path.commonpath(folders) or ".")
    if root.resolve() == Path(root.resolve().anchor):
        raise DatasetError(f"{labels}: expected labels below a folder with {data}; link them there (ln -s)")
    paths: set[str] = set()
    for each in asked:
        at = Path(os.path.relpath(each, root))
        paths |= {at.as_posix()} if each.is_file() else {(at / path).as_posix() for path in files_under(each)}
    named_as = "" if labels is None else Path(os.path.relpath(labels, root)).as_posix()
    is_label = None if labels is None else lambda path: path == named_as or path.startswith(f"{named_as}/")
    return Place(root.as_posix(), tuple(sorted(paths)), is_label)


def find_pairs(place: Place) -> tuple[FolderFacts, Sorted]:
    """Return the images and labels among the files, and what the files look like.

    Raises:
        DatasetError: there is no reading of the folder as images and labels; the line says what was found.
    """
    files = sort_files(place.root, place.paths, place.is_label)
    labels = files.labels or files.vectors
    if not files.images or not labels:
        raise DatasetError(f"{place.root}: {_nothing(place, files)}")
    bands = _bands(files, len(labels))
    scenes = list(files.images if bands is None else bands.scenes)
    first = scenes if bands is None else [bands.first(scene) for scene in scenes]
    if len(labels) == 1 and _serves_all(place.root, labels[0], first):
        patterns, others = _image_patterns(scenes), list[str]()
        patterns = replace(patterns, labels=labels[0])
    else:
        patterns, chosen, others = _paired(place, files, scenes, bands)
        patterns = _with_all_endings(place, patterns, chosen)
        scenes = [scene for scene, _ in chosen]
    if files.labels and files.vectors:
        others.insert(0, f"polygons of {few(files.vectors, 2)}")
    images = (patterns.images,) if bands is None else bands.patterns(patterns.images)
    shared = patterns.labels == labels[0] and len(scenes) > 1
    return FolderFacts(images, patterns.labels, _globs(patterns), shared, tuple(others)), files


def _paired(
    place: Place, files: Sorted, scenes: Sequence[str], bands: BandFiles | None
) -> tuple[Patterns, list[tuple[str, str]], list[str]]:
    """Return patterns, the (image, label) pairs that they stand for, and other readings.

    Raises:
        DatasetError: no names pair most of the images and labels.
    """
    labels = files.labels or files.vectors
    ties = pair(scenes, labels)

    def view(path: str) -> Sight:
        file = path if bands is None or path not in bands.scenes else bands.first(path)
        return files.looked.setdefault(file, files.looked.get(file) or look_at(place.root, file))

    for numbered, several in ((False, True), (False, False), (True, True)):
        chosen, others, left = _chosen(ties, view, numbered=numbered, several=several)
        patterns = patterns_of(chosen) if chosen else Patterns("", "", {})
        fitting = _fitting(patterns, chosen, scenes, labels)
        alone = len(labels) == 1 and len(ties[labels[0]]) > 1  # any of them might be its image
        if not alone and 2 * fitting > min(len(scenes), fitting + len(left)):
            left = sorted(set(left).difference(_matching(patterns.labels, left)))
            return patterns, chosen, [*others, *([f"labels not used: {few(left, 2)}"] if left else [])]
    raise DatasetError(
        f"{place.root}: found {counted(len(scenes), 'image')} ({few(scenes, 2)}) and "
        f"{counted(len(labels), 'label')} ({few(labels, 2)}), but no names that pair most of them, "
        "nor one georeferenced label; give image and label of a scene the same name in two folders, "
        "or name labels of one kind: --labels '*_mask.tif'"
    )


def _nothing(place: Place, files: Sorted) -> str:
    """Return what was looked for and found, if that is no dataset."""
    if files.images:
        found = f"found {counted(len(files.images), 'image')} ({few(files.images, 2)}) and no labels"
        rest = [path for path in map(PurePosixPath, place.paths) if path.suffix.lower() not in RASTERS]
        unread = Counter(f"{path.suffix} in {path.parent}: not read" for path in rest).most_common(1)
        found += "".join(f"; {n} {kind}" for kind, n in unread if 2 * n > len(files.images))
        return f"{found}; looked for rasters of a few values and for polygons; --labels names them"
    if files.labels:
        found = f"found {counted(len(files.labels), 'raster')} of a few values ({few(files.labels, 2)})"
        return f"{found}, as labels have, and no image; --labels names the labels"
    endings = Counter(PurePosixPath(path).suffix.lower() or "no ending" for path in place.paths)
    found = ", ".join(f"{n} {ending}" for ending, n in endings.most_common(4)) or "no file"
    return f"looked for GeoTIFF, PNG, JPEG or JPEG 2000 images and their labels, found {found}"


def _bands(files: Sorted, labels: int) -> BandFiles | None:
    """Return scenes of several files, if most images have one band and at most half as many have labels."""
    counts = [sight.info.count for p in files.images if (sight := files.looked.get(p)) and sight.info]
    single = 2 * sum(count == 1 for count in counts) > len(counts)
    return band_files(files.images) if single and 2 * labels <= len(files.images) else None


def _serves_all(root: Path, label: str, images: Sequence[str]) -> bool:
    """Return whether several images lie on a label file by georeference."""
    if len(images) < 2 or is_vector(label):
        return len(images) > 1
    infos = [sight.info for path in (label, *images[:_LOOKED_AT]) if (sight := look_at(root, path)).info]
    if any(info.transform is None for info in infos):
        return False
    ground, *grounds = outlines(infos)
    if ground is None:
        return False
    low, high = ground.min(axis=0), ground.max(axis=0)
    known = [ground for ground in grounds if ground is not None]
    return sum(bool(((g.min(axis=0) < high) & (g.max(axis=0) > low)).all()) for g in known) > 1


def _chosen(
    ties: dict[str, list[str]], view: Callable[[str], Sight], *, numbered: bool, several: bool
) -> tuple[list[tuple[str, str]], list[str], list[str]]:
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
    keys = {role: (-many, *_unlikely(role, roles[role], view)) for role in likely}
    ranked = sorted(roles, key=lambda role: (*keys.get(role, (-counts[role],)), -counts[role], role))
    chosen: dict[str, str] = {}
    stems = {role: tuple(PurePosixPath(text).stem for text in role) for role in ranked}
    used, told, taken = set[str](), set[str](), set[tuple[str, ...]]()
    others: dict[str, str] = {}
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
            kind = {member[side] for member in members}
            told |= kind
            others.setdefault(role[side], f"{len(kind)} {('images', 'labels')[side]} like {members[0][side]}")
    return sorted(chosen.items()), list(others.values()), sorted(ties.keys() - used - told)


def _unlikely(
    role: tuple[str, str], members: Sequence[tuple[str, str]], view: Callable[[str], Sight]
) -> tuple[object, ...]:
    """Return a key by which the likeliest of equally common kinds of names is first.

    Images: on the grid of their label, or the finest if it has none, three bands or more, usual words, most
    bands. Labels: usual words, no instances, most classes.
    """
    image, label = min(members, key=lambda each: (each[1], each[0]))
    of, on = view(image).info, None if is_vector(label) else view(label).info
    if of is None:
        return (True, 0, 0, 0, 0, 0)
    finest = (False, -of.size.pixels) if on is None else (of.size != on.size, 0)
    classes = max(view(label).values for _, label in members[:_MOST_VIEWED]) if on else 0
    words = re.findall(r"[^\W\d_]{2,}", " ".join(role).lower())
    odd = sum(-1 if word in _USUAL else 1 for word in words) + len(words) * ("instance" in words)
    return (*finest, -min(of.count, 3), odd, -of.count, -classes)


def _fitting(
    patterns: Patterns, pairs: Sequence[tuple[str, str]], images: Sequence[str], labels: Sequence[str]
) -> int:
    """Return the number of pairs that patterns pair, too: no other image or label has the same names.

    As in a dataset, what both patterns match belongs to the one with more literal text.
    """
    both = patterns.images, patterns.labels
    literal = [len(re.sub(r"\*+|\{\w+\}", "", pattern)) for pattern in both]
    regexes = [pattern_regex(pattern, "names") for pattern in both]
    of = [
        {
            path: str(sorted(match.groupdict().items()))
            for path in (*images, *labels)
            if (match := regex.fullmatch(path))
        }
        for regex in regexes
    ]
    shared = of[0].keys() & of[1].keys()
    if shared and literal[0] == literal[1]:
        return 0
    for path in shared:
        del of[literal[0] > literal[1]][path]
    once = [
        {path for path, names in each.items() if counts[names] == 1}
        for each in of
        for counts in [Counter(each.values())]
    ]
    return sum(a in once[0] and b in once[1] and of[0][a] == of[1][b] for a, b in pairs)


def _with_all_endings(place: Place, patterns: Patterns, pairs: Sequence[tuple[str, str]]) -> Patterns:
    """Return patterns with a star for several endings of files, if they then match no other file."""
    made = []
    for pattern, wanted in zip(
        (patterns.images, patterns.labels), map(set, zip(*pairs, strict=True)), strict=True
    ):
        endings = sorted({PurePosixPath(path).suffix for path in wanted})
        loose = f"{pattern.removesuffix(PurePosixPath(pattern).suffix)}{common_start(endings)}*"
        exact = len(endings) > 1 and set(_matching(loose, place.paths)) == wanted
        made.append(loose if exact else pattern)
    return replace(patterns, images=made[0], labels=made[1])


def _matching(pattern: str, paths: Iterable[str]) -> list[str]:
    regex = pattern_regex(pattern, "names")
    return [path for path in paths if regex.fullmatch(path)]


def _globs(patterns: Patterns) -> dict[str, tuple[str, ...]]:
    """Return globs of the images of validation and test, where a folder names the split."""
    before, _, behind = patterns.images.partition("{split}")
    ends = re.sub(r"\*\*/|\{\w+\}", "*", before), behind.partition("/")[0]
    return {
        split: tuple(f"{ends[0]}{value}{ends[1]}/*" for value in values)
        for split, values in patterns.splits.items()
        if split != "train"
    }


def _image_patterns(scenes: Sequence[str]) -> Patterns:
    """Return the pattern of images that one label serves: the stem is the name, if it tells them apart."""
    stems = [PurePosixPath(scene).stem.removesuffix(MARK) for scene in scenes]
    whole = [scene.removesuffix(PurePosixPath(scene).suffix).removesuffix(MARK) for scene in scenes]
    ends = stems if len(set(stems)) == len(stems) and all(stems) else whole
    return patterns_of([(scene, f"labels/{end}.tif") for scene, end in zip(scenes, ends, strict=True)])
