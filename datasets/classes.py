"""Class maps of the published datasets with colours and codes, and their usual splits.

Sources: ISPRS 2D Semantic Labeling Contest (Potsdam); NAIC2020 remote-sensing track, rounds 1 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from segmenter.base.errors import ConfigError
from segmenter.grid.labels import ClassMap, Colour, LandCoverClass, unpacked

BLACK = (0, 0, 0)


def parse_colour(value: int | str, where: str) -> Colour:
    """Return a colour from a recipe; errors name `where`.

    Raises:
        ConfigError: the value does not have the form '#rrggbb'.
    """
    digits = str(value).removeprefix("#")
    if not isinstance(value, str) or not re.fullmatch(r"[0-9A-Fa-f]{6}", digits):
        raise ConfigError(where, expected="a colour as '#rrggbb', in quotes", got=f"{value!r}")
    return unpacked(int(digits, 16))


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
