"""Folders of images and labels that are paired by patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

from segmenter.base.errors import ConfigError, DatasetError
from segmenter.base.files import is_vector
from segmenter.config.datasets import FolderConfig
from segmenter.config.layouts import WILD, braces, class_map, image_regexes, one_label, pattern_regex
from segmenter.grid.deals import Deal
from segmenter.grid.scenes import Dataset, Scene, Split

from .files import (
    Candidates,
    NamedScenes,
    assign_splits,
    data_root,
    few,
    files_under,
    found_in_paths,
    matching,
    parts_of,
    split_of,
    stored_names,
)

Unused = tuple[tuple[Path, str], ...]

_ENDINGS = (("tif", "tiff"), ("jpg", "jpeg"))
UNLABELLED = "without a label (unlabelled: skip)"
IMAGELESS = "without an image (unlabelled: skip)"
SPELT = "spelt otherwise than in dataset.images, dataset.labels or the names of classes"


def load_folder(config: FolderConfig) -> Dataset:
    """Return scenes of a folder: image and label files whose paths agree in the patterns' `{names}`.

    A scene's name is made of these values (`{tile}/images/{part}.jpg` gives `tile_1_part_2`), or is its
    file's if the patterns have no names.

    Raises:
        ConfigError: a pattern, colour or split is invalid.
        DatasetError: images are missing, files ambiguous or unpaired, or a split matches nothing or cuts a
            group.
    """
    root = data_root(config.root)
    classes = class_map(config)
    listed = files_under(root, config.files)
    stored = stored_names(listed)
    every = sorted(stored)

    def at(name: str) -> Path:
        return root / stored[name]

    masks = _masks(config, every)
    further = {path for own in masks.values() for _, path in own[1:]}
    paths = [path for path in every if path not in further]
    pairs, skipped = _pairs(config, root, paths)
    skipped = (*skipped, *((at(path), SPELT) for path in _spelt_otherwise(config, paths)))
    groups = _groups(config, pairs)
    aliases = {name: (name, groups[name], image) for name, (image, _) in pairs.items()}
    left = matching(config.split.leave_out, aliases, "dataset.split.leave_out")
    used = {name: aliases[name] for name in aliases if name not in left}
    splits, deal = _splits(config, used, groups)
    files = _files(config, root, at, paths, [name for name in pairs if name not in left])
    scenes = tuple(
        Scene(
            *(name, at(image), at(label), groups[name], splits[name]),
            files=files.get(name, ()),
            masks=tuple((code, at(path)) for code, path in masks.get(label, ())),
        )
        for name, (image, label) in pairs.items()
        if name not in left
    )
    return Dataset(
        name=root.resolve().name,
        root=root,
        scenes=scenes,
        classes=classes,
        bands=config.bands,
        labels=config.label_kind,
        leave_out="dataset.split.leave_out",
        unused=(*((at(pairs[name][0]), "named in split.leave_out") for name in sorted(left)), *skipped),
        notes=_split_value_warnings(config, {pairs[scene.name][0]: scene.split for scene in scenes}),
        deal=deal,
    )


# ------------------------------------------------------------------------------------- files and pairs


class ScenesOfOtherFilesError(DatasetError):
    """Scenes of several files lack one, or have one twice.

    Attributes:
        faults: scene → its fault.
    """

    faults: dict[str, str]


def _files(
    config: FolderConfig, root: Path, at: Callable[[str], Path], paths: Sequence[str], names: Sequence[str]
) -> dict[str, tuple[Path, ...]]:
    """Return image files in band order by scene name; empty if a scene is one file that needs no driver."""
    regexes, files = image_regexes(config), {name: list[Path]() for name in names}
    if len(regexes) == 1 and not config.drivers:
        return {}
    order, first_names = list(regexes[0].groupindex), set[str]()
    faults: dict[str, tuple[str, str]] = {}
    for pattern, regex in zip(config.images, regexes, strict=True):
        by_name: dict[str, list[str]] = {}
        for path in paths:
            if match := regex.fullmatch(path):
                name = "_".join(match[each] for each in order) or PurePosixPath(path).stem
                by_name.setdefault(name, []).append(path)
        first_names = first_names or set(by_name)
        if alone := sorted(path for name in by_name.keys() - first_names for path in by_name[name]):
            raise DatasetError(
                root,
                f"{len(alone)} files like {pattern} have none like {config.images[0]} with the same names: "
                f"{few(alone)}",
                remedy="add it or move the file out of the folder",
            )
        for name, own in files.items():
            one = by_name.get(name, [])
            if len(one) == 1:
                own.append(at(one[0]))
            else:
                faults.setdefault(name, (f"one file like {pattern} for {name}", few(one) or "none"))
    if faults:
        expected, got = next(iter(faults.values()))
        remedy = "keep one, or leave the scene out by dataset.split.leave_out"
        error = ScenesOfOtherFilesError(root, expected=expected, got=got, remedy=remedy)
        error.faults = {name: f"expected {expected}, got {got}" for name, (expected, got) in faults.items()}
        raise error
    return {name: tuple(own) for name, own in files.items()}


def _pairs(
    config: FolderConfig, root: Path, paths: Sequence[str]
) -> tuple[dict[str, tuple[str, str]], Unused]:
    """Pair images and labels by scene name; also return images skipped for lack of a label."""
    image_regex = image_regexes(config)[0]
    label_regex = pattern_regex(config.labels, "dataset.labels", config.masks)
    named = set(image_regex.groupindex)
    if one_label(config) or (is_vector(config.labels) and not label_regex.groupindex):
        return _on_one_file(config, root, paths, image_regex, label_regex)
    of_labels = set(label_regex.groupindex) - ({"class"} if config.masks else set())
    if not of_labels <= named or (named and not of_labels):
        raise ConfigError(
            "dataset.labels",
            expected="the same {names} as in dataset.images, or fewer if a label serves several dates",
            got=f"{braces(label_regex)} against {braces(image_regex)}",
        )
    candidates = candidates_of(root, config.images[0], config.labels, paths, config.masks)
    images, labels = candidates.images.keys(), candidates.labels.keys()
    only, unused = images | labels, candidates.unused_files((), "")
    if config.unlabelled == "skip":
        only, unused = images & labels, candidates.unused_files(images - labels, UNLABELLED)
        unused += candidates.unused_files(labels - images, IMAGELESS)
    pairs = candidates.pairs(only)
    if not named:
        pairs = {PurePosixPath(image).stem: (image, label) for image, label in pairs.values()}
    return pairs, unused


def _masks(config: FolderConfig, paths: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the code and file of each mask of a scene, in the order of the classes, by the first file."""
    codes = {each.name: each.code or 0 for each in config.classes} if config.masks else {}
    regex, scenes = pattern_regex(config.labels, "dataset.labels", codes), dict[str, dict[str, str]]()
    for match in filter(None, map(regex.fullmatch, paths)) if codes else ():
        values = match.groupdict()
        name = values.pop("class")
        if not codes[name]:
            raise DatasetError(
                match[0],
                f"is a mask of {name}, whose code 0 is that of pixels in no mask",
                remedy=f"give {name} another code in dataset.classes, or move its masks out of the folder",
            )
        scenes.setdefault(str(values), {}).setdefault(name, match[0])
    ordered = [[(codes[name], own[name]) for name in codes if name in own] for own in scenes.values()]
    return {own[0][1]: own for own in ordered}


