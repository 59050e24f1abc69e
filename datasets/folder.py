"""Folders of images and labels that are paired by patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

from segmenter.base.addresses import is_address, masked
from segmenter.base.errors import ConfigError, DatasetError, shortened
from segmenter.base.files import is_vector
from segmenter.config.datasets import FolderConfig, FolderSplit
from segmenter.grid.labels import ClassMap, Colour, LandCoverClass, own_colour
from segmenter.grid.scenes import Dataset, Layout, Scene, Split

from .files import (
    Candidates,
    Named,
    assign_splits,
    data_root,
    dealt,
    few,
    files_under,
    found_in_paths,
    matching,
    root_of,
    stored_names,
)
from .published import parse_colour

Unused = tuple[tuple[Path, str], ...]

_TOKEN = re.compile(r"(?:\*{2,}/)+|\*+|\{([^{}]*)\}|[^*{}]+|.")
_WILD = re.compile(r"\*++|\{[^{}]*\}")
_CROWDED = re.compile(r"(?:\*++|\{[^{}]*\}){3}")
_ENDINGS = (("tif", "tiff"), ("jpg", "jpeg"))
UNLABELLED = "without a label (unlabelled: skip)"
IMAGELESS = "without an image (unlabelled: skip)"
SPELT = "spelt otherwise than in dataset.images, dataset.labels or the names of classes"
_MOST_WILD = 16
"""Wildcards and names of a pattern: many, or several without text between, take for ever to try."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    splits = _splits(config.split, {name: aliases[name] for name in aliases if name not in left}, groups)
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
        notes=_torn(config, {pairs[scene.name][0]: scene.split for scene in scenes}),
    )


def folder_layout(config: FolderConfig) -> Layout:
    """Return the recipe's patterns as a layout; its fields are their `{names}`."""
    images = image_regexes(config)
    labels = pattern_regex(config.labels, "dataset.labels", config.masks)
    several = dict(zip(config.images, images, strict=True)) if len(images) > 1 else {}
    grid = None if config.grid is None else config.images.index(config.grid)
    placed, masks = config.labels_by == "georeference" or one_label(config), config.encoding == "masks"
    classes = class_map(config) if (placed or masks) and not is_vector(config.labels) else None
    return Layout(
        *(root_of(config.root), images[0], labels, config.images[0], several, grid, placed, classes),
        masks=config.masks if masks else None,
    )


def one_label(config: FolderConfig) -> bool:
    """Return whether one label file serves all images: only the images' pattern has names."""
    named = pattern_regex(config.images[0], "dataset.images").groupindex
    return bool(named) and not pattern_regex(config.labels, "dataset.labels").groupindex


# ---------------------------------------------------------------------------------------- patterns


def pattern_regex(pattern: str, setting: str, classes: Collection[str] = ()) -> re.Pattern[str]:
    """Return a pattern as a regular expression on relative POSIX paths.

    `*` matches any part of one file or folder name, `**/` any folders, `{name}` a captured part of one name;
    a repeated name must have the same value. All other characters are literal. `{class}` is one of `classes`,
    if there are any; the other names are then as short as possible.

    Raises:
        ConfigError: the pattern leaves the root, or has braces without a name.
    """
    drive = re.match(r"[A-Za-z]:", pattern)
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/") or drive or is_address(pattern):
        raise ConfigError(setting, expected="a pattern below dataset.root", got=masked(pattern))
    if len(_WILD.findall(pattern)) > _MOST_WILD or _CROWDED.search(pattern):
        raise ConfigError(
            setting,
            expected=f"at most {_MOST_WILD} * and {{names}}, with text between them",
            got=shortened(pattern),
        )
    parts: list[str] = []
    names: set[str] = set()
    for token in _TOKEN.finditer(pattern.removeprefix("./")):
        text, name = token[0], token[1]
        if text.startswith("**") and text.endswith("/"):
            parts.append("(?:[^/]+/)*")
        elif text.startswith("*"):
            parts.append("[^/]*")
        elif name is not None and _IDENTIFIER.fullmatch(name):
            longest = sorted(classes, key=len, reverse=True)
            any_of = "|".join(map(re.escape, longest)) if name == "class" and classes else "[^/]+"
            lazy = "?" if classes and name != "class" else ""
            parts.append(f"(?P={name})" if name in names else f"(?P<{name}>{any_of}{lazy})")
            names.add(name)
        elif text[0] in "{}":
            raise ConfigError(setting, expected="{name} in braces", got=f"{text} in {pattern}")
        else:
            parts.append(re.escape(text))
    return re.compile("".join(parts))


