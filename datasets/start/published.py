"""Layouts of published datasets that have a loader: Potsdam and NAIC2020, by sight."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import PurePosixPath

from segmenter.base.errors import SegmenterError, counted
from segmenter.config.datasets import Naic2020Config, PotsdamConfig
from segmenter.grid.scenes import Dataset

from ..classes import NAIC2020_ROUND1, NAIC2020_ROUND2
from ..naic2020 import load_naic2020
from ..potsdam import load_potsdam
from .choice import Choice
from .sight import Place, in_hash_order, look_at
from .values import count_values

_LOOKED_AT, _NAIC_SIDE, _LEAST_CODES = 200, 256, 6
"""Labels that are read; side of NAIC2020's tiles; codes of round 2 that labels must have, and no other."""


def published(place: Place) -> tuple[Choice, ...]:
    """Return the settings of a published dataset; empty if files are of none, or the user named labels."""
    with suppress(SegmenterError):
        return () if place.labels is not None else _potsdam(place) or _naic2020(place)
    return ()


def _head(kind: str, place: Place, dataset: Dataset, title: str) -> tuple[Choice, Choice]:
    why = f"{counted(len(dataset.scenes), 'scene')} named as those of {title}"
    root = Choice("dataset.root", place.text, f"{counted(len(place.paths), 'file')} below it")
    return Choice("dataset.kind", kind, why), root


def _potsdam(place: Place) -> tuple[Choice, ...]:
    """Return Potsdam's settings: RGB before other bands, eroded labels before full; the split is standard."""
    readings: dict[tuple[str, str], Dataset] = {}
    for images, labels in product(("RGB", "RGBIR", "IRRG"), ("eroded", "full")):
        data = {"kind": "potsdam", "root": place.text, "images": images, "labels": labels, "split": {}}
        with suppress(SegmenterError):
            readings[images, labels] = load_potsdam(PotsdamConfig.model_validate(data))
    if not readings:
        return ()
    best = max(readings, key=lambda each: len(readings[each].scenes))
    bands, kinds = (", ".join(sorted({each[i] for each in readings} - {best[i]})) for i in (0, 1))
    usual = "5, without clutter, as many published scores"
    return (
        *_head("potsdam", place, readings[best], "ISPRS Potsdam"),
        Choice("dataset.images", best[0], "RGB before other bands", bands),
        Choice("dataset.labels", best[1], "eroded: the noBoundary set", kinds),
        Choice("dataset.classes", 6, "all of Potsdam's classes", usual),
    )


def _naic2020(place: Place) -> tuple[Choice, ...]:
    """Return NAIC2020's settings for tiles of its size whose labels hold its codes."""
    endings = Counter(PurePosixPath(path).suffix.lower() for path in place.paths)
    labels = [path for path in in_hash_order(place.paths) if path.lower().endswith(".png")][:_LOOKED_AT]
    infos = {path: info for path in labels if (info := look_at(place.root, path).info)}
    size = {(info.size.height, info.size.width, info.count) for info in infos.values()}
    if endings[".png"] != endings[".tif"] + endings[".tiff"] or size != {(_NAIC_SIDE, _NAIC_SIDE, 1)}:
        return ()
    codes = set(count_values(place.root, infos).pixels)
    for number, classes, least in ((1, NAIC2020_ROUND1, 2), (2, NAIC2020_ROUND2, _LEAST_CODES)):
        if len(codes) >= least and codes <= {each.code for each in classes.classes}:
            data = {"kind": "naic2020", "root": place.text, "round": number}
            dataset = load_naic2020(Naic2020Config.model_validate(data))
            why = f"codes {', '.join(map(str, sorted(codes)))} in {counted(len(infos), 'label')}"
            return (*_head("naic2020", place, dataset, "NAIC2020"), Choice("dataset.round", number, why))
    return ()
