"""Classes of labels that nobody described: of values, of masks, and of attributes of polygons."""

from __future__ import annotations

import colorsys
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError, counted
from segmenter.base.threads import in_threads
from segmenter.config.datasets import IGNORE_WORD
from segmenter.evaluation.drawing import hex_colour
from segmenter.grid.labels import MAX_CLASSES, own_colour, unpacked
from segmenter.grid.scenes import Scene
from segmenter.pages.parts import percent
from segmenter.raster.masks import UNLABELLED, Masks

from ..files import few
from ..leaks import in_turn
from ..made import polygon_packages
from .choice import Choice
from .legends import Entry, Legend
from .names import Patterns
from .values import LabelValues

_RARE, _MOSTLY, _SURELY = 0.02, 0.5, 0.9
"""Share below which 0, black or white is ignored if it lies mostly at borders or outside the image; and the
share there from which it is whatever its pixels are."""
_STRAY, _FEW_PIXELS, _MOST_STRAYS = 2e-5, 2000, 32
"""Share and pixels below which a value is noise, and the values that may be."""
_LEAST_MIXED = 4
"""Rare colours between two common ones from which labels are blurred, if no fewer than the common ones."""
_SOFT_VALUES, _SOFT_NEAR, _SOFT_APART, _SOFT_SHARE = 16, 16, 64, 0.9
"""Grey masks: least values (2 in JPEGs), distance to one of two so far apart, share of pixels so near."""
_HUES = "red orange yellow green green cyan cyan blue blue purple pink red"

_USUAL = re.compile(r"[ck]las|[ck]ateg|typ|kind|label|land_?(use|cover)|name|cod|dlbm", re.IGNORECASE)
_NUMBERED = re.compile(r"id|dn|val(ue)?|l[cu]|lulc", re.IGNORECASE)
"""Names of attributes of classes, and further ones whose numbers may be classes."""
_NUMBER, _YES, _NO = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?"), {"yes", "true"}, {"no", "false"}
_BACKGROUND = "background"
_MOST = 0.9
"""Share of the polygons that a usual attribute has a value for, to go before others."""

_MOST_DRAWN, _EVERYWHERE = 200_000, (-1e15, -1e15, 1e15, 1e15)
"""Polygons up to which their areas are compared, and the box that holds them."""

Places = Callable[[int], tuple[float, float]]
"""Value → shares of its pixels where the image is empty, and at the image's border."""


def class_choices(values: LabelValues, legend: Legend, places: Places) -> Iterator[Choice]:
    """Yield `dataset.encoding`, `dataset.classes` and `dataset.ignore` for the values of the labels.

    Raises:
        DatasetError: there are more values than classes can be, or only one.
    """
    yield Choice("dataset.encoding", values.encoding, values.why)
    if (soft := _soft(values)) is not None:
        yield soft
        return
    entries = legend.by_value(colours=values.encoding == "colours")
    looked_at = list(values.pixels)[: MAX_CLASSES + _MOST_STRAYS + 1]  # more are refused, whatever they are
    whys = {value: _why_ignored(value, values, entries.get(value), places) for value in looked_at}
    ignored = {value: why for value, why in whys.items() if why}
    codes = [value for value in looked_at if value not in ignored]
    mixed = _mixtures(values, [value for value in codes if value not in entries])
    blurred = mixed >= (_LEAST_MIXED if values.lossy else max(_LEAST_MIXED, len(values.common(_RARE))))
    if not codes or len(codes) > MAX_CLASSES or len(ignored) > _MOST_STRAYS or blurred:
        raise DatasetError(
            "labels",
            expected="a value for each class",
            got=f"{len(values.pixels)} {values.encoding} in {counted(values.read, 'file')}, as after "
            "resampling or in JPEGs",
            remedy="save labels without loss",
        )
    _refuse_one(codes)
    yield _classes(codes, values, entries, legend.file)
    if ignored:
        yield _ignored(ignored, values)


def _refuse_one(classes: Sequence[object]) -> None:
    if len(classes) < 2:
        got = f"{classes[0]} alone"
        raise DatasetError("labels", expected="two classes or more", got=got, remedy="--labels names others")


