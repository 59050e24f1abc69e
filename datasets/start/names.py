"""Pairs of image and label by the parts of their names, and the patterns that describe them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from .sight import in_hash_order

_PART = re.compile(r"\d+|[^\W\d_]+")
_POSTINGS, _RAREST = 3000, 3
"""Images that are compared with a label at most, and its rarest parts that lead to them."""
_EXAMPLES = 12
_SEPARATORS = "_-. "
SPLIT_WORDS = {
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
    "train": ("train", "training"),
}


def parts_of(path: str) -> tuple[str, ...]:
    """Return numbers and words of a path, without its ending."""
    return tuple(_PART.findall(path[: len(path) - len(PurePosixPath(path).suffix)]))


def _features(path: str) -> Counter[object]:
    """Return parts and neighbouring parts of a path."""
    parts = parts_of(path)
    pairs: list[object] = list(zip(parts, parts[1:], strict=False))
    return Counter([*parts, *pairs])


class Partners:
    """Index of images by the parts of their paths."""

    def __init__(self, images: Sequence[str]) -> None:
        """Store the images."""
        self._features = {image: _features(image) for image in images}
        self._postings: dict[object, list[str]] = defaultdict(list)
        for image, features in self._features.items():
            for feature in features:
                self._postings[feature].append(image)

    def best(self, label: str) -> list[str]:
        """Return the images that share most with a label's path, rare parts counting more; several if alike."""
        total, features = len(self._features), _features(label)
        known = sorted((f for f in features if f in self._postings), key=lambda f: len(self._postings[f]))
        candidates = dict.fromkeys(
            image for feature in known[:_RAREST] for image in self._postings[feature][:_POSTINGS]
        )
        scores: dict[str, float] = {}
        for image in candidates or self._features if total <= _EXAMPLES else candidates:
            own = self._features[image]
            scores[image] = sum(
                min(count, own[f]) * math.log(1 + total / len(self._postings[f]))
                for f, count in features.items()
                if f in own
            )
        top = max(scores.values(), default=0.0)
        return [image for image, score in scores.items() if score >= top - 1e-9]


def pair(images: Sequence[str], labels: Sequence[str]) -> dict[str, list[str]]:
    """Return the images of each label; several if their names tell them not apart, as single bands."""
    partners = Partners(images)
    return {label: best for label in labels if (best := partners.best(label))}


def role_of(path: str, other: str) -> str:
    """Return what a path has that its partner has not, as text: parts of both become a star."""
    shared = set(parts_of(other))
    stem, ending = path[: len(path) - len(PurePosixPath(path).suffix)], PurePosixPath(path).suffix

    def star(match: re.Match[str]) -> str:
        text = match[0]
        start = max((s for s in shared if text.startswith(s)), key=len, default="")
        return f"*{text[len(start) :]}" if start else text

    return re.sub(r"\*(?:[\W_]*\*)+", "*", _PART.sub(star, stem)) + ending.lower()


# ------------------------------------------------------------------------------------------------ patterns


@dataclass(frozen=True)
class Patterns:
    """Patterns of image and label files with common names.

    Attributes:
        splits: value of the name `{split}` by split, if a folder tells it.
    """

    images: str
    labels: str
    splits: dict[str, tuple[str, ...]]


