"""Classes of a dataset that nobody described: names, colours, and values that count nowhere."""

from __future__ import annotations

import colorsys
import re
from collections.abc import Callable, Sequence
from typing import Any

from segmenter.base.errors import DatasetError, counted
from segmenter.grid.labels import MAX_CLASSES, Colour, own_colour

from .choice import Choice
from .legends import Entry, Legend
from .values import LabelValues, as_colour

_NOWHERE = re.compile(
    r"(no[ _-]?data|no[ _-]?label|void|ignored?|unlabel+ed|unknown|unclassified|undefined|null|none|no[ _-]?value"
    r"|clouds?|cloud[ _-]?shadows?)",
    re.IGNORECASE,
)
"""Names of what counts nowhere."""
_RARE, _STRAY = 0.02, 2e-5
"""Shares below which a value may be ignored, where it lies so or is grey; and below which it is noise."""
_FEW_PIXELS = 2000
_MOSTLY = 0.5
_MOST_NOISE = 64
_SOFT_NEAR, _SOFT_SHARE, _SOFT_VALUES = 16, 0.9, 16

Places = Callable[[int], tuple[float, float]]
"""Value → shares of its pixels where the image is empty, and at the image's border."""


def class_choices(values: LabelValues, legend: Legend, places: Places) -> list[Choice]:
    """Return `dataset.encoding`, `dataset.classes` and `dataset.ignore` for the values of the labels.

    Raises:
        DatasetError: there are more values than classes can be, and most pixels have none of a few.
    """
    yields = [Choice("dataset.encoding", values.encoding, values.why)]
    soft = _soft(values)
    if soft is not None:
        return [*yields, *soft]
    ignored = dict[int, tuple[str, bool]]()
    for value in values.pixels:
        if why := _why_ignored(value, values, legend, places):
            ignored[value] = why
    kept = [value for value in values.pixels if value not in ignored]
    noise = sum(not certain for _, certain in ignored.values())
    if len(kept) > MAX_CLASSES or noise > _MOST_NOISE or not kept:
        raise DatasetError(
            f"labels: expected at most {MAX_CLASSES} values, got {len(values.pixels)} {values.encoding} in "
            f"{counted(values.read, 'file')}, as of pictures that were resampled or saved as JPEG; save "
            "labels with one value for each class"
        )
    yields.append(_classes(kept, values, legend))
    if ignored:
        yields.append(_ignored(ignored, values))
    return yields


def _why_ignored(value: int, values: LabelValues, legend: Legend, places: Places) -> tuple[str, bool] | None:
    """Return why a value counts nowhere, and whether that is certain; None for a class."""
    share, colours = values.share(value), values.encoding == "colours"
    entry = _entry(value, values, legend)
    if entry is not None:
        return ("named " + entry.name, True) if _NOWHERE.fullmatch(entry.name.strip()) else None
    if len(values.pixels) <= 2:
        return None
    if not colours and value < 0:
        return "no code", True
    codes = sorted(values.pixels)
    if not colours and value in (255, 65535) and value == codes[-1] and codes[-2] < value // 2:
        return "the usual value for it", True
    if share < _STRAY and values.pixels[value] < _FEW_PIXELS:
        return "few pixels", False
    if value in (0, 0xFFFFFF):
        empty, border = places(value)
        if empty >= 0.9:
            return f"{empty:.0%} where the image is empty", True
        if share < _RARE and max(empty, border) >= _MOSTLY:
            return f"{max(empty, border):.0%} at borders or where the image is empty", True
    if colours and share < _RARE and _grey(as_colour(value)) and value not in (0, 0xFFFFFF):
        others = [other for other in values.pixels if values.share(other) >= _RARE]
        if others and not any(_grey(as_colour(other)) for other in others):
            return "the only grey, and rare", True
    return None


def _grey(colour: Colour) -> bool:
    return max(colour) - min(colour) <= 8


def _entry(value: int, values: LabelValues, legend: Legend) -> Entry | None:
    return legend.of_code(value) if values.encoding == "codes" else legend.of_colour(as_colour(value))


# ------------------------------------------------------------------------------------------------ choices


def _classes(kept: Sequence[int], values: LabelValues, legend: Legend) -> Choice:
    """Return the classes in the order of their values; of a legend in its own."""
    classes, taken, named = list[dict[str, Any]](), set[str](), 0
    colours: set[Colour] = set()
    for i, value in enumerate(kept):
        entry = _entry(value, values, legend)
        named += entry is not None
        name = entry.name if entry is not None else _made_name(value, kept, values)
        unique = (
            name
            if name not in taken
            else next(f"{name} {n}" for n in range(2, len(kept) + 2) if f"{name} {n}" not in taken)
        )
        taken.add(unique)
        colour = _class_colour(value, i, values, entry, colours)
        colours.add(colour)
        code = {"code": value} if values.encoding == "codes" else {}
        classes.append({"name": unique, **code, "colour": "#{:02x}{:02x}{:02x}".format(*colour)})
    shares = ", ".join(f"{c['name']} {_percent(values.share(v))}" for c, v in zip(classes, kept, strict=True))
    source = f", names of {legend.file}" if named else ""
    other = (
        ""
        if named == len(kept)
        else (
            f"the names of {counted(len(kept) - named, 'class', 'classes')} are made up: no list of them lies beside the labels"
        )
    )
    return Choice("dataset.classes", classes, f"{shares} of {counted(values.total, 'pixel')}{source}", other)


