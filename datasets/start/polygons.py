"""Classes of polygon files: the attribute that holds them, its values, and pixels outside all polygons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from segmenter.base.errors import DatasetError, counted
from segmenter.base.invocation import installation
from segmenter.evaluation.drawing import hex_colour
from segmenter.grid.labels import MAX_CLASSES, own_colour

from ..files import few
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
    if len(names) == 1:
        yield Choice("dataset.vector.values", {names[0]: _named(names[0], attribute)}, "the only value")
        names = [_named(names[0], attribute)]
    alone = len(names) == 1
    if alone:
        yield Choice("dataset.vector.outside", _BACKGROUND, "polygons of one class: all else is none of it")
        names = [_BACKGROUND, *names]
    classes = [{"name": name, "colour": hex_colour(own_colour(i))} for i, name in enumerate(names)]
    other = "" if alone else "pixels outside all polygons are ignored; they may be a class: vector.outside"
    yield Choice("dataset.classes", classes, f"values of {attribute} in {counted(len(files), 'file')}", other)


def _named(value: str, attribute: str) -> str:
    """Return a name of a class whose value may be no word, as `1` or `yes`."""
    return value if len(value) > 3 and re.search(r"[^\W\d]", value) else attribute


def _columns(files: Sequence[Path]) -> dict[str, Counter[str]]:
    """Return how often each value of each attribute occurs."""
    try:
        from segmenter.extras.vectors import geoparquet
        from segmenter.extras.vectors.library import pyogrio
        from segmenter.extras.vectors.rule import as_text
    except ModuleNotFoundError as error:
        raise DatasetError(f"polygons need the package {error.name}: {installation('vectors')}") from None
    columns: dict[str, Counter[str]] = {}
    for file in files:
        read: list[tuple[str, Sequence[Any]]] = []
        try:
            if file.suffix.lower() == ".parquet":
                read = [
                    (name, geoparquet.read(file, name)[2].tolist()) for name in geoparquet.header(file).fields
                ]
            else:
                meta, _, _, data = pyogrio.raw.read(file, read_geometry=False)
                read = list(zip(meta["fields"].tolist(), (each.tolist() for each in data), strict=True))
        except (OSError, ValueError, RuntimeError) as error:
            raise DatasetError(file, f"cannot read its polygons: {error}") from None
        for name, values in read:
            texts = (text for value in values if (text := as_text(value)) is not None)
            columns.setdefault(name, Counter()).update(texts)
    return columns
