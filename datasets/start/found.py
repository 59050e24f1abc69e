"""Files of a folder that nobody described: pairs of image and label, and their patterns."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from segmenter.base.errors import DatasetError, counted
from segmenter.base.finding import is_vector
from segmenter.raster import RasterInfo, outlines

from ..files import few, files_under
from ..folder import pattern_regex
from .names import MARK, BandFiles, Patterns, band_files, pair, patterns_of, role_of
from .sight import Sorted, drivers_of, is_raster, look_at, sort_files

_LEAST_ROLE = 0.02
"""Share of the pairs that another spelling of names must have to be used, too."""
_LOOKED_AT = 40


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
class Found:
    """Images and labels of a folder dataset.

    Attributes:
        images: pattern of each band's file, or one pattern.
        labels: pattern of label files, or the file for all images.
        pairs: (image, label) paths of examples; of several files the first.
        shared: one label file serves all images.
        splits: globs of images by split, where folders tell it.
        why_images, why_labels: reasons.
        others: other readings.
    """

    images: tuple[str, ...]
    labels: str
    pairs: tuple[tuple[str, str], ...]
    shared: bool = False
    splits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    why_images: str = ""
    why_labels: str = ""
    others: tuple[str, ...] = ()


def place_of(data: Path, labels: Path | None) -> Place:
    """Return the files below a folder, and those of labels beside it.

    Raises:
        DatasetError: there is no such folder or file, or both have no folder in common.
    """
    for what in (data, labels):
        if what is not None and not what.exists():
            raise DatasetError(f"{what}: expected a folder or file, there is none (from {Path.cwd()})")
    if data.is_file() and labels is None:
        raise DatasetError(
            f"{data}: expected a folder with images and labels; of one image, --labels names its own"
        )
    asked = [data] if labels is None else [data, labels]
    folders = [os.path.normpath(each if each.is_dir() else each.parent) for each in asked]
    if len({os.path.isabs(folder) for folder in folders}) > 1:
        folders = [os.path.abspath(folder) for folder in folders]
    root = Path(os.path.commonpath(folders) if all(folders) else ".")
    if root.resolve() == Path(root.resolve().anchor):
        raise DatasetError(
            f"{data}, {labels}: expected labels in a folder beside the images, they have only / in common; link one beside the other (ln -s)"
        )
    paths = set[str]()
    for each in asked:
        below = os.path.relpath(each, root)
        if each.is_file():
            paths.add(Path(below).as_posix())
        else:
            start = "" if below == "." else Path(below).as_posix() + "/"
            paths |= {start + path for path in files_under(each)}
    if labels is None:
        return Place(root.as_posix(), tuple(sorted(paths)))
    at = Path(os.path.relpath(labels, root)).as_posix()
    return Place(
        root.as_posix(),
        tuple(sorted(paths)),
        lambda path: path == at or path.startswith(f"{at}/") or at == ".",
    )


def find_pairs(place: Place) -> tuple[Found, Sorted]:
    """Return the images and labels among the files, and what the files look like.

    Raises:
        DatasetError: there is no reading of the folder as images and labels; the line says what was found.
    """
    files = sort_files(place.root, place.paths, place.is_label)
    if not files.images or not (files.labels or files.vectors):
        raise DatasetError(_nothing(place, files))
    bands = _bands(place.root, files)
    keys = (
        {key: key for key in files.images}
        if bands is None
        else {key: bands.first(key) for key in bands.scenes}
    )
    labels = files.labels or files.vectors
    others = () if not (files.labels and files.vectors) else (f"polygons of {few(files.vectors, 2)}",)
    if len(labels) == 1 and _serves_all(place.root, labels[0], list(keys.values())):
        return _on_one(place, labels[0], keys, bands, others), files
    chosen, alternatives = _chosen(pair(list(keys), labels))
    if not chosen:
        raise DatasetError(_unpaired(place, files))
    found = _with_patterns(place, chosen, bands, labels)
    return replace(found, others=(*others, *alternatives)), files


def _nothing(place: Place, files: Sorted) -> str:
    rasters = [path for path in place.paths if is_raster(path)]
    if not rasters:
        endings = Counter(PurePosixPath(path).suffix.lower() or "no ending" for path in place.paths)
        shown = ", ".join(f"{n} {ending}" for ending, n in endings.most_common(4)) or "no file"
        return (
            f"{place.root}: found no data set: looked for GeoTIFF, PNG, JPEG or JPEG 2000 images with label "
            f"rasters or polygons, found {shown}"
        )
    if files.images:
        return (
            f"{place.root}: found {counted(len(files.images), 'image')} ({few(files.images, 2)}) and no labels: "
            "looked for rasters of a few values and for polygons; --labels names them, wherever they are"
        )
    return (
        f"{place.root}: found {counted(len(files.labels), 'raster')} of a few values, as labels have "
        f"({few(files.labels, 2)}), and no image; if some are images, --labels names the labels"
    )


def _unpaired(place: Place, files: Sorted) -> str:
    labels = files.labels or files.vectors
    return (
        f"{place.root}: found {counted(len(files.images), 'image')} ({few(files.images, 2)}) and "
        f"{counted(len(labels), 'label')} ({few(labels, 2)}), but no names that pair them; give image and label "
        "of a scene the same name in two folders"
    )


def _bands(root: Path, files: Sorted) -> BandFiles | None:
    """Return scenes of several files, if most images have one band."""
    single = [
        sight.info.count == 1
        for path in files.images
        if (sight := files.looked.get(path)) is not None and sight.info is not None
    ]
    return band_files(files.images) if single and sum(single) > len(single) / 2 else None


def _serves_all(root: Path, label: str, images: Sequence[str]) -> bool:
    """Return whether several images lie on a label file by georeference."""
    if len(images) < 2:
        return False
    if is_vector(label):
        return True
    infos: list[RasterInfo] = []
    for path in (label, *images[:_LOOKED_AT]):
        sight = look_at(root, path)
        if sight.info is None or sight.info.transform is None:
            return False
        infos.append(sight.info)
    label_ground, *grounds = outlines(infos)
    if label_ground is None:
        return False
    low, high = label_ground.min(axis=0), label_ground.max(axis=0)
    on = [
        g for g in grounds if g is not None and (g.min(axis=0) < high).all() and (g.max(axis=0) > low).all()
    ]
    return len(on) > 1


def _chosen(ties: dict[str, list[str]]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return one label for each image: pairs of the commonest kinds of names, and the other readings."""
    roles: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for label, images in ties.items():
        for image in images:
            roles.setdefault((role_of(image, label), role_of(label, image)), []).append((image, label))
    total = len({image for members in roles.values() for image, _ in members})
    ranked = sorted(
        roles.items(), key=lambda item: (-len({i for i, _ in item[1]}), _oddness(item[0]), item[0])
    )
    chosen: dict[str, str] = {}
    used, others = set[str](), list[str]()
    stems = {_stems(role) for role, _ in ranked[:1]}
    for role, members in ranked:
        free = [(image, label) for image, label in members if image not in chosen and label not in used]
        if (_stems(role) in stems or len(free) >= max(2, _LEAST_ROLE * total)) and len(free) > len(
            members
        ) / 2:
            for image, label in free:
                if image not in chosen and label not in used:
                    chosen[image] = label
                    used.add(label)
            stems.add(_stems(role))
        elif len(members) > 1 and len(members) >= _LEAST_ROLE * total:
            image, label = members[0]
            others.append(
                f"{len(members)} labels like {label}"
                if label not in used
                else f"{len(members)} images like {image}"
            )
    return sorted(chosen.items()), others


