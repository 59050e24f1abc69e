"""NAIC2020: 256×256 images with labels of the same stem, 8 classes in round 1 and 15 of 17 in round 2."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from segmenter.config.datasets import Naic2020Config
from segmenter.grid.scenes import Dataset, Layout, Scene

from .classes import NAIC2020_ROUND1, NAIC2020_ROUND2, ignoring
from .files import (
    Candidates,
    Named,
    assign_splits,
    data_root,
    files_under,
    held_out,
    matching,
    root_of,
)


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
    named = Named(validation=held_out(pairs, config.validation_share))
    splits = assign_splits({name: (name,) for name in pairs}, itself, named)
    scenes = tuple(
        Scene(name, root / image, root / label, name, splits[name]) for name, (image, label) in pairs.items()
    )
    classes = ignoring(NAIC2020_ROUND1 if config.round == 1 else NAIC2020_ROUND2, config.ignore)
    unused = candidates.unused(left, "named in leave_out")
    return Dataset(f"naic2020-round{config.round}", root, scenes, classes, unused=unused)


def naic2020_layout(config: Naic2020Config) -> Layout:
    """Return a layout for files in any folder; its field is `{name}`, the stem."""
    images, labels = (
        re.compile(f"(?:.*/)?(?P<name>[^/]+){ending}", re.IGNORECASE) for ending in (r"\.tiff?", r"\.png")
    )
    return Layout(root_of(config.root), images, labels, "{name}.tif")
