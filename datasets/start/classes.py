"""Classes of labels that nobody described: of values, and of masks."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, RasterError, counted
from segmenter.base.threads import in_threads
from segmenter.evaluation.drawing import hex_colour
from segmenter.grid.colours import default_colours
from segmenter.grid.labels import MAX_CLASSES, Colour, unpack_colour
from segmenter.grid.scenes import Scene
from segmenter.pages.parts import percent
from segmenter.raster.masks import UNLABELLED, Masks

from ..contents import in_turn
from .choice import Choice
from .legends import Legend, LegendClass
from .names import Patterns
from .pixels import are_bits
from .values import LabelValues, Whereabouts

_RARE, _MOSTLY, _SURELY = 0.02, 0.5, 0.9
"""Share below which 0, black or white is ignored if it lies mostly at borders or outside the image; and the
share there from which it is whatever its pixels are."""
SPARSE = 0.5
"""Share of a label's pixels above which its nodata means no label."""
_LARGE = 0.1
"""Share of the pixels from which it is asked whether 0 is a class."""
_STRAY, _FEW_PIXELS, _MOST_STRAYS = 2e-5, 2000, 32
"""Share and pixels below which a value is noise, and the values that may be."""
_LEAST_MIXED = 4
"""Rare colours between two common ones from which labels are blurred, if no fewer than the common ones."""
_SOFT_VALUES, _SOFT_NEAR, _SOFT_APART, _SOFT_SHARE = 16, 16, 64, 0.9
"""Grey masks: least values (2 in JPEGs), distance to one of two so far apart, share of pixels so near."""
_HUES = "red orange yellow green green cyan cyan blue blue purple pink red"

_BACKGROUND = "background"

Places = Callable[[int], Whereabouts]
"""Value → where its pixels lie."""


_MOST_BLURRED = 4096
"""Values from which labels look like images: resampling makes fewer."""
_NAMED = "named "
"""Reason for which a list, and nothing else, says that a value counts nowhere."""
_NO_VALUES = {0xFFFF, *((1 << bits) - 1 for bits in (31, 32, 63, 64))}
"""Largest values of types, which mean no data."""
_SWAPPED = (
    "if these are images, labels and images are swapped: segmenter start IMAGES --labels LABELS; else save "
    "labels without loss"
)


def class_choices(values: LabelValues, legend: Legend, places: Places) -> Iterator[Choice]:
    """Yield `dataset.encoding`, `dataset.classes` and `dataset.ignore` for the values of the labels.

    Raises:
        DatasetError: there are more values than classes can be, or only one.
    """
    yield Choice("dataset.encoding", values.encoding, values.why)
    if (soft := _antialiased_codes(values)) is not None:
        yield soft
        return
    _refuse_large(values)
    coloured = values.encoding == "colours"
    entries = legend.by_value(colours=coloured)
    looked_at = list(values.pixels)[: MAX_CLASSES + _MOST_STRAYS + 1]  # more are refused, whatever they are
    whys = {value: _why_ignored(value, values, entries.get(value), places) for value in looked_at}
    ignored = {value: why for value, why in whys.items() if why}
    doubt = is_zero_a_class(values, entries, places)
    if doubt and values.total and 0 in ignored and doubt.likely:
        del ignored[0]
    codes = [value for value in looked_at if value not in ignored]
    mixed = _mixtures(values, [value for value in codes if value not in entries])
    blurred = mixed >= (_LEAST_MIXED if values.lossy else max(_LEAST_MIXED, len(values.common(_RARE))))
    if not codes or len(codes) > MAX_CLASSES or len(ignored) > _MOST_STRAYS or blurred:
        images = coloured and len(values.pixels) > _MOST_BLURRED
        raise DatasetError(
            "labels",
            expected=f"a value for each class, at most {MAX_CLASSES}",
            got=f"{len(values.pixels)} {values.encoding} in {counted(values.read, 'file')}, as after "
            "resampling or in JPEGs",
            remedy=_SWAPPED if images else "save labels without loss",
        )
    _refuse_bits(codes, entries, values)
    _refuse_one(codes)
    yield from _class_choices(codes, ignored, values, legend, doubt)