def _stems(role: tuple[str, str]) -> tuple[str, ...]:
    return tuple(PurePosixPath(text).stem for text in role)


def _oddness(role: tuple[str, str]) -> int:
    """Return how much of a role's names is no usual word of images and labels; decides between equals."""
    words = "image images img rgb sat tile mask masks label labels gt groundtruth annot annotations msk lbl".split()
    return sum(word.lower() not in words for text in role for word in re.findall(r"[^\W\d]{2,}", text)) + any(
        re.search(r"\d", text) is not None for text in role
    )


def _with_patterns(
    place: Place, pairs: list[tuple[str, str]], bands: BandFiles | None, labels: Sequence[str]
) -> Found:
    """Return the patterns of pairs.

    Raises:
        DatasetError: the names follow no pattern.
    """
    patterns = patterns_of(pairs)
    regexes = [pattern_regex(patterns.images, "images"), pattern_regex(patterns.labels, "labels")]
    matched = [
        (image, label)
        for image, label in pairs
        if (a := regexes[0].fullmatch(image))
        and (b := regexes[1].fullmatch(label))
        and a.groupdict() == b.groupdict()
    ]
    patterns = _with_all_endings(place, patterns, pairs) if bands is None else patterns
    if not matched:
        raise DatasetError(
            f"{place.root}: found images like {pairs[0][0]} and labels like {pairs[0][1]}, but no pattern of "
            "their names; give image and label of a scene the same name in two folders"
        )
    count = len(pairs)
    return Found(
        (patterns.images,) if bands is None else bands.patterns(patterns.images),
        patterns.labels,
        tuple(pairs if bands is None else ((bands.first(key), label) for key, label in pairs)),
        splits=_globs(patterns),
        why_images=counted(count, "image with a label", "images with a label"),
        why_labels=f"{count} of {counted(len(labels), 'raster')} of a few values pair by name"
        if not is_vector(labels[0])
        else f"{count} files of polygons pair by name",
    )


