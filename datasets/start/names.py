"""Pairs of image and label by the parts of their names, and the patterns that describe them."""

from __future__ import annotations

import itertools
import math
import operator
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import PurePosixPath

_PART, _WORD = re.compile(r"\d+|[^\W\d_]+"), re.compile(r"[^\W_]+")
_SEPARATORS = "_-. "
_POSTINGS, _FEW, _EXAMPLES, _MOST_NAMES = 3000, 50, 12, 3
"""Images that a label is compared with, by its rarest part and by others; examples, names of a component."""
SPLIT_WORDS = {
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "validation"),
    **dict.fromkeys(("test", "testing", "hold", "holdout", "ts"), "test"),
    **dict.fromkeys(("train", "training", "tr"), "train"),
}
"""Words in names of folders, lists and files → split."""
USUAL = {"image", "images", "img", "rgb", "rgbnir", "sat", "mask", "masks", "msk", "label", "labels", "gt"}
USUAL |= {"annot", "annotation", "annotations"}
"""Words in names of images and labels."""
AUXILIARY = {"instance", "instances", "instanceids", "object", "objects", "segmentationobject", "boundary"}
AUXILIARY |= {"boundaries", "border", "borders", "edge", "edges", "contour", "contours", "vertex", "vertices"}
AUXILIARY |= {"weight", "weights", "cloud", "clouds", "clm", "valid", "quality", "visualization", "preview"}
AUXILIARY |= {"overlay", "quicklook", "browse", "thumbnail", "thumb"}
"""Words in names of what lies beside images and labels; they tell only where pixels do not."""

common_start = os.path.commonprefix
"""Return the longest text that all texts begin with."""
Way = tuple[str, ...]
"""Constant texts of a column: before its first name, between its names, and behind the last."""


def words_of(text: str) -> list[str]:
    """Return the words of a name in small letters, also those that capitals divide: `SegmentationObject`."""
    parts = re.findall(r"[^\W\d_]{2,}", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text))
    return [part.lower() for part in parts]


def parts_of(path: str) -> list[str]:
    """Return numbers and words of a path, without its ending."""
    return _PART.findall(path.removesuffix(PurePosixPath(path).suffix))


def pair(images: Sequence[str], labels: Sequence[str]) -> dict[str, list[str]]:
    """Return for each label the images whose paths share most with it, rare parts counting more.

    Several if names do not tell them apart, as two versions of one image. The folder of all tells nothing.
    """
    paths = (*images, *labels)
    above = len(os.path.commonpath([os.path.dirname(path) for path in paths]))
    parts = {path: parts_of(path[above:]) for path in paths}
    told = {path: [part for part in own if part.lower() not in USUAL] for path, own in parts.items()}
    features = {path: {*own, *itertools.pairwise(own)} for path, own in told.items()}
    postings: dict[object, list[str]] = defaultdict(list)
    for image in images:
        for feature in features[image]:
            postings[feature].append(image)

    def score(label: str, image: str) -> float:
        shared = features[label] & features[image]
        return sum(math.log(1 + len(images) / len(postings[f])) for f in shared)

    best, alone = {}, images if len(images) == 1 else []
    for label in labels:
        known = sorted(postings.keys() & features[label], key=lambda f: (len(postings[f]), str(f)))
        telling = [f for f in known if f == known[0] or len(postings[f]) <= _FEW]
        near = dict.fromkeys(image for f in telling for image in postings[f][:_POSTINGS])
        scores = {image: score(label, image) for image in (near or alone)}
        top = max(scores.values(), default=0.0) - 1e-9
        tied = [image for image, value in scores.items() if value >= top][:_FEW]
        words = [tuple(part for part in told[image] if len(part) > 2) for image in tied]
        begun = [sum(part.startswith(own) for part in parts[label]) for own in words]
        best[label] = [image for image, n in zip(tied, begun, strict=True) if n == max(begun)]
    return best


def role_of(path: str, other: str, *, numbered: bool = False) -> str:
    """Return a path with a star for what its partner has, too: the rest makes it an image or a label.

    A word may occur anywhere in the partner, a number within another word, as in `s2_raw`, only in the same
    place: small ones are equal by chance. `numbered`: all numbers are stars.
    """
    shared, ending, at = parts_of(other), PurePosixPath(path).suffix, itertools.count()
    words = set(_WORD.findall(other.removesuffix(PurePosixPath(other).suffix)))
    blocks = SequenceMatcher(None, parts_of(path), shared, autojunk=False).get_matching_blocks()
    aligned = {i for block in blocks for i in range(block.a, block.a + block.size)}

    def star(match: re.Match[str]) -> str:
        alike = next(at) in aligned or (numbered if match[0].isdecimal() else match[0] in shared)
        return "*" if alike else match[0]

    def stars(match: re.Match[str]) -> str:
        made = _PART.sub(star, match[0])  # counts its parts
        return "*" if match[0] in words else made

    return re.sub(r"\*(?:[\W_]*\*)+", "*", _WORD.sub(stars, path.removesuffix(ending))) + ending.lower()


