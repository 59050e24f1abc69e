"""Published datasets by sight: those that have a loader, Potsdam and NAIC2020, and class lists of others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import PurePosixPath

from segmenter.base.errors import SegmenterError, counted
from segmenter.config.datasets import Naic2020Config, PotsdamConfig
from segmenter.config.layouts import POTSDAM_IMAGE
from segmenter.grid.scenes import Dataset

from ..files import in_hash_order
from ..published import NAIC2020_ROUND1, NAIC2020_ROUND2, POTSDAM, load_naic2020, load_potsdam
from .choice import Choice
from .legends import Legend, legend_of
from .sight import DataPlace
from .values import count_values

_LOOKED_AT, _NAIC_SIDE, _LEAST_CODES = 200, 256, 6
"""Labels that are read; side of NAIC2020's tiles; codes of round 2 that labels must have, and no other."""

_CODES = {
    "LoveDA": (
        r"images_png/.*masks_png/",
        "0 no-data, 1 background, 2 building, 3 road, 4 water, 5 barren, 6 forest, 7 agriculture",
    ),
    "OpenEarthMap": (
        r"\{folder\w*\}/images/.*\{folder\w*\}/labels/",
        "0 unknown, 1 bareland, 2 rangeland, 3 developed space, 4 road, 5 tree, 6 water, 7 agriculture land, "
        "8 building",
    ),
    "FLAIR": (
        r"IMG_.*MSK_",
        "1 building, 2 pervious surface, 3 impervious surface, 4 bare soil, 5 water, 6 coniferous, "
        "7 deciduous, 8 brushwood, 9 vineyard, 10 herbaceous vegetation, 11 agricultural land, "
        "12 plowed land, 13 swimming pool, 14 snow, 15 clear cut, 16 mixed, 17 ligneous, 18 greenhouse, "
        "19 other",
    ),
    "CamVid": (
        r"\{split\}annot/",
        "0 sky, 1 building, 2 pole, 3 road, 4 pavement, 5 tree, 6 sign, 7 fence, 8 car, 9 pedestrian, "
        "10 bicyclist, 11 unlabelled",
    ),
}
"""Title: regular expression on both patterns, and classes. Source: the datasets' own descriptions."""
_ANYONES = {"OpenEarthMap"}
"""Lists of datasets whose folders anyone might have: they are asked, also where all codes are there."""
_COLOURS = {
    "DeepGlobe": "#00ffff urban land, #ffff00 agriculture, #ff00ff rangeland, #00ff00 forest, #0000ff water, "
    "#ffffff barren, #000000 unknown",
    "Dubai": "#3c1098 building, #8429f6 land, #6ec1e4 road, #fedd3a vegetation, #e2a929 water, "
    "#9b9b9b unlabelled",
    "GID": "#ff0000 built-up, #00ff00 farmland, #00ffff forest, #ffff00 meadow, #0000ff water, "
    "#000000 background",
    "ISPRS": "#000000 unlabelled, "
    + ", ".join("#{:02x}{:02x}{:02x} ".format(*each.colour) + each.name for each in POTSDAM.classes),
}
_MOST_OTHERS = 2
"""Values of labels that a list of colours may lack, and classes of it that labels may; fewer, of both, where
all are pure (red, yellow, white, …), as anyone takes those."""


def published_settings(place: DataPlace) -> tuple[Choice, ...]:
    """Return a published dataset's settings, but its root; empty if it is none, or the user named labels."""
    with suppress(SegmenterError):
        return () if place.labels is not None else _potsdam(place) or _naic2020(place)
    return ()


def _kind(kind: str, dataset: Dataset, title: str) -> Choice:
    return Choice("dataset.kind", kind, f"{counted(len(dataset.scenes), 'scene')} named as those of {title}")


def _potsdam(place: DataPlace) -> tuple[Choice, ...]:
    """Return Potsdam's settings: RGB before other bands, eroded labels before full; the split is standard."""
    readings: dict[tuple[str, str], Dataset] = {}
    if not any(POTSDAM_IMAGE.fullmatch(path.rpartition("/")[2]) for path in place.paths):
        return ()
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
        _kind("potsdam", readings[best], "ISPRS Potsdam"),
        Choice("dataset.images", best[0], "RGB before other bands", bands),
        Choice("dataset.labels", best[1], "eroded: the noBoundary set", kinds),
        Choice("dataset.classes", 6, "all of Potsdam's classes", usual),
    )


def _naic2020(place: DataPlace) -> tuple[Choice, ...]:
    """Return NAIC2020's settings for tiles of its size whose labels hold its codes."""
    endings = Counter(PurePosixPath(path).suffix.lower() for path in place.paths)
    labels = [path for path in in_hash_order(place.paths) if path.lower().endswith(".png")][:_LOOKED_AT]
    infos = {place.stored[path]: info for path in labels if (info := place.sight(path).info)}
    size = {(info.size.height, info.size.width, info.count) for info in infos.values()}
    if endings[".png"] != endings[".tif"] + endings[".tiff"] or size != {(_NAIC_SIDE, _NAIC_SIDE, 1)}:
        return ()
    codes = set(count_values(place.root, infos).pixels)
    for number, classes, least in ((1, NAIC2020_ROUND1, 2), (2, NAIC2020_ROUND2, _LEAST_CODES)):
        if len(codes) >= least and codes <= {each.code for each in classes.classes}:
            data = {"kind": "naic2020", "root": place.text, "round": number}
            dataset = load_naic2020(Naic2020Config.model_validate(data))
            why = f"codes {', '.join(map(str, sorted(codes)))} in {counted(len(infos), 'label')}"
            return _kind("naic2020", dataset, "NAIC2020"), Choice("dataset.round", number, why)
    return ()


# --------------------------------------------------------------------------------------------- class lists


def published_legend(patterns: str, values: Iterable[int], *, colours: bool) -> Legend:
    """Return the nearest list of a published dataset; an empty one if the files are of none that is known.

    Colours tell a dataset by themselves, the fewest that the list lacks first; codes only with its names, two
    thirds of them at least, and with a doubt unless all are there.

    Args:
        patterns: patterns of images and labels, in one text.
        values: codes, or colours as numbers 0xrrggbb.
    """
    wanted, near = set(values), list[tuple[int, int, Legend]]()
    lists = {title: ("", text) for title, text in _COLOURS.items()} if colours else _CODES
    for title, (marks, text) in lists.items():
        legend = legend_of(f"{title}'s list", text.replace(", ", "\n"))
        own = legend.by_value(colours=colours)
        lacking = len(wanted - own.keys())
        more = sum(not each.nowhere for value, each in own.items() if value not in wanted)
        if colours:
            fits = max(lacking, more) <= _MOST_OTHERS
        else:
            fits = not lacking and 3 * len(wanted) >= 2 * len(own) and bool(re.search(marks, patterns))
            if more or title in _ANYONES:
                doubt = f"names of files and codes are as {title}'s: are these its classes?"
                legend = replace(legend, doubt=doubt)
        if fits:
            near.append((lacking, more, legend))
    near.sort(key=lambda each: each[:2])
    pure = colours and all(byte in (0, 255) for each in wanted for byte in each.to_bytes(3))
    if near and pure and sum(near[0][:2]) >= _MOST_OTHERS:
        return Legend()
    files = [each[2].file for each in near if each[:2] == near[0][:2]]  # too few colours to tell
    return replace(near[0][2], file=" or ".join(files)) if near else Legend()
