"""Plain tables of a sample: points with stratum, mapped and reference class, and the area of each stratum.

points.csv: stratum,mapped,reference[,pixel_area]     a row for each point; no reference: not labelled
areas.csv:  stratum,area[,pixels]                     a row for each stratum
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segmenter.base.errors import DatasetError, counted, shortened
from segmenter.base.files import read_regular
from segmenter.extras.accuracy.estimators import Sample
from segmenter.pages.parts import percent

_MOST = 1 << 28
"""Bytes of a table: some millions of points."""


@dataclass(frozen=True)
class Points:
    """Points as they are read.

    Attributes:
        place: of each point, for messages.
        stratum, mapped, reference: names; no reference is "".
        size: area of each point's pixel.
    """

    place: Sequence[str]
    stratum: Sequence[str]
    mapped: Sequence[str]
    reference: Sequence[str]
    size: Sequence[float]


@dataclass(frozen=True)
class Areas:
    """Area of each stratum and, if known, its number of pixels."""

    area: Mapping[str, float]
    pixels: Mapping[str, int] | None = None


def read_points(path: Path) -> Points:
    """Read a table of points.

    Raises:
        DatasetError: a column is missing, or a pixel's area is no positive number.
    """
    rows = _rows(path, ("stratum", "mapped", "reference"))
    sized = bool(rows) and "pixel_area" in rows[0]
    size = [_number(path, row, "pixel_area") if sized else 1.0 for row in rows]
    stratum, mapped, reference = ([row[name] for row in rows] for name in ("stratum", "mapped", "reference"))
    return Points([f"{path}, line {row['']}" for row in rows], stratum, mapped, reference, size)


def read_areas(path: Path) -> Areas:
    """Read a table of the areas of strata.

    Raises:
        DatasetError: a column is missing, a stratum occurs twice, or an area is no positive number.
    """
    rows = _rows(path, ("stratum", "area"))
    names = [row["stratum"] for row in rows]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DatasetError(
            path,
            expected="each stratum once",
            got=f"{shortened(twice[0], 60)!r} again",
            remedy="add the areas up",
        )
    area = {row["stratum"]: _number(path, row, "area") for row in rows}
    if not rows or "pixels" not in rows[0]:
        return Areas(area)
    return Areas(area, {row["stratum"]: round(_number(path, row, "pixels")) for row in rows})


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, with stripped texts; "" is the number of the line."""
    try:
        lines = read_regular(path, _MOST).decode("utf-8-sig").splitlines()
        comma = ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
        reader = csv.DictReader(lines, delimiter=comma, strict=True)
        fields = reader.fieldnames = [str(name).strip() for name in reader.fieldnames or ()]
        rows = [
            {**{name: (row[name] or "").strip() for name in fields}, "": str(reader.line_num)}
            for row in reader
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            path, expected=f"comma-separated values in UTF-8: {error}", remedy="save it anew"
        ) from None
    if missing := [name for name in columns if name not in fields]:
        got = shortened(", ".join(fields), 100) or "an empty file"
        raise DatasetError(
            path, expected=f"the columns {', '.join(columns)}", got=got, remedy=f"add {missing[0]}"
        )
    return rows


def _number(path: Path, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise DatasetError(
            f"{path}, line {row['']}",
            expected=f"{column} to be a number above 0",
            got=f"{shortened(row[column], 60)!r}",
            remedy="correct it, or leave the row out",
        )
    return value


def sample_of(
    points: Points,
    areas: Areas,
    classes: Sequence[str] = (),
    mapped_area: Mapping[str, float] | None = None,
    removed: int = 0,
) -> Sample:
    """Return the sample of labelled points.

    Args:
        classes: all classes that may occur, in order; empty: those that occur, strata first.
        mapped_area: area of each class on the map. None: the strata's, if they are the classes, else unknown.
        removed: points of the sample that are not among `points`.

    Raises:
        DatasetError: a point's stratum has no area, its class is unknown, or a stratum has too few points.
    """
    labelled = [i for i, text in enumerate(points.reference) if text]
    if not labelled:
        raise DatasetError(
            expected="points with a reference class",
            got=f"{counted(len(points.reference), 'point')} without one",
            remedy="label them in the field `reference`",
        )
    strata = tuple(areas.area)
    _check_known(points, points.stratum, range(len(points.stratum)), strata, "stratum with an area")
    if mapped_area is None:
        alike = all(points.mapped[i] == points.stratum[i] for i in labelled)
        mapped_area = areas.area if alike else {}
    if not classes:
        texts = {column[i] for column in (points.mapped, points.reference) for i in labelled}
        first = [name for name in strata if name in texts or name in mapped_area]
        classes = [*first, *sorted(texts - set(first))]
    _check_known(points, points.mapped, labelled, classes, "mapped class")
    _check_known(points, points.reference, labelled, classes, "reference class")
    sample = Sample(
        classes=tuple(classes),
        strata=strata,
        area_H=np.array([areas.area[name] for name in strata], np.float64),
        pixels_H=None if areas.pixels is None else np.array([areas.pixels[name] for name in strata]),
        stratum_N=np.array([strata.index(points.stratum[i]) for i in labelled], np.intp),
        mapped_N=np.array([classes.index(points.mapped[i]) for i in labelled], np.intp),
        reference_N=np.array([classes.index(points.reference[i]) for i in labelled], np.intp),
        size_N=np.array([points.size[i] for i in labelled], np.float64),
        mapped_area_K=np.array([mapped_area.get(name, math.nan) for name in classes], np.float64),
        unlabelled=len(points.reference) - len(labelled) + removed,
    )
    _check_points(sample)
    return sample


def _check_known(
    points: Points, texts: Sequence[str], which: Iterable[int], known: Sequence[str], what: str
) -> None:
    names = set(known)
    for i in which:
        if texts[i] not in names:
            raise DatasetError(
                points.place[i],
                expected=f"a {what} ({shortened(', '.join(known), 200)})",
                got=f"{shortened(texts[i], 60)!r}",
                remedy="correct it, or remove a point that lies outside the map",
            )


def _check_points(sample: Sample) -> None:
    """Refuse strata whose points give no variance: fewer than two, unless they are all of its pixels."""
    for index, count in enumerate(sample.points_H.tolist()):
        pixels = None if sample.pixels_H is None else int(sample.pixels_H[index])
        if (count < 2 and count != pixels) or (pixels is not None and count > pixels):
            share = percent(float(sample.area_H[index]) / sample.total)
            most = "" if pixels is None else f" and at most {pixels:,}, its pixels"
            raise DatasetError(
                f"stratum {shortened(sample.strata[index], 60)} ({share} of the area)",
                expected=f"at least 2 labelled points{most}",
                got=count,
                remedy="label more of them, or merge it with another",
            )
