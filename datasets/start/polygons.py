"""Classes of polygon files: the attribute that holds them, its values, and pixels outside all polygons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from segmenter.base.errors import DatasetError, counted
from segmenter.evaluation.drawing import hex_colour
from segmenter.grid.labels import MAX_CLASSES, own_colour

from ..files import few
from ..made import polygon_packages
from .choice import Choice

_USUAL = re.compile(r"class|klass|categor|type|kind|label|land_?(use|cover)|name|code", re.IGNORECASE)
_NUMBERED = re.compile(r"id|dn|val(ue)?|l[cu]|lulc", re.IGNORECASE)
"""Names of attributes of classes, and further ones whose numbers may be classes."""
_NUMBER, _YES, _NO = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?"), {"yes", "true"}, {"no", "false"}
_BACKGROUND = "background"
_MOST = 0.9
"""Share of the polygons that a usual attribute has a value for, to go before others."""


def polygon_choices(root: Path, files: Sequence[str]) -> Iterator[Choice]:
    """Yield the attribute of the classes, if any, the classes, and what lies outside, as empty files tell.

    Raises:
        DatasetError: a file cannot be read, none has a polygon, or the extra `vectors` is missing.
    """
    with polygon_packages():
        from segmenter.extras.vectors.features import VectorFile
        from segmenter.extras.vectors.rule import as_text
    columns, counts = dict[str, list[list[str]]](), list[int]()
    for file in tqdm(files, desc="polygons", unit="file"):
        vectors = VectorFile(root / file, None)
        counts.append(vectors.count)
        for name, own in vectors.attributes().items():
            columns.setdefault(name, []).append(list(filter(None, map(as_text, own.tolist()))))
    if not sum(counts):
        raise DatasetError(root, expected="polygons", got=f"none in {few(files)}", remedy="add some")
    fitting = {name: fit for name, each in columns.items() if (fit := _as_classes(name, each))}
    sparse = {name for name, fit in fitting.items() if fit.total() < _MOST * sum(counts)}
    unusual = sparse | {name for name in fitting if not _USUAL.search(name)}
    order = sorted(fitting, key=lambda name: (name in unusual, name in sparse, len(fitting[name]) == 1, name))
    attribute, values = (order[0], fitting[order[0]]) if order else (None, Counter(foreground=sum(counts)))
    shown = ", ".join(f"{value} {n:,}" for value, n in values.most_common(8))
    others = f"attribute {few(rest, 3)}" if (rest := order[1:] if order else list(columns)) else ""
    yield Choice("dataset.vector.attribute", attribute, f"{counted(sum(counts), 'polygon')}: {shown}", others)
    names, alone, empty = sorted(values), len(values) == 1, counts.count(0)
    if attribute and alone:
        yield Choice("dataset.vector.values", {names[0]: _named(names[0], attribute)}, "the only value")
        names = [_named(names[0], attribute)]
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
