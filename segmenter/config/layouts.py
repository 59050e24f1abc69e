"""Layouts of datasets: patterns of file names as regular expressions, and the class map of a folder.

They follow from a recipe alone, so that an opened run reads the labels of its kind without a loader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import Any

from segmenter.base.addresses import is_address, mask_secrets
from segmenter.base.errors import ConfigError, shorten
from segmenter.base.files import is_vector
from segmenter.config.datasets import DatasetConfig, FolderConfig, Naic2020Config, PotsdamConfig
from segmenter.grid.colours import default_colours
from segmenter.grid.labels import ClassMap, Colour, LandCoverClass, unpack_colour
from segmenter.grid.scenes import Layout

_TOKEN = re.compile(r"(?:\*{2,}/)+|\*+|\{([^{}]*)\}|[^*{}]+|.")
WILD = re.compile(r"\*++|\{[^{}]*\}")
"""Parts of a pattern that match any text."""
_CROWDED = re.compile(r"(?:\*++|\{[^{}]*\}){3}")
_MOST_WILD = 16
"""Wildcards and names of a pattern: many, or several without text between, take for ever to try."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
POTSDAM_IMAGE = re.compile(r"top_potsdam_(?P<row>\d+)_(?P<column>\d+)_(RGB|IRRG|RGBIR)\.tiff?", re.IGNORECASE)
POTSDAM_LABEL = re.compile(r"top_potsdam_(\d+)_(\d+)_label(_noBoundary)?\.tiff?", re.IGNORECASE)


def layout_of(section: DatasetConfig, root: Path) -> Layout:
    """Return the file-name patterns of a recipe's dataset, without looking at files.

    Args:
        root: the section's root as a path.
    """
    return LAYOUTS[section.kind](section, root)


def _folder_layout(config: FolderConfig, root: Path) -> Layout:
    """Return the recipe's patterns as a layout; its fields are their `{names}`."""
    images = image_regexes(config)
    labels = pattern_regex(config.labels, "dataset.labels", config.masks)
    several = dict(zip(config.images, images, strict=True)) if len(images) > 1 else {}
    grid = None if config.grid is None else config.images.index(config.grid)
    placed, masks = config.labels_by == "georeference" or one_label(config), config.encoding == "masks"
    classes = class_map(config) if (placed or masks) and not is_vector(config.labels) else None
    return Layout(
        *(root, images[0], labels, config.images[0], several, grid, placed, classes),
        masks=config.masks if masks else None,
    )


def _potsdam_layout(config: PotsdamConfig, root: Path) -> Layout:
    """Return a layout for files in any folder; its fields are `{row}` and `{column}`, as in file names."""
    images, labels = (
        re.compile(f"(?:.*/)?{name.pattern}", name.flags) for name in (POTSDAM_IMAGE, POTSDAM_LABEL)
    )
    form = f"top_potsdam_{{row}}_{{column}}_{config.images}.tif"
    return Layout(root, images, labels, form)


def _naic2020_layout(config: Naic2020Config, root: Path) -> Layout:
    """Return a layout for files in any folder; its field is `{name}`, the stem."""
    images, labels = (
        re.compile(f"(?:.*/)?(?P<name>[^/]+){ending}", re.IGNORECASE) for ending in (r"\.tiff?", r"\.png")
    )
    return Layout(root, images, labels, "{name}.tif")


LAYOUTS: dict[str, Callable[[Any, Path], Layout]] = {
    "potsdam": _potsdam_layout,
    "naic2020": _naic2020_layout,
    "folder": _folder_layout,
}
"""Function from each kind's section and root to its layout."""

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
        raise ConfigError(setting, expected="a pattern below dataset.root", got=mask_secrets(pattern))
    if len(WILD.findall(pattern)) > _MOST_WILD or _CROWDED.search(pattern):
        raise ConfigError(
            setting,
            expected=f"at most {_MOST_WILD} * and {{names}}, with text between them",
            got=shorten(pattern),
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
                got=f"{braces(regex)} in {pattern}, {braces(regexes[0])} in {config.images[0]}",
            )
    return regexes


def one_label(config: FolderConfig) -> bool:
    """Return whether one label file serves all images: only the images' pattern has names."""
    named = pattern_regex(config.images[0], "dataset.images").groupindex
    return bool(named) and not pattern_regex(config.labels, "dataset.labels").groupindex


def braces(regex: re.Pattern[str]) -> str:
    """Return the names of a pattern's fields, in braces."""
    return " ".join(f"{{{name}}}" for name in regex.groupindex) or "none"


# --------------------------------------------------------------------------------------- class map


def class_map(config: FolderConfig) -> ClassMap:
    """Return a recipe's class map; missing colours and codes get distinct defaults, used only in maps."""
    given = [
        None if c.colour is None else parse_colour(c.colour, f"dataset.classes.{i}.colour")
        for i, c in enumerate(config.classes)
    ]
    colours = default_colours([c.name for c in config.classes], given)
    written = {code for each in config.classes for code in (each.code, *each.further)}
    further = (code for code in count(len(config.classes)) if code not in written)
    classes = tuple(
        LandCoverClass(
            c.name,
            colours[i],
            c.code if c.code is not None else i if i not in written else next(further),
            c.further,
        )
        for i, c in enumerate(config.classes)
    )
    return ClassMap(
        classes, "colours" if config.encoding == "colours" else "codes", tuple(_ignored_values(config))
    )


def _ignored_values(config: FolderConfig) -> list[int | Colour]:
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


def parse_colour(value: int | str, where: str) -> Colour:
    """Return a colour from a recipe; errors name `where`."""
    digits = str(value).removeprefix("#")
    if not isinstance(value, str) or not re.fullmatch(r"[0-9A-Fa-f]{6}", digits):
        raise ConfigError(where, expected="a colour as '#rrggbb', in quotes", got=f"{value!r}")
    return unpack_colour(int(digits, 16))
