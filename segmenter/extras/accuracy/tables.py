"""Plain tables of a sample: points with stratum, mapped and reference class, and the area of each stratum.

points.csv: stratum,mapped,reference[,pixel_area]     a row for each point; no reference: not labelled
areas.csv:  stratum,area[,pixels]                     a row for each stratum
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.base.errors import DatasetError, counted, shortened
from segmenter.base.files import read_regular
from segmenter.extras.accuracy.estimators import Sample
from segmenter.pages.parts import percent

_MOST = 1 << 28
"""Bytes of a table: some millions of points."""


@dataclass(frozen=True)
class Points:
    """Points as they are read: a text for each of `name`, stratum, mapped class and reference class.

    Attributes:
        name: of each point in messages.
        size: area of each point's pixel; empty: all are alike.
    """

    name: Sequence[str]
    stratum: Sequence[str]
    mapped: Sequence[str]
    reference: Sequence[str]
    size: Sequence[float] = ()


@dataclass(frozen=True)
class Strata:
    """Strata by name: their areas and, if known, their numbers of pixels."""

    area: dict[str, float]
    pixels: dict[str, int] | None = None


def read_points(path: Path) -> Points:
    """Read a table of points.

    Raises:
        DatasetError: a column is missing, or a pixel's area is no positive number.
    """
    rows = _rows(path, ("stratum", "mapped", "reference"))
    sizes: list[float] = []
    if rows and "pixel_area" in rows[0]:
        sizes = [_number(path, row, line, "pixel_area") for line, row in enumerate(rows, 2)]
    lines = [f"{path}, line {line}" for line in range(2, len(rows) + 2)]
    stratum, mapped, reference = ([row[name] for row in rows] for name in ("stratum", "mapped", "reference"))
    return Points(lines, stratum, mapped, reference, sizes)


def read_areas(path: Path) -> Strata:
    """Read a table of the areas of strata.

    Raises:
        DatasetError: a column is missing, a stratum occurs twice, or an area is no positive number.
    """
    rows = _rows(path, ("stratum", "area"))
    names = [row["stratum"] for row in rows]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise DatasetError(f"{path}: expected each stratum once, got {twice[0]!r} twice; add their areas up")
    area = {row["stratum"]: _number(path, row, line, "area") for line, row in enumerate(rows, 2)}
    if not rows or "pixels" not in rows[0]:
        return Strata(area)
    pixels = {row["stratum"]: round(_number(path, row, line, "pixels")) for line, row in enumerate(rows, 2)}
    return Strata(area, pixels)


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, with stripped texts."""
    try:
        text = read_regular(path, _MOST).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DatasetError(
            f"{path}: expected text in UTF-8, got other bytes; save it anew as UTF-8"
        ) from None
    lines = text.splitlines()
    comma = ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
    try:
        reader = csv.DictReader(lines, delimiter=comma, strict=True)
        fields = [str(name).strip() for name in reader.fieldnames or ()]
        reader.fieldnames = fields
        rows = [{k: (v or "").strip() for k, v in row.items() if k is not None} for row in reader]
    except csv.Error as error:
        raise DatasetError(f"{path}: expected a table of comma-separated values: {error}") from None
    if missing := [name for name in columns if name not in fields]:
        got = shortened(", ".join(fields), 100) or "an empty file"
        raise DatasetError(f"{path}: expected the columns {', '.join(columns)}, got {got}; add {missing[0]}")
    return rows


def _number(path: Path, row: dict[str, str], line: int, column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise DatasetError(
            f"{path}, line {line}: expected {column} to be a number above 0, got {row[column]!r}; "
            "leave out strata without area"
        )
    return value


def sample_of(
    points: Points,
    strata: Strata,
    classes: Sequence[str] = (),
    mapped_area: dict[str, float] | None = None,
    removed: int = 0,
) -> Sample:
    """Return the sample of labelled points.

    Args:
        classes: all classes that may occur, in order; empty: those that occur, strata first.
        removed: points of the sample that are not among `points`.
        mapped_area: area of each class on the map. None: the strata's, if each is a class, else unknown.

    Raises:
        DatasetError: a point's stratum has no area or its class is unknown, or a stratum has too few points.
    """
    labelled = [i for i, text in enumerate(points.reference) if text]
    if not labelled:
        raise DatasetError(
            f"expected points with a reference class, got {counted(len(points.reference), 'point')} without "
            "one; label them in the field `reference`"
        )
    names = tuple(strata.area)
    number = {name: index for index, name in enumerate(names)}
    _check_known(points, points.stratum, range(len(points.stratum)), number, "stratum", "strata with an area")
    of = [(points.mapped[i], points.reference[i]) for i in labelled]
    if mapped_area is None and {mapped for mapped, _ in of} <= number.keys():
        matches = all(points.mapped[i] == points.stratum[i] for i in labelled)
        mapped_area = strata.area if matches else None
    if not classes:
        texts = {text for pair in of for text in pair}
        first = [name for name in names if name in texts or mapped_area is strata.area]
        classes = [*first, *sorted(texts - set(first))]
    index = {name: position for position, name in enumerate(classes)}
    _check_known(points, points.mapped, labelled, index, "mapped class", "classes")
    _check_known(points, points.reference, labelled, index, "reference class", "classes")
    areas = mapped_area or {}
    sample = Sample(
        classes=tuple(classes),
        strata=names,
        area_H=np.array(list(strata.area.values()), np.float64),
        pixels_H=None if strata.pixels is None else np.array([strata.pixels[name] for name in names]),
        stratum_N=np.array([number[points.stratum[i]] for i in labelled], np.intp),
        mapped_N=np.array([index[points.mapped[i]] for i in labelled], np.intp),
        reference_N=np.array([index[points.reference[i]] for i in labelled], np.intp),
        size_N=np.array([points.size[i] if len(points.size) else 1.0 for i in labelled], np.float64),
        mapped_area_K=np.array([areas.get(name, math.nan) for name in classes], np.float64),
        unlabelled=len(points.reference) - len(labelled) + removed,
    )
    _check_points(sample)
    return sample


def _check_known(
    points: Points, texts: Sequence[str], which: Any, known: dict[str, int], what: str, title: str
) -> None:
    for i in which:
        if texts[i] not in known:
            listed = shortened(", ".join(known), 200)
            raise DatasetError(
                f"{points.name[i]}: expected a {what} of the {title} ({listed}), got "
                f"{shortened(texts[i], 60)!r}; correct it, or remove a point that lies outside the map"
            )


def _check_points(sample: Sample) -> None:
    """Refuse strata whose points give no variance: fewer than two, unless they are all of its pixels."""
    for index, count in enumerate(sample.points_H.tolist()):
        pixels = None if sample.pixels_H is None else int(sample.pixels_H[index])
        if pixels is not None and count > pixels:
            raise DatasetError(
                f"stratum {sample.strata[index]}: expected at most its {counted(pixels, 'pixel')}, got "
                f"{counted(count, 'point')}; is the table of areas of another sample?"
            )
        if count >= 2 or count == pixels:
            continue
        share = percent(float(sample.area_H[index]) / sample.total)
        raise DatasetError(
            f"stratum {sample.strata[index]} ({share} of the area): expected two labelled points or more, "
            f"got {count}; label more of its points, or merge it with another stratum"
        )