def _class_colour(
    value: int, place: int, values: LabelValues, entry: Entry | None, taken: set[Colour]
) -> Colour:
    if values.encoding == "colours":
        return as_colour(value)
    own = [entry.colour if entry is not None else None, values.palette.get(value)]
    tries = [colour for colour in own if colour is not None and colour not in taken]
    return tries[0] if tries else next(c for n in range(place, 999) if (c := own_colour(n)) not in taken)


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{share:.1g}"


def _made_name(value: int, kept: Sequence[int], values: LabelValues) -> str:
    """Return a name for a value that nobody named."""
    if len(kept) == 2 and kept[0] == 0:
        return "background" if value == 0 else "foreground"
    return f"class {value}" if values.encoding == "codes" else colour_name(as_colour(value))


def colour_name(colour: Colour) -> str:
    """Return a word for a colour, as `dark green`."""
    hue, saturation, light = colorsys.rgb_to_hsv(*(part / 255 for part in colour))
    if light < 0.1:
        return "black"
    if saturation < 0.12:
        return "white" if light > 0.9 else "grey"
    hues = (
        "red",
        "orange",
        "yellow",
        "green",
        "green",
        "cyan",
        "cyan",
        "blue",
        "blue",
        "purple",
        "pink",
        "red",
    )
    word = hues[int(hue * 12 + 0.5) % 12]
    return f"dark {word}" if light < 0.6 else f"light {word}" if saturation < 0.4 else word


def _ignored(ignored: dict[int, tuple[str, bool]], values: LabelValues) -> Choice:
    def shown(value: int) -> str:
        return f"#{value:06x}" if values.encoding == "colours" else str(value)

    groups: dict[str, list[int]] = {}
    for value, (why, _) in ignored.items():
        groups.setdefault(why, []).append(value)
    texts = []
    for why, members in groups.items():
        pixels = sum(values.pixels[v] for v in members)
        which = shown(members[0]) if len(members) == 1 else f"{len(members)} values"
        texts.append(f"{which}: {counted(pixels, 'pixel')} ({_percent(pixels / values.total)}), {why}")
    listed = [shown(v) if values.encoding == "colours" else v for v in ignored]
    unnamed = [why for why in groups if not why.startswith("named ")]
    other = "they may be classes of their own" if unnamed else ""
    return Choice("dataset.ignore", listed, "; ".join(texts), other)


# ---------------------------------------------------------------------------------------------- grey masks


def _soft(values: LabelValues) -> list[Choice] | None:
    """Return two classes of grey masks with soft edges; None for other labels.

    Such masks hold many values, nearly all close to one of two.
    """
    if values.encoding != "codes" or len(values.pixels) <= _SOFT_VALUES or max(values.pixels) > 255:
        return None
    ranked = sorted(values.pixels, key=lambda value: -values.pixels[value])
    first = ranked[0]
    second = next((value for value in ranked if abs(value - first) > 64), None)
    if second is None:
        return None
    near = sum(n for v, n in values.pixels.items() if min(abs(v - first), abs(v - second)) <= _SOFT_NEAR)
    if near < _SOFT_SHARE * values.total:
        return None
    low, high = sorted((first, second))
    middle = (low + high) // 2
    between = sum(
        pixels for value, pixels in values.pixels.items() if low + _SOFT_NEAR < value < high - _SOFT_NEAR
    )
    classes = [
        {"name": "background", "code": low, "also": _ranges(0, middle, low), "colour": "#8c8c8c"},
        {"name": "foreground", "code": high, "also": _ranges(middle + 1, 255, high), "colour": "#d62728"},
    ]
    return [
        Choice(
            "dataset.classes",
            classes,
            f"a grey mask of {len(values.pixels)} values, {_percent(values.share(low))} are {low}, "
            f"{_percent(values.share(high))} {high}; cut at {middle}, {_percent(between / values.total)} lie between",
            "the names are made up: a grey mask has none",
        )
    ]


def _ranges(first: int, last: int, code: int) -> list[str]:
    """Return codes from the first to the last but one, as ranges."""
    ends = [(first, code - 1), (code + 1, last)]
    return [f"{low}-{high}" for low, high in ends if low <= high]