def candidates_of(
    root: Path, image_form: str, label_form: str, paths: Sequence[str], classes: Collection[str] = ()
) -> Candidates:
    """Return the files that patterns with the same names match, by scene name; `classes`: of masks."""
    candidates = Candidates(root, image_form, label_form, ", or set dataset.unlabelled: skip")
    image_regex = pattern_regex(image_form, "dataset.images")
    label_regex = pattern_regex(label_form, "dataset.labels", classes)
    keys: dict[str, tuple[str, ...]] = {}
    of_images = tuple(image_regex.groupindex)
    fields = tuple(name for name in of_images if name in label_regex.groupindex)
    dates: dict[tuple[str, ...], list[str]] = {}  # names of the images of a label, if it serves several
    for path in paths:
        if match := image_regex.fullmatch(path):
            name = _scene_name(tuple(match[name] for name in of_images), keys, path)
            candidates.images.setdefault(name, []).append(path)
            if label_regex.fullmatch(path) is None:
                dates.setdefault(tuple(match[name] for name in fields), []).append(name)
    for path in paths:
        if match := label_regex.fullmatch(path):
            key = tuple(match[name] for name in fields)
            several = dates.get(key, []) if len(fields) < len(of_images) else []
            for name in dict.fromkeys(several) or [_scene_name(key, keys, path)]:
                candidates.labels.setdefault(name, []).append(path)
    both = sorted(
        {p for v in candidates.images.values() for p in v}
        & {p for v in candidates.labels.values() for p in v}
    )
    if both:
        _to_the_more_literal(candidates, both)
    return candidates