# ------------------------------------------------------------------------------------------------ patterns


@dataclass(frozen=True)
class Patterns:
    """Patterns of image and label files with common names.

    Attributes:
        images: pattern of each band's file, or one pattern.
        labels: pattern of label files, or the file for all images.
        masks: classes, if labels are masks: by `{class}` in their pattern, or of their bands.
        splits: globs of the images of validation and test, if a folder `{split}` tells them.
        shared: one label file serves all images.
        others: other readings of the images, and of the labels.
        one_date: pattern of the images of one date, if a label serves those of several.
    """

    images: tuple[str, ...]
    labels: str
    splits: dict[str, list[str]]
    shared: bool = False
    masks: tuple[str, ...] = ()
    others: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    one_date: str = ""


def patterns_of(pairs: Sequence[tuple[str, str]]) -> Patterns:
    """Return one pattern for the images and one for the labels of these pairs of paths.

    A component that all paths share stays as it is; what varies alike on both sides becomes a name, as
    `{folder}`, or several around a word of one side, as `{name}_img_{name_b}`; all else becomes `*`.
    """
    if len(pairs) == 1:
        return Patterns(pairs[0][:1], pairs[0][1], {})
    sides = list(zip(*pairs, strict=True))
    images, labels = columns = [_columns(side) for side in sides]
    texts = [[_star(c) if c is side[-1] or len({*c}) == 1 else "*" for c in side] for side in columns]
    splits: dict[str, str] = {}
    free, last = set(range(len(labels))), len(images) - 1
    for i in (last, *range(last)):  # the stem first: a folder may have a part of it
        if len(set(images[i])) == 1:
            continue
        fits = [(j == len(labels) - 1, fit, j) for j in sorted(free) if (fit := _fit(images[i], labels[j]))]
        if not fits:
            continue
        (*_, one, other), j = min(fits, key=lambda each: (each[0] != (i == last), each[1]))[1:]
        free.remove(j)
        name = "name" if i == last else f"folder_{i}" if i else "folder"
        words = {value: split_of_words(value) for x in images[i] for value in _middles(x, one)}
        if not splits and i != last and len(one) == 2 and {"train", ""} & {*words.values()} == {"train"}:
            name, splits = "split", words
        names = [*(f"{{{name}{end}}}" for end in ("", "_b", "_c")[: len(one) - 1]), ""]
        texts[0][i], texts[1][j] = ("".join(map(operator.add, way, names)) for way in (one, other))
    endings = (Counter(PurePosixPath(path).suffix for path in side).most_common(1)[0][0] for side in sides)
    made = ["/".join(side) + ending for side, ending in zip(texts, endings, strict=True)]
    before, _, behind = re.sub(r"\*\*/|\{(?!split\})\w+\}", "*", made[0]).partition("{split}")
    globs: dict[str, list[str]] = {}
    for value, split in sorted(splits.items()):
        globs.setdefault(split, []).append(f"{before}{value}{behind.partition('/')[0]}/*")
    globs.pop("train", None)
    return Patterns((made[0],), made[1], globs)


def _columns(paths: Sequence[str]) -> list[list[str]]:
    """Return the values of each component of paths, stems last; folders of other depth become `**`."""
    split = [[*PurePosixPath(path).parts[:-1], PurePosixPath(path).stem] for path in paths]
    least = min(map(len, split))
    if least < max(map(len, split)):
        common = next((i for i in range(least - 1) if len({parts[i] for parts in split}) > 1), least - 1)
        split = [[*parts[:common], "**", parts[-1]] for parts in split]
    return [list(column) for column in zip(*split, strict=True)]


def _star(values: Sequence[str]) -> str:
    """Return the one text, or the constant ends of several around a star."""
    before = common_start(values)
    behind = common_start([value[len(before) :][::-1] for value in values])[::-1]
    return before if len(set(values)) == 1 else f"{before}*{behind}"


