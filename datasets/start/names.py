"""Pairs of image and label by the parts of their names, and the patterns that describe them."""

from __future__ import annotations

import itertools
import math
import operator
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from glob import escape
from pathlib import PurePosixPath

_PART, _WORD = re.compile(r"\d+|[^\W\d_]+"), re.compile(r"[^\W_]+")
_SEPARATORS = "_-. "
_POSTINGS, _FEW, _EXAMPLES, _MOST_NAMES = 3000, 50, 12, 3
"""Images that a label is compared with, by its rarest part and by others; examples, names of a component."""
_WORDS_OF = {
    "validation": "val vali valid validation dev eval evaluation validierung validacion evaluacion validacao "
    "avaliacao validazione valutazione",
    "test": "test tests testing tst hold holdout ts prueba pruebas essai essais teste testes prova",
    "train": "train training trn tr trainval entrenamiento entrainement apprentissage treino treinamento "
    "addestramento allenamento",
}
SPLIT_WORDS = {word: split for split, words in _WORDS_OF.items() for word in words.split()}
"""Words in names of folders, lists and files → split, without accents."""
SET_ENDINGS = r"(?:s?daten(?:satz)?|data(?:set)?|sets?|s?menge)"
"""Endings of such a word that tell no more, as in `trainset`."""
_BESIDE = {"data", "dataset", "set", "daten", "area", "areas", "tiles", "split"}
"""Words beside such a word that make a folder's name no other one."""
USUAL = {"image", "images", "img", "rgb", "rgbnir", "sat", "mask", "masks", "msk", "label", "labels", "gt"}
USUAL |= {"annot", "annotation", "annotations", "truth", "groundtruth", "reference", "manual"}
"""Words in names of images and labels."""
RESULTS = {
    "pred",
    "preds",
    "predicted",
    "prediction",
    "predictions",
    "output",
    "outputs",
    "result",
    "results",
}
RESULTS |= {"inference", "inferred", "auto", "automatic", "baseline", "old", "backup"}
"""Words in names of what a model or an earlier hand made beside the labels."""
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
        splits: globs of the images of each split, if a folder `{split}` tells them; of "" in folders beside
            these whose names tell none.
        shared: one label file serves all images.
        others: other readings of the images, and of the labels.
        one_date: pattern of the images of one date, if a label serves those of several.
        rival: pattern of other labels of the same images that may as well be meant; empty: none.
    """

    images: tuple[str, ...]
    labels: str
    splits: dict[str, list[str]]
    shared: bool = False
    masks: tuple[str, ...] = ()
    others: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    one_date: str = ""
    rival: str = ""


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
    found, last = _common_columns(images, labels), len(images) - 1
    splits = {i: _splits_of_column(images[i], found[i][1] if i in found else None) for i in range(last)}
    at = min((i for i in splits if splits[i]), key=lambda i: ("" in splits[i].values(), i), default=None)
    for i, (j, one, other) in found.items():
        name = "split" if i == at else "name" if i == last else f"folder_{i}" if i else "folder"
        names = [*(f"{{{name}{end}}}" for end in ("", "_b", "_c")[: len(one) - 1]), ""]
        texts[0][i], texts[1][j] = ("".join(map(operator.add, way, names)) for way in (one, other))
    endings = (Counter(PurePosixPath(path).suffix for path in side).most_common(1)[0][0] for side in sides)
    made = ["/".join(side) + ending for side, ending in zip(texts, endings, strict=True)]
    globs: dict[str, list[str]] = defaultdict(list)
    if at is not None:
        above = re.sub(r"[?\[]", r"[\g<0>]", "".join(f"{text}/" for text in texts[0][:at]))
        for folder, split in sorted(splits[at].items()):
            globs[split].append(re.sub(r"\*\*/|\{\w+\}", "*", above) + f"{escape(folder)}/*")
    return Patterns((made[0],), made[1], dict(globs))


def _common_columns(
    images: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[int, tuple[int, Way, Way]]:
    """Return columns of images whose values vary alike in one of labels, with it and the constant texts."""
    found: dict[int, tuple[int, Way, Way]] = {}
    free, last = set(range(len(labels))), len(images) - 1
    for i in (last, *range(last)):  # the stem first: a folder may have a part of it
        if len(set(images[i])) == 1:
            continue
        fits = [(j == len(labels) - 1, fit, j) for j in sorted(free) if (fit := _fit(images[i], labels[j]))]
        if fits:
            (*_, one, other), j = min(fits, key=lambda each: (each[0] != (i == last), each[1]))[1:]
            free.remove(j)
            found[i] = j, one, other
    return found


def _splits_of_column(folders: Sequence[str], way: Way | None) -> dict[str, str]:
    """Return the split of each folder of a column; empty if it holds none.

    Args:
        way: constant texts around what labels have in common; None: they have nothing.
    """
    if len({*folders}) == 1 or (way is not None and len(way) != 2):
        return {}
    told = {folder: folder if way is None else _middles(folder, way)[0] for folder in folders}
    splits = splits_of_folders(told.values())
    return {folder: splits[value] for folder, value in told.items()} if splits else {}


def splits_of_folders(names: Iterable[str]) -> dict[str, str]:
    """Return the split of each folder, "" of those whose name tells none; empty if none tells one for sure.

    Without `train`, or beside names that tell nothing, one name must be no more than a word for a split.
    """

    def is_plain(name: str) -> bool:
        words = {*words_of(_split_text(name))} - _BESIDE - USUAL
        return all(map(split_of_word, words)) and any(len(word) > 2 for word in words)

    splits = {name: split_of_words(name) for name in names}
    told = {*splits.values()}
    whole = "train" in told and "" not in told
    return splits if whole or (told & {"train", ""} and any(map(is_plain, splits))) else {}


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


def _split_text(name: str) -> str:
    """Return a name in small letters without accents, words apart that capitals divide."""
    text = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()


def split_of_word(word: str) -> str:
    """Return the split that a word means; empty if it means none."""
    text = _split_text(word.strip()).replace(" ", "")
    return SPLIT_WORDS.get(text) or SPLIT_WORDS.get(re.sub(f"{SET_ENDINGS}$", "", text), "")


def splits_in(name: str) -> set[str]:
    """Return the splits that the words of a name mean; both of `trainval`."""
    words = _PART.findall(_split_text(name).replace("trainval", "train val"))
    return {*map(split_of_word, words)} - {""}


def split_of_words(name: str) -> str:
    """Return the split that a word of a name means, as in `test_data`; empty if none does, or several.

    Training and validation together, as in `trainval`, train.
    """
    splits = splits_in(name)
    return splits.pop() if len(splits) == 1 else "train" if splits == {"train", "validation"} else ""


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