def patterns_of(pairs: Sequence[tuple[str, str]]) -> Patterns:
    """Return the patterns that describe pairs of paths; folders that only one side has become stars."""
    if len(pairs) == 1:
        return Patterns(*pairs[0], splits={})
    images, labels = _columns([image for image, _ in pairs]), _columns([label for _, label in pairs])
    texts: dict[tuple[str, int], str] = {}
    names: list[str] = []
    splits: dict[str, tuple[str, ...]] = {}
    taken: set[int] = set()
    last = len(images) - 1
    for i in (last, *range(last)):  # the stem first: a folder may have a part of it
        values = images[i]
        if len(set(values)) == 1:
            texts["image", i] = values[0]
            continue
        fits = ((j, fit) for j, other in enumerate(labels) if j not in taken if (fit := _fit(values, other)))
        # the last part of one is that of the other
        found = min(
            fits,
            key=lambda each: ((each[0] == len(labels) - 1) != (i == len(images) - 1), each[1]),
            default=None,
        )
        if found is None:
            texts["image", i] = "**" if values[0] == "**" else "*"
            continue
        j, (_, before, behind, its_before, its_behind) = found
        taken.add(j)
        middles = {_middle(value, before, behind) for value in values}
        name = _name(middles, names, last=i == last)
        names.append(name)
        if name == "split":
            splits = _splits(middles)
        texts["image", i] = f"{before}{{{name}}}{behind}"
        texts["label", j] = f"{its_before}{{{name}}}{its_behind}"
    for j, values in enumerate(labels):
        texts.setdefault(("label", j), values[0] if len(set(values)) == 1 else "*")
    both = [
        "/".join(texts[side, i] for i in range(len(columns)))
        for side, columns in (("image", images), ("label", labels))
    ]
    endings = (_ending(image for image, _ in pairs), _ending(label for _, label in pairs))
    return Patterns(both[0] + endings[0], both[1] + endings[1], splits)


def _columns(paths: Sequence[str]) -> list[list[str]]:
    """Return the values of each component of paths, stems last; folders of other depth become `**`."""
    split = [[*PurePosixPath(path).parts[:-1], PurePosixPath(path).stem] for path in paths]
    depths = {len(parts) for parts in split}
    if len(depths) > 1:
        common = 0
        while common < min(depths) - 1 and len({parts[common] for parts in split}) == 1:
            common += 1
        split = [[*parts[:common], "**", parts[-1]] for parts in split]
    return [list(column) for column in zip(*split, strict=True)]


def _ending(paths: Iterable[str]) -> str:
    return Counter(PurePosixPath(path).suffix for path in paths).most_common(1)[0][0]


def _fit(values: Sequence[str], others: Sequence[str]) -> tuple[int, str, str, str, str] | None:
    """Return the constant texts around the common part of two columns, and their length; None if none fits."""
    pairs = list(zip(values, others, strict=True))
    some = [pairs[int(i)] for i in in_hash_order([str(i) for i in range(len(pairs))])[:_EXAMPLES]]
    ways = {way for one, other in some for way in _ways(one, other)}
    fitting = [
        (sum(map(len, way)), *way)
        for way in ways
        if all(
            _middle(one, *way[:2]) is not None and _middle(one, *way[:2]) == _middle(other, *way[2:])
            for one, other in pairs
        )
    ]
    return min(fitting, default=None)


