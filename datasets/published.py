"""Published layouts: ISPRS Potsdam, 38 scenes of 6000×6000 pixels at 5 cm, named by row and column; NAIC2020,
256×256 images with labels of the same stem, 8 classes in round 1 and 15 of 17 in round 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Literal

from segmenter.base.errors import DatasetError
from segmenter.config.datasets import FolderSplit, Naic2020Config, PotsdamConfig, SplitByNames
from segmenter.config.layouts import POTSDAM_IMAGE, POTSDAM_LABEL, parse_colour
from segmenter.grid.deals import Deal
from segmenter.grid.labels import ClassMap, Colour, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene

from .files import (
    Candidates,
    NamedScenes,
    assign_splits,
    data_root,
    files_under,
    matching,
    parts_of,
)

BLACK = (0, 0, 0)


def ignoring(classes: ClassMap, values: Iterable[int | Colour]) -> ClassMap:
    """Return a class map that ignores further values of label files."""
    return replace(classes, ignored=(*classes.ignored, *values))


POTSDAM = ClassMap(
    (
        LandCoverClass("impervious surfaces", (255, 255, 255), 1),
        LandCoverClass("building", (0, 0, 255), 2),
        LandCoverClass("low vegetation", (0, 255, 255), 3),
        LandCoverClass("tree", (0, 255, 0), 4),
        LandCoverClass("car", (255, 255, 0), 5),
        LandCoverClass("clutter", (255, 0, 0), 6),
    ),
    encoding="colours",
)
"""Six classes, full labels: every pixel has one of these colours. The codes are for results only."""

POTSDAM_TRAIN: tuple[str, ...] = (
    *("2_10", "2_11", "2_12", "3_10", "3_11", "3_12", "4_10", "4_11", "4_12", "5_10", "5_11", "5_12"),
    *("6_7", "6_8", "6_9", "6_10", "6_11", "6_12", "7_7", "7_8", "7_9", "7_10", "7_11", "7_12"),
)
"""The 24 scenes (row_column, unpadded) whose labels were published with the contest."""

POTSDAM_TEST: tuple[str, ...] = (
    *("2_13", "2_14", "3_13", "3_14", "4_13", "4_14", "4_15"),
    *("5_13", "5_14", "5_15", "6_13", "6_14", "6_15", "7_13"),
)
"""The 14 scenes that were the contest's test set."""


def potsdam_classes(labels: Literal["full", "eroded"], classes: Literal[6, 5]) -> ClassMap:
    """Return Potsdam's class map for one protocol.

    Black marks the eroded border and is ignored only in eroded labels; in full labels it is an unknown
    colour. With 5 classes clutter is ignored, not merged into another class.
    """
    ignored = (BLACK,) if labels == "eroded" else ()
    if classes == 5:
        clutter = POTSDAM.classes[-1].colour
        return ClassMap(POTSDAM.classes[:-1], "colours", (*ignored, clutter))
    return ClassMap(POTSDAM.classes, "colours", ignored)


NAIC2020_ROUND1 = ClassMap(
    (
        LandCoverClass("water", (64, 132, 208), 100),
        LandCoverClass("transport", (150, 150, 150), 200),
        LandCoverClass("building", (214, 74, 62), 300),
        LandCoverClass("farmland", (238, 202, 92), 400),
        LandCoverClass("grassland", (164, 214, 94), 500),
        LandCoverClass("woodland", (34, 120, 52), 600),
        LandCoverClass("bare soil", (170, 116, 68), 700),
        LandCoverClass("other", (120, 84, 150), 800),
    )
)
"""Eight classes, 16-bit codes 100 … 800; the colours are ours, for maps."""

