"""ISPRS Potsdam: 38 scenes of 6000×6000 pixels at 5 cm, named by row and column."""

from __future__ import annotations

import re
from pathlib import Path

from datasets.classes import POTSDAM_TEST, POTSDAM_TRAIN, potsdam_classes
from datasets.files import Candidates, Named, assign_splits, data_root, files_under
from segmenter.errors import DatasetError
from segmenter.scenes import Dataset, Layout, Scene
from segmenter.schema_datasets import PotsdamConfig

_IMAGE = re.compile(r"top_potsdam_(?P<row>\d+)_(?P<column>\d+)_(RGB|IRRG|RGBIR)\.tiff?", re.IGNORECASE)
_LABEL = re.compile(r"top_potsdam_(\d+)_(\d+)_label(_noBoundary)?\.tiff?", re.IGNORECASE)
_NAME = re.compile(r"(?:top_potsdam_)?(\d+)_(\d+)")


def load_potsdam(config: PotsdamConfig) -> Dataset:
    """Scenes of Potsdam, named `row_column` without padding (`2_10`), wherever they lie under the root.

    The published archives pad numbers differently (`02_10`, `2_10`): both are read as one scene, and two
    files of one kind for a scene are an error. The `standard` split trains on 24 scenes and tests on 14; it
    has no validation scenes, for none of the published numbers hold any out: name some
    (`split: {validation: [...], test: [...]}`) to choose a checkpoint by its validation score. Scenes of
    the standard split that are not there are counted in `Dataset.notes`.

    Raises:
        DatasetError: no images, ambiguous or unpaired files, an unknown name, nothing to train on.
    """
    root = data_root(config.root)
    found = _candidates(config)
    named, notes = _named(config, set(found.images) | set(found.labels))
    used = None if named.train is None else {*named.train, *named.validation, *named.test}
    pairs = found.pairs(used)
    itself = {name: name for name in pairs}
    splits = assign_splits({name: (name,) for name in pairs}, itself, named)
    scenes = tuple(
        Scene(name, root / pairs[name][0], root / pairs[name][1], name, splits[name])
        for name in sorted(pairs, key=_numbers)
    )
    left = sorted(path for name, paths in found.images.items() if name not in pairs for path in paths)
    return Dataset(
        name=f"potsdam-{config.images.lower()}",
        root=root,
        scenes=scenes,
        classes=potsdam_classes(config.labels, config.classes),
        # Named, so that near infrared is data even where a file tags its fourth band as alpha.
        bands=(1, 2, 3, 4) if config.images == "RGBIR" else (1, 2, 3),
        labels=config.labels,
        expand_palette=True,
        unused=tuple((root / path, "named in no split") for path in left),
        notes=notes,
    )


def potsdam_layout(config: PotsdamConfig) -> Layout:
    """Files by name in any folder; the fields are `{row}` and `{column}`, as the file writes them."""
    images, labels = (re.compile(f"(?:.*/)?{name.pattern}", name.flags) for name in (_IMAGE, _LABEL))
    form = f"top_potsdam_{{row}}_{{column}}_{config.images}.tif"
    return Layout(Path(config.root).expanduser(), images, labels, form)


def _candidates(config: PotsdamConfig) -> Candidates:
    suffix = "_noBoundary" if config.labels == "eroded" else ""
    found = Candidates(
        data_root(config.root),
        f"top_potsdam_2_10_{config.images}.tif",
        f"top_potsdam_2_10_label{suffix}.tif",
    )
    for path in files_under(found.root):
        file = path.rpartition("/")[2]
        image, label = _IMAGE.fullmatch(file), _LABEL.fullmatch(file)
        if image and image[3].upper() == config.images:
            found.images.setdefault(_scene(image), []).append(path)
        elif label and bool(label[3]) == bool(suffix):
            found.labels.setdefault(_scene(label), []).append(path)
    return found


def _named(config: PotsdamConfig, present: set[str]) -> tuple[Named, tuple[str, ...]]:
    """The split as unpadded names, and what is to be said of it."""
    if config.split != "standard":
        split = config.split
        train = None if split.train is None else _plain(split.train)
        return Named(_plain(split.validation), _plain(split.test), train), ()
    standard = (*POTSDAM_TRAIN, *POTSDAM_TEST)
    stray = sorted(present - set(standard), key=_numbers)
    if stray:
        raise DatasetError(
            f"{config.root}: {', '.join(stray)} are in neither part of the standard split; "
            "name the scenes in dataset.split"
        )
    there = {
        part: tuple(n for n in names if n in present)
        for part, names in (("train", POTSDAM_TRAIN), ("test", POTSDAM_TEST))
    }
    notes: tuple[str, ...] = ()
    if len(present) < len(standard):
        missing = [name for name in standard if name not in present]
        notes = (
            f"{len(there['train'])} of 24 training and {len(there['test'])} of 14 test scenes are there; "
            f"missing: {', '.join(missing)}",
        )
    return Named(test=there["test"], train=there["train"]), notes


def _scene(match: re.Match[str]) -> str:
    return f"{int(match[1])}_{int(match[2])}"


def _plain(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names as scenes are called; what is no scene name stays, and then matches nothing."""
    matches = ((name, _NAME.fullmatch(name)) for name in names)
    return tuple(_scene(match) if match else name for name, match in matches)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("_"))