def _why_ignored(value: int, values: LabelValues, entry: Entry | None, places: Places) -> str:
    """Return why a value counts nowhere; empty for a class."""
    share, colours, others = values.share(value), values.encoding == "colours", values.pixels.keys() - {value}
    if entry is not None:
        return f"named {entry.name}" if entry.nowhere else ""
    if not colours and not 0 <= value < 0xFFFF:
        return "no code of a class"
    if len(others) < 2:
        return ""
    if not colours and value == 255 and max(others) < value // 2:
        return "the usual value for it"
    if share < _STRAY and values.pixels[value] < _FEW_PIXELS:
        return "few pixels"
    if value in (0, 0xFFFFFF):
        empty, border = places(value)
        if empty >= _SURELY or (share < _RARE and max(empty, border) >= _MOSTLY):
            return f"{max(empty, border):.0%} at borders or where the image is empty"
    return ""


def _mixtures(values: LabelValues, codes: Sequence[int]) -> int:
    """Return the number of values that no one meant.

    Of colours the rare ones that lie between two common ones, as edges do after resampling; of codes in
    JPEGs those beside a commoner one.
    """
    if values.encoding != "colours":
        beside = (max(values.pixels.get(v - 1, 0), values.pixels.get(v + 1, 0)) for v in codes)
        return sum(n > values.pixels[v] for v, n in zip(codes, beside, strict=True)) if values.lossy else 0
    common = np.array([unpacked(value) for value in values.common(_RARE)])
    if len(common) < 2:
        return 0
    one, other = (common[side] for side in np.triu_indices(len(common), 1))
    along = other - one
    mixed = 0
    for value in codes:
        apart = np.array(unpacked(value)) - one
        part = (apart * along).sum(1) / (along**2).sum(1)
        distance = np.abs(apart - part[:, None] * along).max(1)
        mixed += values.share(value) < _RARE and bool(((distance <= 8) & (part > 0) & (part < 1)).any())
    return mixed


# ------------------------------------------------------------------------------------------------ choices


def _classes(
    codes: Sequence[int], values: LabelValues, entries: Mapping[int | None, Entry], file: str
) -> Choice:
    """Return the classes in the order of their values."""
    classes = list[dict[str, Any]]()
    names, colours = set[str](), set[str]()
    for i, value in enumerate(codes):
        entry = entries.get(value) or Entry(_made_name(value, codes, values))
        tries = (entry.name, *(f"{entry.name} {n}" for n in range(2, len(codes) + 2)))
        names.add(name := next(each for each in tries if each not in names))
        coded = values.encoding == "codes"
        own = [f"#{each:06x}" for each in (entry.colour, values.palette.get(value)) if each is not None]
        shown = (
            *(own if coded else [f"#{value:06x}"]),
            *map(hex_colour, map(own_colour, range(i, i + 1000))),
        )
        colours.add(colour := next(each for each in shown if each not in colours))
        classes.append({"name": name, **({"code": value} if coded else {}), "colour": colour})
    shares = ", ".join(f"{c['name']} {percent(values.share(v))}" for c, v in zip(classes, codes, strict=True))
    unnamed = sum(value not in entries for value in codes)
    source = f"; names of {file}" if unnamed < len(codes) else ""
    lacks = f"not in {file}" if source else "no list of classes lies there"
    made_up = f"{counted(unnamed, 'name is', 'names are')} made up: {lacks}"
    reason = f"{shares} of {counted(values.total, 'pixel')}{source}"
    return Choice("dataset.classes", classes, reason, made_up if unnamed else "")


def _made_name(value: int, codes: Sequence[int], values: LabelValues) -> str:
    """Return a name for a value that nobody named."""
    if values.encoding == "codes":
        two = len(codes) == 2 and codes[0] == 0
        return ("foreground" if value else "background") if two else f"class {value}"
    hue, saturation, light = colorsys.rgb_to_hsv(*(part / 255 for part in unpacked(value)))
    if light < 0.1 or saturation < 0.12:
        return "black" if light < 0.1 else "white" if light > 0.9 else "grey"
    word = _HUES.split()[int(hue * 12 + 0.5) % 12]
    return f"dark {word}" if light < 0.6 else f"light {word}" if saturation < 0.4 else word


def _ignored(ignored: dict[int, str], values: LabelValues) -> Choice:
    shown = {v: f"#{v:06x}" if values.encoding == "colours" else v for v in ignored}
    texts = []
    for why in dict.fromkeys(ignored.values()):
        members = [value for value in ignored if ignored[value] == why]
        pixels = sum(values.pixels[value] for value in members)
        which = shown[members[0]] if len(members) == 1 else f"{len(members)} values"
        texts.append(f"{which}: {counted(pixels, 'pixel')} ({percent(pixels / values.total)}), {why}")
    sure = all(why.startswith("named ") for why in ignored.values())
    other = "" if sure else "classes of their own"
    return Choice("dataset.ignore", list(shown.values()), "; ".join(texts), other)