NAIC2020_ROUND2 = ClassMap(
    (
        LandCoverClass("water", (64, 132, 208), 1),
        LandCoverClass("road", (150, 150, 150), 2),
        LandCoverClass("building", (214, 74, 62), 3),
        LandCoverClass("airport", (238, 98, 198), 4),
        LandCoverClass("car park", (92, 92, 116), 7),
        LandCoverClass("sports ground", (246, 146, 72), 8),
        LandCoverClass("farmland", (238, 202, 92), 9),
        LandCoverClass("greenhouse", (222, 226, 232), 10),
        LandCoverClass("natural grassland", (164, 214, 94), 11),
        LandCoverClass("urban green", (110, 182, 116), 12),
        LandCoverClass("natural woodland", (34, 120, 52), 13),
        LandCoverClass("planted woodland", (62, 146, 100), 14),
        LandCoverClass("natural bare soil", (170, 116, 68), 15),
        LandCoverClass("man-made bare soil", (204, 158, 118), 16),
        LandCoverClass("other", (120, 84, 150), 17),
    )
)
"""Fifteen of the official 17 classes, those that have pixels: codes 1 … 4 and 7 … 17; 5 (train station) and 6
(photovoltaic) have none. The colours are ours."""


METRES_PER_PIXEL = 0.05
"""As published."""
_NAME = re.compile(r"(?:top_potsdam_)?(\d+)_(\d+)")


def load_potsdam(config: PotsdamConfig) -> Dataset:
    """Load Potsdam's scenes, named `row_column` without padding, anywhere under the root.

    The published archives pad numbers differently (`02_10`, `2_10`): both are read as one scene, and two
    files of one kind for a scene are an error. The `standard` split trains on 24 scenes and tests on 14; it
    has no validation scenes, as in all published results: list some (`split: {validation: [...], test:
    [...]}`) to choose a checkpoint by its validation score. `Dataset.notes` counts published scenes that a
    split lists but that are missing.

    Raises:
        DatasetError: images are missing, files ambiguous or unpaired, a name unknown, or nothing is left to
            train on.
    """
    root = data_root(config.root)
    candidates = _candidates(config)
    present = {*candidates.images, *candidates.labels}
    left = matching(_plain(config.leave_out), {name: (name,) for name in present}, "dataset.leave_out")
    named, notes = _potsdam_split(config, present - left)
    used = present if named.train is None else {*named.train, *named.validation, *named.test}
    pairs = candidates.pairs(used - left)
    itself = {name: name for name in pairs}
    splits = assign_splits({name: (name,) for name in pairs}, itself, named)
    scenes = tuple(
        Scene(name, root / pairs[name][0], root / pairs[name][1], name, splits[name])
        for name in sorted(pairs, key=_numbers)
    )
    nowhere = [name for name in candidates.images if name not in pairs and name not in left]
    colours = (parse_colour(value, f"dataset.ignore.{i}") for i, value in enumerate(config.ignore))
    return Dataset(
        name=f"potsdam-{config.images.lower()}",
        root=root,
        scenes=scenes,
        classes=ignoring(potsdam_classes(config.labels, config.classes), colours),
        # Named, so that near infrared is data even where a file tags its fourth band as alpha.
        bands=(1, 2, 3, 4) if config.images == "RGBIR" else (1, 2, 3),
        labels=config.labels,
        unused=candidates.unused_files(nowhere, "named in no split")
        + candidates.unused_files(left, "named in leave_out"),
        notes=notes,
        usual_metres=METRES_PER_PIXEL,
    )


def _candidates(config: PotsdamConfig) -> Candidates:
    suffix = "_noBoundary" if config.labels == "eroded" else ""
    candidates = Candidates(
        data_root(config.root),
        f"top_potsdam_2_10_{config.images}.tif",
        f"top_potsdam_2_10_label{suffix}.tif",
    )
    for path in files_under(candidates.root, config.files):
        file = path.rpartition("/")[2]
        image, label = POTSDAM_IMAGE.fullmatch(file), POTSDAM_LABEL.fullmatch(file)
        if image and image[3].upper() == config.images:
            candidates.images.setdefault(_scene(image), []).append(path)
        elif label and bool(label[3]) == bool(suffix):
            candidates.labels.setdefault(_scene(label), []).append(path)
    return candidates


