"""Pairs of image and label by the parts of their names, and the patterns that describe them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import PurePosixPath

from ..files import in_hash_order

_PART = re.compile(r"\d+|[^\W\d_]+")
_SEPARATORS = "_-. "
_POSTINGS, _FEW, _EXAMPLES = 3000, 50, 12
"""Images that a label is compared with: those of its rarest part, those of others that few have; examples."""
SPLIT_WORDS = {
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "holdout"), "test"),
    **dict.fromkeys(("train", "training"), "train"),
}
"""Words in names of folders, lists and files → split."""

Way = tuple[str, str, str, str]
"""Constant texts before and behind the common part of an image's name, and of a label's."""


def parts_of(path: str) -> list[str]:
    """Return numbers and words of a path, without its ending."""
    return _PART.findall(path.removesuffix(PurePosixPath(path).suffix))


def pair(images: Sequence[str], labels: Sequence[str]) -> dict[str, list[str]]:
    """Return for each label the images whose paths share most with it, rare parts counting more.

    Several if names do not tell them apart, as two versions of one image.
    """
    features = {
        path: Counter[object]([*parts_of(path), *pairwise(parts_of(path))]) for path in (*images, *labels)
    }
    postings: dict[object, list[str]] = defaultdict(list)
    for image in images:
        for feature in features[image]:
            postings[feature].append(image)

    def score(label: str, image: str) -> float:
        shared = features[label] & features[image]
        return sum(n * math.log(1 + len(images) / len(postings[f])) for f, n in shared.items())

    best, alone = {}, images if len(images) == len(labels) == 1 else []
    for label in labels:
        known = sorted(
            (f for f in features[label] if f in postings), key=lambda f: (len(postings[f]), str(f))
        )
        near = dict.fromkeys(
            image
            for f in known
            if f in known[:1] or len(postings[f]) <= _FEW
            for image in postings[f][:_POSTINGS]
        )
        scores = {image: score(label, image) for image in (near or alone)}
        top = max(scores.values(), default=0.0) - 1e-9
        best[label] = [image for image, value in scores.items() if value >= top][:_FEW]
    return best


def role_of(path: str, other: str) -> str:
    """Return a path with a star for the parts that its partner has: what makes it an image or a label."""
    shared, ending = parts_of(other), PurePosixPath(path).suffix

    def star(match: re.Match[str]) -> str:
        if match[0] in shared:
            return "*"
        start = max((s for s in shared if len(s) > 2 and match[0].startswith(s)), key=len, default="")
        return f"*{match[0][len(start) :]}" if start else match[0]

    return re.sub(r"\*(?:[\W_]*\*)+", "*", _PART.sub(star, path.removesuffix(ending))) + ending.lower()


# ------------------------------------------------------------------------------------------------ patterns


@dataclass(frozen=True)
class Patterns:
    """Patterns of image and label files with common names.

    Attributes:
        splits: split by value of the name `{split}`, if folders tell it.
    """

    images: str
    labels: str
    splits: dict[str, str]


def patterns_of(pairs: Sequence[tuple[str, str]]) -> Patterns:
    """Return one pattern for the images and one for the labels of these pairs of paths.

    A component that all paths share stays as it is; one that varies alike on both sides becomes a name, as
    `{folder}`; any other becomes `*`.
    """
    if len(pairs) == 1:
        return Patterns(*pairs[0], splits={})
    sides = [[each[side] for each in pairs] for side in (0, 1)]
    images, labels = map(_columns, sides)
    texts = [[column[0] if len(set(column)) == 1 else "*" for column in side] for side in (images, labels)]
    splits: dict[str, str] = {}
    free, last = set(range(len(labels))), len(images) - 1
    for i in (last, *range(last)):  # the stem first: a folder may have a part of it
        if len(set(images[i])) == 1:
            continue
        fits = [(j == len(labels) - 1, fit, j) for j in sorted(free) if (fit := _fit(images[i], labels[j]))]
        if not fits:
            continue
        _, fit, j = min(fits, key=lambda each: (each[0] != (i == last), sum(map(len, each[1])), each[1]))
        free.remove(j)
        name = "name" if i == last else f"folder_{i}" if i else "folder"
        words = {value: split_of_words(value) for x in images[i] if (value := _middle(x, *fit[:2]))}
        if not splits and i != last and "train" in words.values() and "" not in words.values():
            name, splits = "split", words
        texts[0][i], texts[1][j] = f"{fit[0]}{{{name}}}{fit[1]}", f"{fit[2]}{{{name}}}{fit[3]}"
    endings = (Counter(PurePosixPath(path).suffix for path in side).most_common(1)[0][0] for side in sides)
    made = ["/".join(side) + ending for side, ending in zip(texts, endings, strict=True)]
    return Patterns(made[0], made[1], splits)


def _columns(paths: Sequence[str]) -> list[list[str]]:
    """Return the values of each component of paths, stems last; folders of other depth become `**`."""
    split = [[*PurePosixPath(path).parts[:-1], PurePosixPath(path).stem] for path in paths]
    least = min(map(len, split))
    if least < max(map(len, split)):
        common = next((i for i in range(least - 1) if len({parts[i] for parts in split}) > 1), least - 1)
        split = [[*parts[:common], "**", parts[-1]] for parts in split]
    return [list(column) for column in zip(*split, strict=True)]


def _fit(values: Sequence[str], others: Sequence[str]) -> Way | None:
    """Return the shortest constant texts around the common part of two columns; None if there is none."""
    pairs = list(zip(values, others, strict=True))
    some = [pairs[int(i)] for i in in_hash_order(map(str, range(len(pairs))))[:_EXAMPLES]]

    def fits(way: Way) -> bool:
        middles = ((_middle(one, *way[:2]), _middle(other, *way[2:])) for one, other in pairs)
        return all(a is not None and a == b for a, b in middles)

    def rank(way: Way) -> tuple[bool, int, Way]:
        before = way[0]
        cuts_a_word = any(before[-1:].isalpha() and one[len(before) :][:1].isalpha() for one, _ in some)
        return cuts_a_word, sum(map(len, way)), way

    ways = {way for one, other in some for way in _ways(one, other)}
    return min(filter(fits, ways), key=rank, default=None)


def _ways(one: str, other: str) -> Iterator[Way]:
    """Yield, for each common part of two texts, what is before and behind it."""
    for match in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        text = one[match.a : match.a + match.size]
        word = re.split(f"[{re.escape(_SEPARATORS)}]", text, maxsplit=1)[-1]
        for middle in {text if one == other else "", text.strip(_SEPARATORS), word} - {""}:
            a, b = (start + text.index(middle) for start in (match.a, match.b))
            yield one[:a], one[a + len(middle) :], other[:b], other[b + len(middle) :]


def _middle(text: str, before: str, behind: str) -> str | None:
    whole = len(text) > len(before) + len(behind) and text.startswith(before) and text.endswith(behind)
    return text[len(before) : len(text) - len(behind)] if whole else None


def split_of_words(name: str) -> str:
    """Return the split that a word of a name means, as in `test_data`; empty if none does, or several."""
    splits = {SPLIT_WORDS[word] for word in _PART.findall(name.lower()) if word in SPLIT_WORDS}
    return splits.pop() if len(splits) == 1 else ""


# --------------------------------------------------------------------------------------------------- bands

MARK = "@"
"""Stands for the word that names a band, and what is behind it."""
_BAND = re.compile(
    r"(?P<scene>.*?)(?P<tail>(?:^|[_\-. ])(?P<band>[^_\-. ]*[A-Za-z][^_\-. ]*?)(?:[_-](?P<metres>\d+)m)?)"
)
_RESOLUTION = re.compile(r"(^|/)(R\d+m)/")
_ORDER = ("blue", "green", "red", "nir")


def pattern_of_band(pattern: str, path: str) -> str:
    """Return a pattern of scenes as one for the files of a band, by one of these."""
    pure = PurePosixPath(path)
    match, folder = _BAND.fullmatch(pure.stem), _RESOLUTION.search(f"{pure.parent}/")
    assert match is not None, "its band was found so"
    made = pattern.replace(MARK, match["tail"] + pure.suffix)
    return made if folder is None else re.sub(r"(^|/)\*R/", rf"\1{folder[2]}/", made)


def band_files(images: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the file of each band, in order, of scenes of several files whose names differ in one word.

    A scene is its path up to that word, and `MARK`. The word has a letter and is the last one or the one
    before a resolution, as in `B04`, `red`, `B8A_20m`; of one band in several resolutions the finest is
    taken. Nothing, if names tell of no scenes.
    """
    scenes: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    for path in images:
        pure = PurePosixPath(path)
        if match := _BAND.fullmatch(pure.stem):
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