@dataclass(frozen=True)
class _Doubt:
    """Open question on the value 0, which the files leave; `likely`: it is rather a class."""

    text: str
    likely: bool


def is_zero_a_class(
    values: LabelValues, entries: Mapping[int | None, LegendClass], places: Places
) -> _Doubt | None:
    """Return the doubt whether 0 is a class, where all bands of images that declare no nodata are 0.

    Of images of one band, as heights or an index, 0 is rather a measurement; in several bands at once rather
    no data. Few pixels are no matter.
    """
    share = values.share(0)
    if not share or 0 in entries or len(values.pixels) < 3:
        return None
    where = places(0)
    if where.empty < _SURELY or where.void >= _SURELY or (share < _LARGE and where.bands > 1):
        return None
    seen = f"0 is {percent(share)} of the pixels of the labels, and {percent(where.empty)} of these are 0 in "
    seen += f"{'all bands' if where.bands > 1 else 'the one band'} of the images, which declare no nodata"
    likely = where.bands == 1
    return _Doubt(f"{seen}: {'are they without data' if likely else 'is it a class'}?", likely)


def _class_choices(
    codes: Sequence[int], ignored: dict[int, str], values: LabelValues, legend: Legend, doubt: _Doubt | None
) -> Iterator[Choice]:
    """Yield classes and ignored values, with the questions that list and zeros leave open."""
    coloured = values.encoding == "colours"
    classes = _classes(codes, values, legend.by_value(colours=coloured), legend.file)
    if legend.doubt:
        others = {each.code: each for each in legend.other}
        named = [] if others else [value for value, why in ignored.items() if why.startswith(_NAMED)]
        other = _classes(sorted([*codes, *named]), values, others, legend.file if others else "").value
        instead = {classes.key: other}
        if named:
            instead["dataset.ignore"] = [value for value in ignored if value not in named]
        classes = replace(classes, question=legend.doubt, instead=instead)
    ignore = _choose_ignored(ignored, values) if ignored else None
    if doubt is not None:
        held = sorted({*codes} ^ {0})
        other = _classes(held, values, legend.by_value(colours=coloured), legend.file).value
        void = sorted({*ignored} ^ {0})
        texts = [f"#{value:06x}" if coloured else value for value in void]
        instead = {"dataset.classes": other, "dataset.ignore": texts}
        if ignore is not None and 0 in ignored:
            ignore = replace(ignore, other="", question=doubt.text, instead=instead)
        elif not classes.question:
            classes = replace(classes, question=doubt.text, instead=instead)
    yield classes
    if ignore is not None:
        yield ignore


def is_tag_a_class(values: LabelValues, tag: int, legend: Legend) -> tuple[bool, bool]:
    """Return whether the nodata value of labels is rather a class, and whether that is doubtful.

    Of a binary mask it is, since a class alone is nothing; 0 beside 1, 2, … on less than half of the pixels
    is rather one. Programs write 0 as nodata for both. A list of classes tells.
    """
    others = sorted(values.pixels.keys() - {tag})
    if legend.entries:
        return tag in legend.by_value(colours=False), False
    if len(others) < 2:
        return True, False
    return tag == 0 and others[0] == 1 and values.share(0) <= SPARSE, tag == 0


def asked_of_tag(
    chosen: list[Choice], others: Sequence[Choice], values: LabelValues, tag: int, likely: bool
) -> list[Choice]:
    """Return the choices with the question whether the nodata value of the labels is a class."""
    classes = next((each.value for each in others if each.key == "dataset.classes"), None)
    share = percent(values.share(tag))
    seen = f"{tag} is the nodata of the labels, {share} of their pixels, and images have data"
    question = f"{seen}: {'does it mean without a label' if likely else 'is it a class'}?"
    instead = {"dataset.label_nodata": "ignore" if likely else "class", "dataset.classes": classes}
    value = "class" if likely else "ignore"
    return [*chosen, Choice("dataset.label_nodata", value, "", question=question, instead=instead)]