def _potsdam_split(config: PotsdamConfig, present: set[str]) -> tuple[NamedScenes, tuple[str, ...]]:
    if config.split != "standard":
        return _by_names(config.split, present)
    standard = (*POTSDAM_TRAIN, *POTSDAM_TEST)
    stray = sorted(present - set(standard), key=_numbers)
    if stray:
        raise DatasetError(
            config.root,
            f"{', '.join(stray)} are in neither part of the standard split; name the scenes in dataset.split",
        )
    of_part = {
        part: tuple(n for n in names if n in present)
        for part, names in (("train", POTSDAM_TRAIN), ("test", POTSDAM_TEST))
    }
    notes: tuple[str, ...] = ()
    if len(present) < len(standard):
        missing = [name for name in standard if name not in present]
        notes = (
            f"{len(of_part['train'])} of 24 training and {len(of_part['test'])} of 14 test scenes are there; "
            f"missing: {', '.join(missing)}",
        )
    return NamedScenes(test=of_part["test"], train=of_part["train"]), notes


def _by_names(split: SplitByNames, present: set[str]) -> tuple[NamedScenes, tuple[str, ...]]:
    """Return the scenes that a recipe lists; published ones may be missing if some can validate."""
    lacking: list[str] = []

    def existing(part: str, names: tuple[str, ...]) -> tuple[str, ...]:
        gone = [name for name in names if name in {*POTSDAM_TRAIN, *POTSDAM_TEST} - present]
        lacking.extend(f"{name} ({part})" for name in gone)
        present_names = tuple(name for name in names if name not in gone)
        if part == "validation" and names and not present_names:
            raise DatasetError(
                f"dataset.split.validation: none of {', '.join(names)} is there; name others, or leave it out"
            )
        return present_names

    validation, test = existing("validation", _plain(split.validation)), existing("test", _plain(split.test))
    train = None if split.train is None else existing("train", _plain(split.train))
    note = f"{len(lacking)} scenes that dataset.split names are not there: {', '.join(lacking)}"
    return NamedScenes(validation, test, train), (note,) if lacking else ()


def _scene(match: re.Match[str]) -> str:
    return f"{int(match[1])}_{int(match[2])}"


def _plain(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names in the form of scene names; other texts are unchanged and match nothing."""
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    return tuple(_scene(match) if match else name for name, match in matches)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("_"))


def load_naic2020(config: Naic2020Config) -> Dataset:
    """Load pairs `NAME.tif` and `NAME.png` in any subfolders of the root, by their stem.

    Validation scenes are chosen by a hash of the stem, so that they stay the same when files are added.
    Labels contain codes; every pixel must have a code of the round, unless the recipe ignores it.

    Raises:
        DatasetError: there are no images, two files of one stem, or files without a partner, or a scene to
            leave out is missing.
    """
    root = data_root(config.root)
    candidates = Candidates(root, "images/NAME.tif", "labels/NAME.png")
    for path in files_under(root, config.files):
        stem, suffix = PurePosixPath(path).stem, PurePosixPath(path).suffix.lower()
        if suffix in (".tif", ".tiff"):
            candidates.images.setdefault(stem, []).append(path)
        elif suffix == ".png":
            candidates.labels.setdefault(stem, []).append(path)
    names = {*candidates.images, *candidates.labels}
    left = matching(config.leave_out, {name: (name,) for name in names}, "dataset.leave_out")
    pairs = candidates.pairs(names - left)
    itself = {name: name for name in pairs}
    split = FolderSplit(validation_share=config.validation_share)
    parts = parts_of(pairs, split, config.deals)
    named = NamedScenes(validation=tuple(name for name, part in parts.items() if part == "validation"))
    splits = assign_splits({name: (name,) for name in pairs}, itself, named)
    scenes = tuple(
        Scene(name, root / image, root / label, name, splits[name]) for name, (image, label) in pairs.items()
    )
    classes = ignoring(NAIC2020_ROUND1 if config.round == 1 else NAIC2020_ROUND2, config.ignore)
    unused = candidates.unused_files(left, "named in leave_out")
    name, deal = f"naic2020-round{config.round}", Deal(split.rule, parts)
    return Dataset(name, root, scenes, classes, unused=unused, deal=deal)
