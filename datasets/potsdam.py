"""ISPRS Potsdam: 38 scenes of 6000×6000 pixels at 5 cm, named by row and column."""

from __future__ import annotations

import re

from segmenter.base.errors import DatasetError
from segmenter.config.datasets import PotsdamConfig, SplitByNames
from segmenter.grid.scenes import Dataset, Layout, Scene

from .classes import POTSDAM_TEST, POTSDAM_TRAIN, ignoring, parse_colour, potsdam_classes
from .files import Candidates, Named, assign_splits, data_root, files_under, matching, root_of

METRES_PER_PIXEL = 0.05
"""As published."""
_IMAGE = re.compile(r"top_potsdam_(?P<row>\d+)_(?P<column>\d+)_(RGB|IRRG|RGBIR)\.tiff?", re.IGNORECASE)
_LABEL = re.compile(r"top_potsdam_(\d+)_(\d+)_label(_noBoundary)?\.tiff?", re.IGNORECASE)
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
    named, notes = _named(config, present - left)
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
        unused=candidates.unused(nowhere, "named in no split")
        + candidates.unused(left, "named in leave_out"),
        notes=notes,
        usual_metres=METRES_PER_PIXEL,
    )


def potsdam_layout(config: PotsdamConfig) -> Layout:
    """Return a layout for files in any folder; its fields are `{row}` and `{column}`, as in file names."""
    images, labels = (re.compile(f"(?:.*/)?{name.pattern}", name.flags) for name in (_IMAGE, _LABEL))
    form = f"top_potsdam_{{row}}_{{column}}_{config.images}.tif"
    return Layout(root_of(config.root), images, labels, form)


def _candidates(config: PotsdamConfig) -> Candidates:
    suffix = "_noBoundary" if config.labels == "eroded" else ""
    candidates = Candidates(
        data_root(config.root),
        f"top_potsdam_2_10_{config.images}.tif",
        f"top_potsdam_2_10_label{suffix}.tif",
    )
    for path in files_under(candidates.root, config.files):
        file = path.rpartition("/")[2]
        image, label = _IMAGE.fullmatch(file), _LABEL.fullmatch(file)
        if image and image[3].upper() == config.images:
            candidates.images.setdefault(_scene(image), []).append(path)
        elif label and bool(label[3]) == bool(suffix):
            candidates.labels.setdefault(_scene(label), []).append(path)
    return candidates


def _named(config: PotsdamConfig, present: set[str]) -> tuple[Named, tuple[str, ...]]:
    """Return the split as unpadded names, and notes to print."""
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
    return Named(test=of_part["test"], train=of_part["train"]), notes


def _by_names(split: SplitByNames, present: set[str]) -> tuple[Named, tuple[str, ...]]:
    """Return the scenes that a recipe lists; published ones may be missing if some can validate."""
    lacking: list[str] = []

    def existing(part: str, names: tuple[str, ...]) -> tuple[str, ...]:
        gone = [name for name in names if name in {*POTSDAM_TRAIN, *POTSDAM_TEST} - present]
        lacking.extend(f"{name} ({part})" for name in gone)
        present_names = tuple(name for name in names if name not in gone)
        if part == "validation" and names and not present_names:
            raise DatasetError(
                "dataset.split.validation",
                f"none of {', '.join(names)} is there",
                remedy="name others, or leave it out",
            )
        return present_names

    validation, test = existing("validation", _plain(split.validation)), existing("test", _plain(split.test))
    train = None if split.train is None else existing("train", _plain(split.train))
    note = f"{len(lacking)} scenes that dataset.split names are not there: {', '.join(lacking)}"
    return Named(validation, test, train), (note,) if lacking else ()


def _scene(match: re.Match[str]) -> str:
    return f"{int(match[1])}_{int(match[2])}"


def _plain(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names in the form of scene names; other texts are unchanged and match nothing."""
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    return tuple(_scene(match) if match else name for name, match in matches)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("_"))
