"""Class lists of published datasets, known by the names of their files and by their codes or colours."""

from __future__ import annotations

import re
from collections.abc import Iterable

from segmenter.grid.labels import Colour

from ..classes import POTSDAM
from .legends import Entry, Legend


def _codes(first: int, names: str) -> tuple[Entry, ...]:
    return tuple(Entry(name.strip(), code) for code, name in enumerate(names.split(","), start=first))


def _colours(**names: str) -> tuple[Entry, ...]:
    return tuple(
        Entry(name.replace("_", " "), None, (int(hexa[:2], 16), int(hexa[2:4], 16), int(hexa[4:], 16)))
        for name, hexa in names.items()
    )


_KNOWN: tuple[tuple[str, str, tuple[Entry, ...]], ...] = (
    (
        "LoveDA",
        r"images_png/.*masks_png/",
        _codes(0, "no-data, background, building, road, water, barren, forest, agriculture"),
    ),
    (
        "OpenEarthMap",
        r"\{folder\}/images/.*\{folder\}/labels/",
        _codes(
            0, "unknown, bareland, rangeland, developed space, road, tree, water, agriculture land, building"
        ),
    ),
    (
        "FLAIR",
        r"IMG_\{name\}.*MSK_\{name\}",
        _codes(
            1,
            "building, pervious surface, impervious surface, bare soil, water, coniferous, deciduous, brushwood, "
            "vineyard, herbaceous vegetation, agricultural land, plowed land, swimming pool, snow, clear cut, "
            "mixed, ligneous, greenhouse, other",
        ),
    ),
    (
        "CamVid",
        r"\{split\}/.*\{split\}annot/",
        _codes(
            0,
            "sky, building, pole, road, pavement, tree, sign, fence, car, pedestrian, bicyclist, unlabelled",
        ),
    ),
    (
        "DeepGlobe",
        "",
        _colours(
            urban_land="00ffff",
            agriculture="ffff00",
            rangeland="ff00ff",
            forest="00ff00",
            water="0000ff",
            barren="ffffff",
            unknown="000000",
        ),
    ),
    (
        "aerial imagery of Dubai",
        "",
        _colours(
            building="3c1098",
            land="8429f6",
            road="6ec1e4",
            vegetation="fedd3a",
            water="e2a929",
            unlabelled="9b9b9b",
        ),
    ),
    ("ISPRS", "", tuple(Entry(each.name, None, each.colour) for each in POTSDAM.classes)),
)
"""Title, regular expression on the two patterns, classes. Sources: the datasets' own descriptions.

Colours tell a dataset by themselves, where most of its list occurs; codes only together with its names.
"""


def known_legend(patterns: str, values: Iterable[int], *, colours: bool) -> Legend:
    """Return the list of a published dataset; an empty one if the files are of none that is known.

    Args:
        patterns: patterns of images and labels, in one text.
        values: codes, or colours as numbers 0xrrggbb.
    """
    wanted = set(values)
    for title, marks, entries in _KNOWN:
        own = {_packed(each.colour) if colours else each.code for each in entries} - {None}
        if colours and not marks and len(own & wanted) >= max(4, len(own) - 2) and len(wanted - own) <= 2:
            return Legend(f"{title}'s list", entries)
        if not colours and marks and len(wanted) > 2 and wanted <= own and re.search(marks, patterns):
            return Legend(f"{title}'s list", entries)
    return Legend()


def _packed(colour: Colour | None) -> int | None:
    return None if colour is None else (colour[0] << 16) | (colour[1] << 8) | colour[2]
