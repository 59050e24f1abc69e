"""Class lists of published datasets, known by the names of their files and by their codes or colours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ..classes import POTSDAM
from .legends import Legend, legend_of

_CODES = {
    "LoveDA": (
        r"images_png/.*masks_png/",
        "0 no-data, 1 background, 2 building, 3 road, 4 water, 5 barren, 6 forest, 7 agriculture",
    ),
    "OpenEarthMap": (
        r"\{folder\}/images/.*\{folder\}/labels/",
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
_COLOURS = {
    "DeepGlobe": "#00ffff urban land, #ffff00 agriculture, #ff00ff rangeland, #00ff00 forest, #0000ff water, "
    "#ffffff barren, #000000 unknown",
    "Dubai": "#3c1098 building, #8429f6 land, #6ec1e4 road, #fedd3a vegetation, #e2a929 water, "
    "#9b9b9b unlabelled",
    "ISPRS": ", ".join("#{:02x}{:02x}{:02x} ".format(*each.colour) + each.name for each in POTSDAM.classes),
}
_MOST_OTHERS = 2
"""Values of labels that a list of colours may lack, and colours of it that labels may."""


def published_legend(patterns: str, values: Iterable[int], *, colours: bool) -> Legend:
    """Return the nearest list of a published dataset; an empty one if the files are of none that is known.

    Colours tell a dataset by themselves, the fewest that the list lacks first; codes only with its names.

    Args:
        patterns: patterns of images and labels, in one text.
        values: codes, or colours as numbers 0xrrggbb.
    """
    wanted, near = set(values), list[tuple[int, int, Legend]]()
    lists = {title: ("", text) for title, text in _COLOURS.items()} if colours else _CODES
    for title, (marks, text) in lists.items():
        legend = legend_of(f"{title}'s list", text.replace(", ", "\n"))
        own = legend.by_value(colours=colours).keys()
        lacking, more = len(wanted - own), len(own - wanted)
        fits = max(lacking, more) <= _MOST_OTHERS
        if fits if colours else 2 < len(wanted) == len(wanted & own) and re.search(marks, patterns):
            near.append((lacking, more, legend))
    near.sort(key=lambda each: each[:2])
    files = [legend.file for lacking, _, legend in near if lacking == near[0][0]]  # too few colours to tell
    return replace(near[0][2], file=" or ".join(files)) if near else Legend()