def _with_all_endings(place: Place, patterns: Patterns, pairs: Sequence[tuple[str, str]]) -> Patterns:
    """Return patterns that end in a star where files have several endings, if they then match no other file."""
    made = []
    for pattern, side in ((patterns.images, 0), (patterns.labels, 1)):
        wanted = {each[side] for each in pairs}
        endings = {PurePosixPath(path).suffix for path in wanted}
        loose = (
            pattern.removesuffix(PurePosixPath(pattern).suffix) + os.path.commonprefix(list(endings)) + "*"
        )
        exact = (
            len(endings) > 1
            and {path for path in place.paths if pattern_regex(loose, "images").fullmatch(path)} == wanted
        )
        made.append(loose if exact else pattern)
    return replace(patterns, images=made[0], labels=made[1])


def _globs(patterns: Patterns) -> dict[str, tuple[str, ...]]:
    """Return globs of the images of validation and test, where a folder names the split."""
    globs: dict[str, tuple[str, ...]] = {}
    for split in ("validation", "test"):
        made = []
        for value in patterns.splits.get(split, ()):
            start = patterns.images.partition("{split}")
            rest = start[2].partition("/")
            made.append(re.sub(r"\*\*/|\{\w+\}", "*", f"{start[0]}{value}{rest[0]}/*"))
        if made:
            globs[split] = tuple(made)
    return globs


def _on_one(
    place: Place, label: str, keys: dict[str, str], bands: BandFiles | None, others: tuple[str, ...]
) -> Found:
    """Return images that one label file serves."""
    stems = [PurePosixPath(key).stem.removesuffix(MARK) for key in keys]
    unique = len(set(stems)) == len(stems) and all(stems)
    ends = stems if unique else [str(PurePosixPath(key).with_suffix("")).removesuffix(MARK) for key in keys]
    patterns = patterns_of([(key, f"labels/{end}.tif") for key, end in zip(keys, ends, strict=True)])
    what = "polygons" if is_vector(label) else "one label raster"
    return Found(
        (patterns.images,) if bands is None else bands.patterns(patterns.images),
        label,
        tuple((image, label) for image in keys.values()),
        shared=True,
        splits=_globs(patterns),
        why_images=counted(len(keys), "image"),
        why_labels=f"{what} for all images, placed by georeference",
        others=others,
    )


def named_drivers(found: Found) -> tuple[str, ...]:
    """Return the GDAL drivers that the images and labels need to be named."""
    return tuple(dict.fromkeys(d for path in (*found.images, found.labels) for d in drivers_of(path)))