def _refuse_large(values: LabelValues) -> None:
    """Refuse codes that a recipe cannot say, but for few pixels and what means no data."""
    for value in values.common(_RARE):
        if values.encoding == "codes" and value >= 0xFFFF and value not in _NO_VALUES:
            raise DatasetError(
                "labels",
                expected=f"codes of classes up to {0xFFFE}",
                got=f"{value} on {percent(values.share(value))} of the pixels",
                remedy="renumber the classes",
            )


def _refuse_bits(
    codes: Sequence[int], entries: Mapping[int | None, LegendClass], values: LabelValues
) -> None:
    """Refuse flags in bits, as QA_PIXEL has them: their values are no classes."""
    if values.encoding == "codes" and not entries and are_bits(codes):
        shown = ", ".join(f"{value} ({value:b})" for value in sorted(codes)[-2:])
        raise DatasetError(
            "labels",
            expected="a value for each class",
            got=f"{len(codes)} values as flags in bits, as {shown}",
            remedy="--labels names labels of classes",
        )


def _refuse_one(classes: Sequence[object]) -> None:
    if len(classes) < 2:
        got = f"{classes[0]} alone"
        raise DatasetError("labels", expected="two classes or more", got=got, remedy="--labels names others")


def _why_ignored(value: int, values: LabelValues, entry: LegendClass | None, places: Places) -> str:
    """Return why a value counts nowhere; empty for a class."""
    share, colours, others = values.share(value), values.encoding == "colours", values.pixels.keys() - {value}
    if entry is not None:
        return f"{_NAMED}{entry.name}" if entry.nowhere else ""
    if not colours and not 0 <= value < 0xFFFF:
        return "no code of a class"
    if len(others) < 2:
        return ""
    if not colours and value == 255 and max(others) < value // 2:
        return "the usual value for it"
    if share < _STRAY and values.pixels[value] < _FEW_PIXELS:
        return "few pixels"
    if value in (0, 0xFFFFFF):
        where = places(value)
        most = max(where.empty, where.border)
        if where.empty >= _SURELY or (share < _RARE and most >= _MOSTLY):
            return f"{most:.0%} at borders or where the image is empty"
    return ""


def _mixtures(values: LabelValues, codes: Sequence[int]) -> int:
    """Return the number of values that no one meant.

    Of colours the rare ones that lie between two common ones, as edges do after resampling; of codes in
    JPEGs those beside a commoner one.
    """
    if values.encoding != "colours":
        beside = (max(values.pixels.get(v - 1, 0), values.pixels.get(v + 1, 0)) for v in codes)
        return sum(n > values.pixels[v] for v, n in zip(codes, beside, strict=True)) if values.lossy else 0
    common = np.array([unpack_colour(value) for value in values.common(_RARE)])
    if len(common) < 2:
        return 0
    one, other = (common[side] for side in np.triu_indices(len(common), 1))
    along = other - one
    mixed = 0
    for value in codes:
        apart = np.array(unpack_colour(value)) - one
        part = (apart * along).sum(1) / (along**2).sum(1)
        distance = np.abs(apart - part[:, None] * along).max(1)
        mixed += values.share(value) < _RARE and bool(((distance <= 8) & (part > 0) & (part < 1)).any())
    return mixed


# ------------------------------------------------------------------------------------------------ choices


