"""Layouts of published datasets that have a loader: Potsdam and NAIC2020, by sight."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from segmenter.base.errors import SegmenterError, counted
from segmenter.config.datasets import Naic2020Config, PotsdamConfig
from segmenter.grid.labels import ClassMap

from ..classes import NAIC2020_ROUND1, NAIC2020_ROUND2, POTSDAM_TEST
from ..naic2020 import load_naic2020
from ..potsdam import load_potsdam
from .choice import Choice
from .found import Place
from .sight import in_hash_order, look_at
from .values import count_values

_LOOKED_AT = 200
_NAIC_SIDE = 256
_LEAST_CODES = 6
"""Codes of round 2 that labels must have, besides no other: 1, 2, 3 may be anybody's."""


def published(place: Place) -> list[Choice] | None:
    """Return the settings of a published dataset; None if the files are of none."""
    if place.is_label is not None:
        return None
    return _potsdam(place) or _naic2020(place)


def _potsdam(place: Place) -> list[Choice] | None:
    """Return Potsdam's settings: RGB before other bands, eroded labels before full ones."""
    readings: list[tuple[PotsdamConfig, int]] = []
    for images in ("RGB", "RGBIR", "IRRG"):
        for labels in ("eroded", "full"):
            data = {"kind": "potsdam", "root": place.text, "images": images, "labels": labels}
            config = PotsdamConfig.model_validate({**data, "split": {}})
            try:
                readings.append((config, len(load_potsdam(config).scenes)))
            except SegmenterError:
                continue
    if not readings:
        return None
    config, scenes = max(readings, key=lambda reading: reading[1])
    sets = [
        f"{other.images} with {other.labels} labels"
        for other, n in readings
        if other is not config and n == scenes
    ]
    names = {scene.name for scene in load_potsdam(config).scenes}
    test = [name for name in POTSDAM_TEST if name in names]
    yields = [
        Choice("dataset.kind", "potsdam", f"{counted(scenes, 'scene')} named as ISPRS Potsdam's"),
        Choice("dataset.root", place.text, f"{counted(len(place.paths), 'file')} below it"),
        Choice("dataset.images", config.images, "the image set of the published scores", "; ".join(sets)),
        Choice(
            "dataset.labels",
            config.labels,
            "noBoundary labels lie there" if config.labels == "eroded" else "full labels lie there",
        ),
        Choice(
            "dataset.classes", 6, "all of Potsdam's classes", "5 without clutter, as many published scores"
        ),
    ]
    if test and len(test) < len(names):
        yields.append(Choice("dataset.split.test", test, f"the published test scenes, {len(test)} of 14"))
    return yields


def _naic2020(place: Place) -> list[Choice] | None:
    """Return NAIC2020's settings for tiles of its size whose labels hold its codes."""
    endings = Counter(PurePosixPath(path).suffix.lower() for path in place.paths)
    if not endings[".png"] or endings[".png"] != endings[".tif"] + endings[".tiff"]:
        return None
    labels = [path for path in in_hash_order(place.paths) if path.lower().endswith(".png")][:_LOOKED_AT]
    infos = {path: sight.info for path in labels if (sight := look_at(place.root, path)).info is not None}
    if not infos or any(info.size.height != _NAIC_SIDE or info.count != 1 for info in infos.values() if info):
        return None
    try:
        values = count_values(place.root, {path: info for path, info in infos.items() if info is not None})
        for number, classes in ((1, NAIC2020_ROUND1), (2, NAIC2020_ROUND2)):
            if _holds(values.pixels, classes, 2 if number == 1 else _LEAST_CODES):
                data = {"kind": "naic2020", "root": place.text, "round": number}
                dataset = load_naic2020(Naic2020Config.model_validate(data))
                return [
                    Choice(
                        "dataset.kind",
                        "naic2020",
                        f"{counted(len(dataset.scenes), 'tile')} named as NAIC2020's",
                    ),
                    Choice("dataset.root", place.text, f"{counted(len(place.paths), 'file')} below it"),
                    Choice(
                        "dataset.round",
                        number,
                        f"codes {', '.join(map(str, values.pixels))} in {values.read} labels",
                    ),
                ]
    except SegmenterError:
        return None
    return None


def _holds(codes: dict[int, int], classes: ClassMap, least: int) -> bool:
    known = {each.code for each in classes.classes}
    return len(codes) >= least and set(codes) <= known