def _soft(values: LabelValues) -> Choice | None:
    """Return two classes of grey masks with soft edges, whose values lie near one of two; None for others."""
    pixels = values.pixels
    least = 2 if values.lossy else _SOFT_VALUES
    if values.encoding != "codes" or len(pixels) <= least or max(pixels) > 255 or min(pixels) < 0:
        return None
    first = max(pixels, key=lambda value: pixels[value])
    far = [value for value in pixels if abs(value - first) > _SOFT_APART]
    low, high = sorted((first, max(far, key=lambda value: pixels[value], default=first)))
    near = sum(n for value, n in pixels.items() if min(abs(value - low), abs(value - high)) <= _SOFT_NEAR)
    if low == high or near < _SOFT_SHARE * values.total:
        return None
    cut = (low + high) // 2
    ranges = [
        [f"{a}-{b}" for a, b in ((start, code - 1), (code + 1, end)) if a <= b]
        for start, code, end in ((0, low, cut), (cut + 1, high, 255))
    ]
    classes = [
        {"name": "background", "code": low, "also": ranges[0], "colour": "#8c8c8c"},
        {"name": "foreground", "code": high, "also": ranges[1], "colour": "#d62728"},
    ]
    shares = f"{percent(values.share(low))} are {low}, {percent(values.share(high))} {high}"
    between = f"{percent(1 - near / values.total)} lie between"
    why = f"a grey mask of {len(pixels)} values: {shares}; cut at {cut}, {between}"
    return Choice("dataset.classes", classes, why, "2 names are made up: a grey mask has none")


# --------------------------------------------------------------------------------------- masks and polygons


def mask_choices(facts: Patterns, scenes: Sequence[Scene], drivers: Sequence[str]) -> Iterator[Choice]:
    """Yield `dataset.encoding` and `dataset.classes` for masks; reads them whole, with a bar.

    Raises:
        SegmenterError: a file is no mask, or there is one class alone.
    """
    names = ["none" if "background" in facts.masks else "background", *facts.masks]

    def count(scene: Scene) -> NDArray[np.int64]:
        assert scene.label is not None, "the loader pairs them"
        with Masks(scene.masks or ((0, scene.label),), drivers) as masks, in_turn(masks.info.size):
            strips = (codes[codes < UNLABELLED] for _, codes in masks.strips())
            own = [np.bincount(codes, minlength=len(names)) for codes in strips]
            return np.append(np.sum(own, axis=0), masks.several)

    counts = in_threads(count, scenes, description="values of labels", unit="file")
    *pixels, several = np.sum(list(counts), axis=0).tolist()
    there = [(code, name) for code, name in enumerate(names) if pixels[code]]
    _refuse_one([name for _, name in there])
    why = f"{counted(len(facts.masks), 'mask')} a scene, each of 0 and one other value"
    lacking = sum(len(facts.masks) - len(scene.masks) for scene in scenes if scene.masks)
    why += f"; {lacking} of all lack: no such class" if lacking else ""
    yield Choice("dataset.encoding", "masks", why)
    why = ", ".join(f"{name} {percent(pixels[code] / sum(pixels))}" for code, name in there)
    why += f" of {counted(sum(pixels), 'pixel')}"
    why += f"; {percent(several / sum(pixels))} in several masks: the last class counts" if several else ""
    classes = [{"name": name, "code": code, "colour": hex_colour(own_colour(code))} for code, name in there]
    made_up = "names are made up: bands have none" if facts.masks[0] == "class 1" else ""
    yield Choice("dataset.classes", classes, why, made_up)