def _ways(one: str, other: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield constant texts before and behind a common part of two texts."""
    if one == other:
        yield "", "", "", ""
    for match in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
        text = one[match.a : match.a + match.size]
        middle = text.strip(_SEPARATORS)
        if not middle:
            continue
        skip = text.index(middle)
        a, b = match.a + skip, match.b + skip
        yield one[:a], one[a + len(middle) :], other[:b], other[b + len(middle) :]


def _middle(text: str, before: str, behind: str) -> str | None:
    if len(text) <= len(before) + len(behind) or not (text.startswith(before) and text.endswith(behind)):
        return None
    return text[len(before) : len(text) - len(behind)]


def _name(middles: Iterable[str | None], taken: Sequence[str], *, last: bool) -> str:
    """Return a name of a pattern for these values."""
    if last:
        return "name"
    word = "split" if _splits(middles) and "split" not in taken else "folder"
    return word if word not in taken else f"{word}_{len(taken) + 1}"


def _splits(values: Iterable[str | None]) -> dict[str, tuple[str, ...]]:
    """Return the values that name a split, by split; empty unless all do."""
    known = {word: split for split, words in SPLIT_WORDS.items() for word in words}
    found: dict[str, tuple[str, ...]] = {}
    for value in sorted(value for value in values if value):
        if value.lower() not in known:
            return {}
        split = known[value.lower()]
        found[split] = (*found.get(split, ()), value)
    return found if "train" in found else {}


# --------------------------------------------------------------------------------------------------- bands


@dataclass(frozen=True)
class BandFiles:
    """Scenes whose bands lie in several files.

    Attributes:
        bands: words that name the bands, in order.
        scenes: path of each band's file by scene; a scene is its path up to the band's word and `MARK`.
    """

    bands: tuple[str, ...]
    scenes: dict[str, dict[str, str]]

    def first(self, scene: str) -> str:
        """Return the file of a scene's first band."""
        return self.scenes[scene][self.bands[0]]

    def patterns(self, pattern: str) -> tuple[str, ...]:
        """Return a pattern of scenes as one for each band's files."""
        some = next(iter(self.scenes.values()))
        return tuple(self._pattern(pattern, band, some[band]) for band in self.bands)

    def _pattern(self, pattern: str, band: str, path: str) -> str:
        stem, folder = PurePosixPath(path).stem, _RESOLUTION.search(f"{PurePosixPath(path).parent}/")
        place = _place(stem)
        assert place is not None, "its band was found so"
        made = pattern.replace(MARK, stem[place[0] :] + PurePosixPath(path).suffix)
        return made if folder is None else re.sub(r"(^|/)\*R/", rf"\1{folder[2]}/", made)


MARK = "@"
"""Stands for the band's word and what is behind it."""
_RESOLUTION = re.compile(r"(^|/)(R\d+m)/")


def _place(stem: str) -> tuple[int, str] | None:
    """Return where the band's word begins, with its separator, and the word; None if there is no such word."""
    match = re.fullmatch(r"(.*?)((?:^|[_\-. ])([^_\-. ]*[A-Za-z][^_\-. ]*?))(?:[_-]\d+m)?", stem)
    return None if match is None else (match.start(2), match[3])


def band_files(images: Sequence[str]) -> BandFiles | None:
    """Return scenes of several files whose names differ in one word; None if names tell of none.

    The word has a letter and is the last one or the one before a resolution, as in `B04`, `red`, `B8A_20m`;
    of one band in several resolutions the finest is taken.
    """
    scenes: dict[str, dict[str, str]] = defaultdict(dict)
    for path in images:
        pure = PurePosixPath(path)
        if (place := _place(pure.stem)) is None:
            continue
        folder = _RESOLUTION.sub(r"\1*R/", f"{pure.parent}/").removeprefix("./")
        key, band = f"{folder}{pure.stem[: place[0]]}{MARK}", place[1]
        before = scenes[key].get(band)
        if before is None or _metres(path) < _metres(before):
            scenes[key][band] = path
    sets = Counter(frozenset(bands) for bands in scenes.values())
    if not sets:
        return None
    bands, count = max(sets.items(), key=lambda each: (each[1] * len(each[0]), sorted(each[0])))
    if len(bands) < 2 or count * len(bands) < 0.5 * len(images):
        return None
    numbered = [band for band in bands if re.fullmatch(r"[Bb]\d+[Aa]?", band)]
    kept = sorted(numbered or bands, key=_band_order)
    whole = {key: files for key, files in scenes.items() if set(kept) <= set(files)}
    return BandFiles(tuple(kept), {key: {b: files[b] for b in kept} for key, files in sorted(whole.items())})


def _metres(path: str) -> int:
    match = re.search(r"[_-](\d+)m$", PurePosixPath(path).stem)
    return int(match[1]) if match else 0


def _band_order(band: str) -> tuple[int, float, str]:
    colours = {"blue": 0, "green": 1, "red": 2, "nir": 3}
    if band.lower() in colours:
        return -1, colours[band.lower()], band
    digits = re.sub(r"\D", "", band)
    return (0, int(digits) + (0.5 if band[-1:] in "Aa" else 0), band) if digits else (1, 0, band)