def _to_the_more_literal(candidates: Candidates, both: Sequence[str]) -> None:
    """Give files that both patterns match to the pattern with more literal text.

    So `{name}_mask.tif` takes the labels among `{name}.tif`, `{split}annot/{name}.png` those of
    `{split}/{name}.png`.
    """
    forms = candidates.image_form, candidates.label_form
    images, labels = (len(WILD.sub("", form)) for form in forms)
    if images == labels:
        raise ConfigError(
            "dataset.images and dataset.labels", expected=f"to match different files, both match {both[0]}"
        )
    shared, fewer = set(both), candidates.images if labels > images else candidates.labels
    for name, files in list(fewer.items()):
        fewer[name] = [file for file in files if file not in shared]
        if not fewer[name]:
            del fewer[name]


def _spelt_otherwise(config: FolderConfig, paths: Sequence[str]) -> list[str]:
    """Return files that match a pattern but for upper case, or the ending: .TIF or .tiff for .tif."""
    patterns = (*config.images, config.labels)
    exact = [pattern_regex(pattern, "dataset.images", config.masks) for pattern in patterns]
    loose = []
    for pattern in patterns:
        stem, _, ending = pattern.rpartition(".")
        if stem and ending.isalnum():
            kin = next((kin for kin in _ENDINGS if ending.casefold() in kin), (ending,))
            endings = "|".join(map(re.escape, kin))
            start = pattern_regex(stem, "dataset.images", config.masks).pattern
            loose.append(re.compile(rf"{start}\.({endings})", re.IGNORECASE))
    rest = [path for path in paths if not any(regex.fullmatch(path) for regex in exact)]
    return [path for path in rest if any(regex.fullmatch(path) for regex in loose)]


def _on_one_file(
    config: FolderConfig,
    root: Path,
    paths: Sequence[str],
    image_regex: re.Pattern[str],
    label_regex: re.Pattern[str],
) -> tuple[dict[str, tuple[str, str]], Unused]:
    """Pair images with one shared label file; returns the same as `_pairs`."""
    labels = [path for path in paths if label_regex.fullmatch(path)]
    if len(labels) != 1:
        raise DatasetError(
            root,
            expected=f"one label file for all images like {config.labels}",
            got=few(labels) or "none",
            remedy=f"name it, join rasters (gdalbuildvrt all.vrt {config.labels}, dataset.drivers: [VRT]), "
            "or pair files with images by the {names} of dataset.images",
        )
    candidates = Candidates(root, config.images[0], config.labels)
    keys: dict[str, tuple[str, ...]] = {}
    for path in paths:
        if path != labels[0] and (match := image_regex.fullmatch(path)):
            key = tuple(match.groups()) if image_regex.groupindex else (PurePosixPath(path).stem,)
            name = _scene_name(key, keys, path)
            candidates.images.setdefault(name, []).append(path)
            candidates.labels[name] = labels
    return candidates.pairs(), ()