def _fit(values: Sequence[str], others: Sequence[str]) -> tuple[int, int, Way, Way] | None:
    """Return two costs and the constant texts around the common parts of two columns; or None.

    Common parts are of whole words and numbers, or if these fit not all, of characters.
    """
    pairs = list(zip(values, others, strict=True))
    for part in (r"\d+|[^\W\d_]+|.", "."):
        ways = {way for texts in pairs[:: -(-len(pairs) // _EXAMPLES)] for way in _ways(part, *texts)}
        fits = [
            (len(one), sum(map(len, one + other)), one, other)
            for one, other in ways
            if all((found := _middles(a, one)) and found == _middles(b, other) for a, b in pairs)
        ]
        if fits:
            return min(fits)
    return None


def _ways(part: str, one: str, other: str) -> Iterator[tuple[Way, Way]]:
    """Yield constant texts around all common parts of two texts, or around one of them."""
    parts = [re.findall(part, text, re.DOTALL) for text in (one, other)]
    blocks = SequenceMatcher(None, parts[0], parts[1], autojunk=False).get_matching_blocks()
    common = ["".join(parts[0][block.a : block.a + block.size]).strip(_SEPARATORS) for block in blocks]
    common = [text for text in common if text]
    for names in [common, *([text] for text in common)] if len(common) <= _MOST_NAMES else []:
        form = "(.*?)".join(["", *map(re.escape, names), ""])
        ways = [found.groups() for text in (one, other) if (found := re.fullmatch(form, text, re.DOTALL))]
        yield ways[0], ways[1]


def _middles(text: str, way: Way) -> tuple[str, ...]:
    """Return what is between constant texts, the first as long as possible; empty: the text is another."""
    match = re.fullmatch("(.+)".join(map(re.escape, way)), text, re.DOTALL)
    return match.groups() if match else ()


def split_of_words(name: str) -> str:
    """Return the split that a word of a name means, as in `test_data`; empty if none does, or several."""
    words = _PART.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    splits = {SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else ""


# --------------------------------------------------------------------------------------------------- bands

MARK = "@"
"""Stands for the word that names a band, and what is behind it."""
_BAND = re.compile(
    r"(?P<scene>.*?)(?P<tail>(?:^|[_\-. ])(?P<band>[^_\-. ]*[A-Za-z][^_\-. ]*?)(?:[_-](?P<metres>\d+)m)?)"
)
_RESOLUTION = re.compile(r"(^|/)(R\d+m)/")
_IN_FOLDER = re.compile(
    r"(?<![^\W_])(red|green|blue|nir|red_?edge\d?|swir\d?|[vh][vh]|B\d+A?)(?![^\W_])(?=.*/)", re.IGNORECASE
)
_ORDER = ("red", "green", "blue", "nir")


def pattern_of_band(pattern: str, band: str, path: str) -> str:
    """Return a pattern of scenes as one for the files of a band, by one of these."""
    if not pattern.endswith(MARK):
        return pattern.replace(MARK, band)
    pure = PurePosixPath(path)
    match, folder = _BAND.fullmatch(pure.stem), _RESOLUTION.search(f"{pure.parent}/")
    assert match is not None, "its band was found so"
    made = pattern.replace(MARK, match["tail"] + pure.suffix)
    return made if folder is None else re.sub(r"(^|/)\*R/", rf"\1{folder[2]}/", made)


def band_files(images: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the file of each band, in order, of scenes of several files whose names differ in one word.

    A scene is its path up to that word, and `MARK`. The word has a letter and is the last one or the one
    before a resolution, as in `B04`, `red`, `B8A_20m`; of one band in several resolutions the finest is
    taken. Where folders are named by bands, it is the path with `MARK` for their words. Nothing, if names
    tell of no scenes.
    """
    scenes: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    words = {path: match[0] for path in images if (match := _IN_FOLDER.search(path))}
    words = words if len(set(words.values())) > 1 else {}
    for path in images:
        pure = PurePosixPath(path)
        if word := words.get(path):
            scenes[re.sub(rf"(?<![^\W_]){word}(?![^\W_])", MARK, path)][word] = (0, path)
        elif match := _BAND.fullmatch(pure.stem):
            folder = _RESOLUTION.sub(r"\1*R/", f"{pure.parent}/").removeprefix("./")
            own, one = scenes[f"{folder}{match['scene']}{MARK}"], (int(match["metres"] or 0), path)
            own[match["band"]] = min(own.get(match["band"], one), one)
    sets = Counter(frozenset(bands) for bands in scenes.values())
    bands = max(sets, key=lambda each: (sets[each] * len(each), sorted(each)), default=frozenset[str]())
    if len(bands) < 2 or sets[bands] * len(bands) < 0.5 * len(images):
        return {}
    order = sorted([band for band in bands if re.fullmatch(r"[Bb]\d+[Aa]?", band)] or bands, key=_band_order)
    whole = {key: own for key, own in sorted(scenes.items()) if set(order) <= set(own)}
    return {key: {band: own[band][1] for band in order} for key, own in whole.items()}


def _band_order(band: str) -> tuple[int, int, str]:
    colour = _ORDER.index(band.lower()) if band.lower() in _ORDER else len(_ORDER)
    return colour, int(re.sub(r"\D", "", band) or 0), band
