"""Classes of polygon files: the attribute that holds them, its values, and pixels outside all polygons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from segmenter.base.errors import DatasetError, counted
from segmenter.evaluation.drawing import hex_colour
from segmenter.grid.labels import MAX_CLASSES, own_colour

from ..files import few
from ..made import polygon_packages
from .choice import Choice

_MOST_FILES = 200
_USUAL = re.compile(r"class|klass|categor|type|kind|label|land_?(use|cover)|name|code", re.IGNORECASE)
_BACKGROUND = "background"


def polygon_choices(root: Path, files: Sequence[str]) -> Iterator[Choice]:
    """Yield the attribute of the classes, the classes, and what lies outside; the first files tell.

    Raises:
        DatasetError: no attribute has few values, or the extra `vectors` is missing.
    """
    columns = _columns([root / file for file in files[:_MOST_FILES]])
    fitting = {
        name: values
        for name, values in columns.items()
        if 1 <= len(values) < MAX_CLASSES and len(values) <= max(1, values.total() / 2)
    }
    if not fitting:
        raise DatasetError(
            root / files[0],
            expected="an attribute with the class of each polygon, a few values that recur",
            got=few(columns) or "none",
            remedy="add one",
        )
    order = sorted(fitting, key=lambda name: (_USUAL.search(name) is None, len(fitting[name]) == 1, name))
    attribute, values = order[0], fitting[order[0]]
    shown = ", ".join(f"{value} {n:,}" for value, n in values.most_common(8))
    others = f"attribute {few(order[1:], 3)}" if len(order) > 1 else ""
    yield Choice(
        "dataset.vector.attribute", attribute, f"{counted(values.total(), 'polygon')}: {shown}", others
    )
    names = sorted(values)
    if alone := len(names) == 1:
        names = [_named(names[0], attribute)]
        yield Choice("dataset.vector.values", {next(iter(values)): names[0]}, "the only value")
        yield Choice("dataset.vector.outside", _BACKGROUND, "polygons of one class: all else is none of it")
        names.insert(0, _BACKGROUND)
    classes = [{"name": name, "colour": hex_colour(own_colour(i))} for i, name in enumerate(names)]
    other = "" if alone else "pixels outside all polygons are ignored; they may be a class: vector.outside"
    yield Choice("dataset.classes", classes, f"values of {attribute} in {counted(len(files), 'file')}", other)


def _named(value: str, attribute: str) -> str:
    """Return a name of a class whose value may be no word, as `1` or `yes`."""
    return value if len(value) > 3 and re.search(r"[^\W\d]", value) else attribute


def _columns(files: Sequence[Path]) -> dict[str, Counter[str]]:
    """Return how often each value of each attribute occurs."""
    with polygon_packages():
        from segmenter.extras.vectors.features import VectorFile
        from segmenter.extras.vectors.rule import as_text
    columns: dict[str, Counter[str]] = {}
    for file in files:
        for name, values in VectorFile(file, None).attributes().items():
            texts = (text for value in values.tolist() if (text := as_text(value)) is not None)
            columns.setdefault(name, Counter()).update(texts)
    return columns