def _scene_name(key: tuple[str, ...], keys: dict[str, tuple[str, ...]], path: str) -> str:
    name = "_".join(key)
    if keys.setdefault(name, key) != key:
        raise DatasetError(
            path,
            f"this scene and one more would both be called {name}",
            remedy="rename a file or folder so that the values of the pattern's names differ when joined",
        )
    return name


# ------------------------------------------------------------------------------------------ splits


def _groups(config: FolderConfig, pairs: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the group of each image: by `group`, else each scene is one, or all dates of a label."""
    split, images = config.split, {name: image for name, (image, _) in pairs.items()}
    if split.group is None:
        fields = set(pattern_regex(config.labels, "dataset.labels", config.masks).groupindex) - {"class"}
        regex = pattern_regex(config.images[0], "dataset.images")
        if not fields or fields >= set(regex.groupindex):
            return {name: name for name in images}
        matches = {name: regex.fullmatch(image) for name, image in images.items()}
        order = [field for field in regex.groupindex if field in fields]
        return {name: "_".join(m[field] for field in order) if m else name for name, m in matches.items()}
    group_names = found_in_paths(split.group, list(images.values()))
    groups = {}
    for (name, image), group in zip(images.items(), group_names, strict=True):
        if group is None:
            raise DatasetError(
                "dataset.split.group", f"{split.group} names no group in {image}; every image belongs to one"
            )
        groups[name] = group
    return groups


def _splits(
    config: FolderConfig, known: Mapping[str, Sequence[str]], groups: Mapping[str, str]
) -> tuple[dict[str, Split], Deal | None]:
    """Return the split of each scene, and the deal of the groups that a hash deals."""
    split = config.split
    if split.blocks is not None:  # which divide each scene, once its size is known
        return dict.fromkeys(known, "train"), None
    named = assign_splits(known, groups, NamedScenes(split.validation, split.test))
    if not split.by_hash:
        return named, None
    parts = parts_of({groups[name] for name, part in named.items() if part == "train"}, split, config.deals)
    sides = {group: split_of(part, split.fold) for group, part in parts.items()}
    more = {part: [n for n in known if sides.get(groups[n]) == part] for part in ("validation", "test")}
    validation, test = (*split.validation, *more["validation"]), (*split.test, *more["test"])
    return assign_splits(known, groups, NamedScenes(validation, test)), Deal(split.rule, parts)


def _split_value_warnings(config: FolderConfig, splits: Mapping[str, Split]) -> tuple[str, ...]:
    """Return warnings on images that share the value of a name, not all, but are in several splits."""
    regex = pattern_regex(config.images[0], "dataset.images")
    names = list(regex.groupindex) if config.split.group is None else []
    matches = {image: match for image in splits if (match := regex.fullmatch(image))}
    for name in names[:-1] if len(matches) == len(splits) else []:
        sides: dict[str, set[Split]] = {}
        for image, match in matches.items():
            sides.setdefault(match[name], set()).add(splits[image])
        torn = sorted(value for value, of in sides.items() if len(of) > 1)
        if torn and len(sides) > 1:
            group = _group_regex(regex, name, {image: match[name] for image, match in matches.items()})
            return (
                f"warning: scenes of one {{{name}}} lie on both sides of the split ({few(torn, 3)}); if they "
                f"are parts of one place, dataset.split.group: '{group}' keeps them together",
            )
    return ()


def _group_regex(regex: re.Pattern[str], name: str, values: Mapping[str, str]) -> str:
    """Return an expression for `split.group` that finds the value of a name in each image."""
    whole = regex.pattern.replace(f"(?P<{name}>[^/]+)", "([^/]+)").replace(f"(?P={name})", r"\1")
    whole = "^" + re.sub(r"\(\?P<\w+>\[\^/\]\+\)|\(\?P=\w+\)", "[^/]+", whole) + "$"
    short = re.match(r".*?\(\[\^/\]\+\)(?:\\.|[^\\\[(])*", whole)
    assert short is not None, "the name is in the pattern"
    matches = ((image, re.search(short[0], image)) for image in values)
    return short[0] if all(match and match[1] == values[image] for image, match in matches) else whole