def image_regexes(config: FolderConfig) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of a scene's image files as regular expressions with the same names."""
    regexes = tuple(pattern_regex(pattern, "dataset.images") for pattern in config.images)
    for regex, pattern in zip(regexes[1:], config.images[1:], strict=True):
        if regex.groupindex.keys() != regexes[0].groupindex.keys() or not regex.groupindex:
            raise ConfigError(
                "dataset.images",
                expected="the same {names} in each of several patterns, since they pair the files of a scene",
                got=f"{_braces(regex)} in {pattern}, {_braces(regexes[0])} in {config.images[0]}",
            )
    return regexes


def _files(
    config: FolderConfig, root: Path, at: Callable[[str], Path], paths: Sequence[str], names: Sequence[str]
) -> dict[str, tuple[Path, ...]]:
    """Return image files in band order by scene name; empty if a scene is one file that needs no driver."""
    regexes, files = image_regexes(config), {name: list[Path]() for name in names}
    if len(regexes) == 1 and not config.drivers:
        return {}
    order, first_names = list(regexes[0].groupindex), set[str]()
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
            if len(one) != 1:
                raise DatasetError(
                    root,
                    expected=f"one file like {pattern} for {name}",
                    got=few(one) or "none",
                    remedy="keep one, or leave the scene out by dataset.split.leave_out",
                )
            own.append(at(one[0]))
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
            got=f"{_braces(label_regex)} against {_braces(image_regex)}",
        )
    candidates = candidates_of(root, config.images[0], config.labels, paths, config.masks)
    images, labels = candidates.images.keys(), candidates.labels.keys()
    only, unused = images | labels, candidates.unused((), "")
    if config.unlabelled == "skip":
        only, unused = images & labels, candidates.unused(images - labels, UNLABELLED)
        unused += candidates.unused(labels - images, IMAGELESS)
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
    images, labels = (len(_WILD.sub("", form)) for form in forms)
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


def _braces(regex: re.Pattern[str]) -> str:
    return " ".join(f"{{{name}}}" for name in regex.groupindex) or "none"


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
    split: FolderSplit, known: Mapping[str, Sequence[str]], groups: Mapping[str, str]
) -> dict[str, Split]:
    if split.blocks is not None:  # which divide each scene, once its size is known
        return dict.fromkeys(known, "train")
    if not split.by_hash:
        return assign_splits(known, groups, Named(split.validation, split.test))
    named = assign_splits(known, groups, Named(split.validation, split.test))
    free = sorted({groups[name] for name, part in named.items() if part == "train"})
    parts = dealt(free, split)
    more = {part: [n for n in known if parts.get(groups[n]) == part] for part in ("validation", "test")}
    validation, test = (*split.validation, *more["validation"]), (*split.test, *more["test"])
    return assign_splits(known, groups, Named(validation, test))


def _torn(config: FolderConfig, splits: Mapping[str, Split]) -> tuple[str, ...]:
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


# --------------------------------------------------------------------------------------- class map


def class_map(config: FolderConfig) -> ClassMap:
    """Return a recipe's class map; missing colours get distinct defaults, used only in maps."""
    classes = tuple(
        LandCoverClass(
            c.name,
            own_colour(i) if c.colour is None else parse_colour(c.colour, f"dataset.classes.{i}.colour"),
            i if c.code is None else c.code,
            c.further,
        )
        for i, c in enumerate(config.classes)
    )
    return ClassMap(classes, "colours" if config.encoding == "colours" else "codes", tuple(_ignored(config)))


def _ignored(config: FolderConfig) -> list[int | Colour]:
    values: list[int | Colour] = []
    for i, value in enumerate(config.ignore):
        where = f"dataset.ignore.{i}"
        if config.encoding == "colours":
            values.append(parse_colour(value, where))
        elif isinstance(value, int):
            values.append(value)
        else:
            raise ConfigError(where, expected="a code, since labels hold codes", got=f"{value!r}")
    return values