def _classes(
    codes: Sequence[int], values: LabelValues, entries: Mapping[int | None, LegendClass], file: str
) -> Choice:
    """Return the classes in the order of their values."""
    names, given = dict[str, int](), list[Colour | None]()
    coded = values.encoding == "codes"
    for value in codes:
        ground = not value and coded and any(code in entries for code in codes)
        entry = entries.get(value) or LegendClass(_BACKGROUND if ground else _made_name(value, codes, values))
        tries = (entry.name, *(f"{entry.name} {n}" for n in range(2, len(codes) + 2)))
        names[next(each for each in tries if each not in names)] = value
        own = (entry.colour, values.palette.get(value)) if coded else (value,)
        told = (unpack_colour(each) for each in own if each is not None)
        given.append(next((colour for colour in told if colour not in given), None))
    classes = [
        {"name": name, **({"code": value} if coded else {}), "colour": hex_colour(colour)}
        for (name, value), colour in zip(names.items(), default_colours(list(names), given), strict=True)
    ]
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
    hue, saturation, light = colorsys.rgb_to_hsv(*(part / 255 for part in unpack_colour(value)))
    if light < 0.1 or saturation < 0.12:
        return "black" if light < 0.1 else "white" if light > 0.9 else "grey"
    word = _HUES.split()[int(hue * 12 + 0.5) % 12]
    return f"dark {word}" if light < 0.6 else f"light {word}" if saturation < 0.4 else word


def _choose_ignored(ignored: dict[int, str], values: LabelValues) -> Choice:
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


def _antialiased_codes(values: LabelValues) -> Choice | None:
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


# ------------------------------------------------------------------------------------------------ masks


def mask_choices(
    root: Path, facts: Patterns, scenes: Sequence[Scene], drivers: Sequence[str]
) -> Generator[Choice, None, dict[str, str]]:
    """Yield `dataset.encoding` and `dataset.classes` for masks; reads them whole, with a bar.

    Returns:
        Label that cannot be read → reason.

    Raises:
        SegmenterError: a file is no mask, or there is one class alone, or none can be read.
    """
    names = ["none" if "background" in facts.masks else "background", *facts.masks]

    def count(scene: Scene) -> NDArray[np.int64] | RasterError:
        assert scene.label is not None, "the loader pairs them"
        try:
            with Masks(scene.masks or ((0, scene.label),), drivers) as masks, in_turn(masks.info.size):
                strips = (codes[codes < UNLABELLED] for _, codes in masks.strips())
                own = [np.bincount(codes, minlength=len(names)) for codes in strips]
                return np.append(np.sum(own, axis=0), masks.several)
        except RasterError as error:
            return error

    damaged, counts = dict[str, str](), list[NDArray[np.int64]]()
    for scene, found in zip(
        scenes, in_threads(count, scenes, description="values of labels", unit="file"), strict=True
    ):
        if isinstance(found, RasterError) and scene.label is not None:
            damaged[scene.label.relative_to(root).as_posix()] = str(found)
        elif not isinstance(found, RasterError):
            counts.append(found)
    if not counts:
        raise RasterError(root, f"no mask can be read; {next(iter(damaged.values()))}")
    *pixels, several = np.sum(counts, axis=0).tolist()
    there = [(code, name) for code, name in enumerate(names) if pixels[code]]
    _refuse_one([name for _, name in there])
    why = f"{counted(len(facts.masks), 'mask')} a scene, each of 0 and one other value"
    lacking = sum(len(facts.masks) - len(scene.masks) for scene in scenes if scene.masks)
    why += f"; {lacking} of all lack: no such class" if lacking else ""
    yield Choice("dataset.encoding", "masks", why)
    why = ", ".join(f"{name} {percent(pixels[code] / sum(pixels))}" for code, name in there)
    why += f" of {counted(sum(pixels), 'pixel')}"
    why += f"; {percent(several / sum(pixels))} in several masks: the last class counts" if several else ""
    shown = map(hex_colour, default_colours([name for _, name in there]))
    classes = [
        {"name": name, "code": code, "colour": colour}
        for (code, name), colour in zip(there, shown, strict=True)
    ]
    made_up = "names are made up: bands have none" if facts.masks[0] == "class 1" else ""
    yield Choice("dataset.classes", classes, why, made_up)
    return damaged
