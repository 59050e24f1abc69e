"""Layouts of published datasets that have a loader: Potsdam and NAIC2020, by sight."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import PurePosixPath

from segmenter.base.errors import SegmenterError, counted
from segmenter.config.datasets import Naic2020Config, PotsdamConfig
from segmenter.grid.scenes import Dataset

from ..classes import NAIC2020_ROUND1, NAIC2020_ROUND2
from ..naic2020 import load_naic2020
from ..potsdam import load_potsdam
from .choice import Choice
from .folder_facts import Place
from .sight import in_hash_order, look_at
from .values import count_values

_LOOKED_AT, _NAIC_SIDE, _LEAST_CODES = 200, 256, 6
"""Labels that are read; side of NAIC2020's tiles; codes of round 2 that labels must have, and no other."""


def published(place: Place) -> tuple[Choice, ...] | None:
    """Return the settings of a published dataset; None if the files are of none."""
    if place.is_label is not None:
        return None
    try:
        return _potsdam(place) or _naic2020(place)
    except SegmenterError:
        return None


def _head(kind: str, place: Place, dataset: Dataset, title: str) -> tuple[Choice, Choice]:
    why = f"{counted(len(dataset.scenes), 'scene')} named as those of {title}"
    root = Choice("dataset.root", place.text, f"{counted(len(place.paths), 'file')} below it")
    return Choice("dataset.kind", kind, why), root


def _potsdam(place: Place) -> tuple[Choice, ...] | None:
    """Return Potsdam's settings: RGB before other bands, eroded labels before full; the split is standard."""
    readings: dict[tuple[str, str], Dataset] = {}
    for images, labels in product(("RGB", "RGBIR", "IRRG"), ("eroded", "full")):
        data = {"kind": "potsdam", "root": place.text, "images": images, "labels": labels, "split": {}}
        try:
            readings[images, labels] = load_potsdam(PotsdamConfig.model_validate(data))
        except SegmenterError:
            continue
    if not readings:
        return None
    images, labels = max(readings, key=lambda each: len(readings[each].scenes))
    dataset = readings.pop((images, labels))
    return (
        *_head("potsdam", place, dataset, "ISPRS Potsdam"),
        Choice(
            "dataset.images",
            images,
            "RGB before other bands",
            ", ".join(sorted({each for each, _ in readings} - {images})),
        ),
        Choice(
            "dataset.labels",
            labels,
            "eroded: the noBoundary set",
            ", ".join(sorted({each for _, each in readings} - {labels})),
        ),
        Choice(
            "dataset.classes", 6, "all of Potsdam's classes", "5, without clutter, as many published scores"
        ),
    )


def _naic2020(place: Place) -> tuple[Choice, ...] | None:
    """Return NAIC2020's settings for tiles of its size whose labels hold its codes."""
    endings = Counter(PurePosixPath(path).suffix.lower() for path in place.paths)
    labels = [path for path in in_hash_order(place.paths) if path.lower().endswith(".png")][:_LOOKED_AT]
    infos = {path: info for path in labels if (info := look_at(place.root, path).info)}
    size = {(info.size.height, info.size.width, info.count) for info in infos.values()}
    if endings[".png"] != endings[".tif"] + endings[".tiff"] or size != {(_NAIC_SIDE, _NAIC_SIDE, 1)}:
        return None
    codes = set(count_values(place.root, infos).pixels)
    for number, classes, least in ((1, NAIC2020_ROUND1, 2), (2, NAIC2020_ROUND2, _LEAST_CODES)):
        if len(codes) >= least and codes <= {each.code for each in classes.classes}:
            data = {"kind": "naic2020", "root": place.text, "round": number}
            dataset = load_naic2020(Naic2020Config.model_validate(data))
            why = f"codes {', '.join(map(str, sorted(codes)))} in {counted(len(infos), 'label')}"
            return (*_head("naic2020", place, dataset, "NAIC2020"), Choice("dataset.round", number, why))
    return None