def polygon_choices(root: Path, files: Sequence[str]) -> Iterator[Choice]:
    """Yield the attribute of the classes, if any, the classes, and what lies outside, as empty files tell.

    Raises:
        DatasetError: a file cannot be read, none has a polygon, or the extra `vectors` is missing.
    """
    with polygon_packages():
        from segmenter.extras.vectors.features import VectorFile
        from segmenter.extras.vectors.rule import as_text
    columns, counts = dict[str, list[list[str]]](), list[int]()
    for file in Bar(files, desc="polygons", unit="file"):
        vectors = VectorFile(root / file, None)
        counts.append(vectors.count)
        for name, own in vectors.attributes().items():
            columns.setdefault(name, []).append(list(filter(None, map(as_text, own.tolist()))))
    if not sum(counts):
        raise DatasetError(root, expected="polygons", got=f"none in {few(files)}", remedy="add some")
    fitting = {name: fit for name, each in columns.items() if (fit := _as_classes(name, each))}
    sparse = {name for name, fit in fitting.items() if fit.total() < _MOST * sum(counts)}
    unusual = sparse | {name for name in fitting if not _USUAL.search(name)}
    numbers = {name for name, fit in fitting.items() if all(map(_NUMBER.fullmatch, fit))}
    later = unusual, sparse, {name for name, fit in fitting.items() if len(fit) == 1}, numbers
    order = sorted(fitting, key=lambda name: (*(name in each for each in later), name))
    attribute, values = (order[0], fitting[order[0]]) if order else (None, Counter(foreground=sum(counts)))
    shown = ", ".join(f"{value} {n:,}" for value, n in values.most_common(8))
    others = f"attribute {few(rest, 3)}" if (rest := order[1:] if order else list(columns)) else ""
    yield Choice("dataset.vector.attribute", attribute, f"{counted(sum(counts), 'polygon')}: {shown}", others)
    nowhere = [name for name in sorted(values) if Entry(name).nowhere]
    names = sorted(values.keys() - set(nowhere)) or nowhere
    meant, alone, empty = dict.fromkeys(nowhere, IGNORE_WORD), len(names) == 1, counts.count(0)
    if not alone and sum(counts) <= _MOST_DRAWN:
        areas: dict[str, list[float]] = {name: [] for name in names}
        for drawn in (VectorFile(root / file, attribute).within(_EVERYWHERE) for file in files):
            for value, shape in zip(map(as_text, drawn.value_F.tolist()), drawn.shape_F, strict=True):
                areas.get(value or "", []).append(0.0 if shape is None else shape.area)
        above = sorted(names, key=lambda name: (float(np.median(areas[name])), name))
        yield Choice("dataset.vector.order", above, "where polygons overlap, the smaller lie above")
    if attribute and alone:
        meant[names[0]] = _named(names[0], attribute)
        names = [meant[names[0]]]
    if meant:
        why = f"named {few(nowhere)}" if nowhere else "the only value"
        yield Choice("dataset.vector.values", meant, why)
    other = "pixels outside all polygons are ignored; they may be a class: vector.outside"
    if alone or empty:
        why = f"{counted(empty, 'file')} without a polygon" if empty else "polygons of one class"
        yield Choice("dataset.vector.outside", _BACKGROUND, f"{why}: all else is none of it")
        names = [_BACKGROUND, *(name for name in names if name != _BACKGROUND)]
        other = "" if attribute else "no attribute tells classes: the name of the only one is made up"
    classes = [{"name": name, "colour": hex_colour(own_colour(i))} for i, name in enumerate(names)]
    yield Choice("dataset.classes", classes, f"{attribute or 'all'} of {counted(len(files), 'file')}", other)


def _named(value: str, attribute: str) -> str:
    """Return a name of a class whose value may be no word, as `1` or `yes`."""
    return value if len(value) > 3 and re.search(r"[^\W\d]", value) else attribute


def _as_classes(name: str, files: Sequence[Sequence[str]]) -> Counter[str]:
    """Return an attribute's values if they are classes: no number or name of a polygon or file, no flag."""
    files = [values for values in files if values]
    values, usual = Counter(chain.from_iterable(files)), _USUAL.search(name) is not None
    total, different, words = values.total(), sum(len(set(each)) for each in files), {*map(str.lower, values)}
    numbers = not usual and all(_NUMBER.fullmatch(value) for value in values)
    running = different == total and (numbers or total > 3 * len(files))  # in a file
    of_file = different == len(files) < 2 * len(values) and len(files) > 1
    few_recur = 2 * len(values) <= total and len(values) < MAX_CLASSES and not (running or of_file)
    telling = usual or (_NUMBERED.fullmatch(name) is not None if numbers else not words <= _YES | _NO)
    fits = few_recur and telling if len(values) > 1 else usual or words <= _YES
    return values if fits else Counter()
