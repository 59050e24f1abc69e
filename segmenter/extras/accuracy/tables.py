"""Plain tables of a sample: points with stratum, mapped and reference class, and the area of each stratum.

points.csv: stratum,mapped,reference[,pixel_area[,probability]]
                                                      a row for each point; no reference: not labelled
areas.csv:  stratum,area[,pixels]                     a row for each stratum
"""

from __future__ import annotations

import contextlib
import csv
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, counted, shorten
from segmenter.base.files import read_regular
from segmenter.extras.accuracy.checks import check_counts, check_maps, check_once, check_points, check_weights
from segmenter.extras.accuracy.estimators import PointSample, Unit
from segmenter.extras.accuracy.points import CLASSES, MAPS, POINTS, STRATA
from segmenter.extras.vector_files.database import UNCLEAR, undo_unfinished
from segmenter.extras.vector_files.features import check_kind, check_tables
from segmenter.extras.vector_files.library import pyogrio
from segmenter.pages.parts import percent

_LAYERS = {
    POINTS: ("stratum", "mapped", "reference", "pixel_area"),
    STRATA: ("stratum", "area", "unit", "pixels", "points"),
    CLASSES: ("class", "area"),
}
"""Layers, and the fields that are read; the first is a text, as are `mapped`, `reference` and `unit`."""


def compare_with_maps(path: Path, given: Sequence[Path]) -> list[str]:
    """Compare points with their maps where these are at hand; return lines about those that are not.

    Args:
        given: maps, and folders of maps, to look in, too.

    Raises:
        DatasetError: a point is not as its map is there, or the file is damaged.
    """
    with _reading(path):
        found = _layer(path, POINTS, ("mapped",))
        if not all(name in found for name in ("map", "row", "col")):
            return []
        crs = pyogrio.read_info(path, layer=POINTS)["crs"]
        paths = {}
        if MAPS in [str(name) for name, _ in pyogrio.list_layers(path)]:
            maps = _layer(path, MAPS, ("map", "path"))
            paths = dict(zip(_texts(maps["map"]), _texts(maps["path"]), strict=True))
    return check_maps(path, found, crs, paths, given)


def maps_of(path: Path) -> dict[str, list[tuple[int, int, str]]]:
    """Return the maps that points were drawn from, by name: row, column and mapped class of each point."""
    layer = _layer(path, POINTS, ("map", "row", "col", "mapped"))
    found: dict[str, list[tuple[int, int, str]]] = {}
    for name, row, col, mapped in zip(
        _texts(layer["map"]), layer["row"], layer["col"], _texts(layer["mapped"]), strict=True
    ):
        found.setdefault(name, []).append((int(row), int(col), mapped))
    return found


def _labels(path: Path, ids: list[int]) -> list[str]:
    """Return the label of each point in a file of AcATaMa, which has its `ID` and `Label`; "" without one.

    Raises:
        DatasetError: the file is damaged, lacks a field, or has points of another sample.
    """
    check_kind(path)
    layer = str(pyogrio.list_layers(path)[0, 0])
    found = _layer(path, layer, ("ID", "Label"))
    numbers = [int(number) for number in found["ID"]]
    check_once([f"{path}, feature {fid}" for fid in found["fid"]], [f"ID {number}" for number in numbers])
    labels = dict(zip(numbers, _texts(found["Label"]), strict=True))
    if strange := sorted(labels.keys() - set(ids)):
        raise DatasetError(
            path, expected="points of the sample", got=f"ID {strange[0]}", remedy="is it of another sample?"
        )
    return [labels.get(number, "") for number in ids]


def read_labelled(
    path: Path, areas: Areas | None, unit: str | None, labels: Path | None = None
) -> tuple[PointSample, str]:
    """Return the labelled points, and the unit of the areas.

    Args:
        areas: strata to take in place of the file's.
        labels: file of AcATaMa with the labels; None: they are in `reference`.

    Raises:
        DatasetError: a file is damaged or lacks a layer or field, points were copied, moved or added, or a
        point
            does not fit the others.
    """
    check_kind(path)
    with _reading(path):
        found, strata, classes = (_layer(path, *each) for each in _LAYERS.items())
        size = np.asarray(found["pixel_area"], np.float64)
        area_H, area_K = (np.asarray(layer["area"], np.float64) for layer in (strata, classes))
        pixels, drawn = ([int(count) for count in strata[name]] for name in ("pixels", "points"))
        ids = check_points(path, found, sum(drawn))
        labelled = found["reference"] if labels is None else _labels(labels, ids)
    stratum, mapped, reference = map(_texts, (found["stratum"], found["mapped"], labelled))
    places = [f"{path}, point {number}" for number in ids]
    names, known = _texts(strata["stratum"]), _texts(classes["class"])
    counts = dict(zip(names, drawn, strict=True))
    missing = _missing(path, stratum, counts)
    if not ((area_H > 0).all() and np.isfinite(area_H).all()):
        raise DatasetError(
            f"{path}: layer {STRATA}", expected="an area of each stratum", remedy="is it whole?"
        )
    if not known:
        raise DatasetError(
            f"{path}: layer {CLASSES}", expected="the classes of the map", got="none", remedy="is it whole?"
        )
    probability = None
    if "drawn" in strata:
        there = Counter(stratum)
        with _reading(path):
            given = np.asarray(found["probability"], np.float64)
        pairs = zip(area_H.tolist(), drawn, strict=True)
        check_weights(path, found, stratum, given, dict(zip(names, pairs, strict=True)))
        probability = [
            chance * there[name] / counts.get(name, 1)  # what has no stratum is refused below
            for chance, name in zip(given.tolist(), stratum, strict=True)
        ]
    mapped_area = None
    if areas is None:
        mapped_area = dict(zip(known, area_K.tolist(), strict=True))
        of_pixels = dict(zip(names, pixels, strict=True))
        areas = Areas(dict(zip(names, area_H.tolist(), strict=True)), of_pixels)
        unit = next(iter(_texts(strata["unit"])), "")
        if unit not in ("", *get_args(Unit)):
            raise DatasetError(
                f"{path}: layer {STRATA}", expected=f"unit {', '.join(get_args(Unit))}", got=unit
            )
    points = PointTable(places, stratum, mapped, reference, size.tolist(), probability)
    sample = sample_of(points, areas, known, mapped_area, missing)
    return sample, unit or ""


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise faults of a GeoPackage's content as a DatasetError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # GDAL's remarks on what is refused below
            yield
    except (RuntimeError, OSError, ValueError, TypeError, OverflowError) as error:
        why = shorten(" ".join(str(error).split()), 200)
        raise DatasetError(
            path, f"cannot be read: {why}", remedy="is it whole, as `accuracy sample` wrote it?"
        ) from None


def _layer(path: Path, layer: str, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return fields of a layer, its `geometry` as WKB (None of a table), and `fid`."""
    undo_unfinished(path)
    check_tables(path, layer)
    there = [str(name) for name, _ in pyogrio.list_layers(path)]
    if layer not in there:
        got = shorten(", ".join(there), 100) or "none"
        raise DatasetError(
            path,
            expected=f"the layer {layer}",
            got=got,
            remedy="label a copy of the whole file, or take tables (points.csv --areas areas.csv)",
        )
    meta, fids, wkb, values = pyogrio.raw.read(path, layer=layer, return_fids=True)
    check_counts(path, layer, len(fids))
    fields = dict(zip(map(str, meta["fields"]), values, strict=True))
    if missing := [name for name in columns if name not in fields]:
        got = shorten(", ".join(fields), 100) or "none"
        raise DatasetError(
            f"{path}: layer {layer}", expected=f"the field {missing[0]}", got=got, remedy="name it so"
        )
    return {**fields, "geometry": wkb, "fid": np.asarray(fids)}


def column_of(path: Path, layer: str, column: str) -> list[str]:
    """Return the texts of a field of a table.

    Raises:
        DatasetError: the file is damaged, or lacks the table or field.
    """
    with _reading(path):
        return _texts(_layer(path, layer, (column,))[column])


def _texts(values: Iterable[Any]) -> list[str]:
    return [
        ""
        if value is None or value != value
        else _code(str(value))
        if isinstance(value, float)
        else str(value).strip()
        for value in values
    ]


def _code(text: str) -> str:
    """Return a text, of 3.0 only the 3: codes in a column with empty cells are floats in pandas."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def _missing(path: Path, stratum: list[str], drawn: dict[str, int]) -> int:
    """Return how many points were removed; refuse points that were added, which are not random."""
    there = Counter(stratum)
    for name, count in drawn.items():
        if there[name] > count:
            raise DatasetError(
                f"{path}: stratum {shorten(name, 60)}",
                expected=f"the {count} points drawn in it",
                got=there[name],
                remedy="remove points that were added",
            )
    return sum(drawn.values()) - sum(there[name] for name in drawn)


_MOST = 1 << 28
"""Bytes of a table: some millions of points."""
_EMPTY = {"NA", "NaN", "nan", "NULL"}
"""Texts that R, NumPy and databases write into a cell without a value."""


@dataclass(frozen=True)
class PointTable:
    """Points as they are read.

    Attributes:
        size: area of each point's pixel.
        probability: with which each point's pixel was drawn; None: alike for all pixels of a stratum.
    """

    place: Sequence[str]
    stratum: Sequence[str]
    mapped: Sequence[str]
    reference: Sequence[str]
    size: Sequence[float]
    probability: Sequence[float] | None = None


@dataclass(frozen=True)
class Areas:
    """Area of each stratum and, if known, its number of pixels."""

    area: Mapping[str, float]
    pixels: Mapping[str, int] | None = None


def read_points(path: Path) -> PointTable:
    """Read a table of points.

    Raises:
        DatasetError: a column is missing, a pixel's area or probability is no positive number, or an id
        occurs
            twice.
    """
    rows = _rows(path, ("stratum", "mapped", "reference"))
    sized = bool(rows) and "pixel_area" in rows[0]
    size = [_number(path, row, "pixel_area") if sized else 1.0 for row in rows]
    stratum, mapped, reference = (
        [_code(row[name]) for row in rows] for name in ("stratum", "mapped", "reference")
    )
    places = [f"{path}, line {row['']}" for row in rows]
    if rows and "id" in rows[0]:
        numbered = [(place, f"id {row['id']}") for place, row in zip(places, rows, strict=True) if row["id"]]
        check_once([place for place, _ in numbered], [key for _, key in numbered])
    probability = None
    if rows and "probability" in rows[0]:
        probability = [_number(path, row, "probability", most=1.0) for row in rows]
    return PointTable(places, stratum, mapped, reference, size, probability)


def read_areas(path: Path) -> Areas:
    """Read a table of the areas of strata.

    Raises:
        DatasetError: a column is missing, a stratum occurs twice, or an area is no positive number.
    """
    rows = _rows(path, ("stratum", "area"))
    names = [_code(row["stratum"]) for row in rows]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DatasetError(
            path,
            expected="each stratum once",
            got=f"{shorten(twice[0], 60)!r} again",
            remedy="add the areas up",
        )
    area = {name: _number(path, row, "area") for name, row in zip(names, rows, strict=True)}
    if not rows or "pixels" not in rows[0]:
        return Areas(area)
    pixels = [round(_number(path, row, "pixels")) for row in rows]
    return Areas(area, dict(zip(names, pixels, strict=True)))


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file, with stripped texts; "" is the number of the line."""
    try:
        lines = read_regular(path, _MOST).decode("utf-8-sig").splitlines()
        comma = ";" if lines and lines[0].count(";") > lines[0].count(",") else ","
        reader = csv.DictReader(lines, delimiter=comma, strict=True)
        fields = reader.fieldnames = [str(name).strip() for name in reader.fieldnames or ()]
        rows = []
        for row in reader:
            if any(row.pop(None, ())):  # a decimal comma, or a name with a comma, that is not quoted
                raise csv.Error(f"line {reader.line_num} has more cells than titles")
            cells = {name: (row[name] or "").strip() for name in fields}
            cells = {name: "" if text in _EMPTY else text for name, text in cells.items()}
            if any(cells.values()):  # spreadsheets may end with empty rows
                rows.append(cells | {"": str(reader.line_num)})
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            path, expected=f"comma-separated values in UTF-8: {error}", remedy="save it anew"
        ) from None
    if missing := [name for name in columns if fields.count(name) != 1]:
        got = shorten(", ".join(fields), 100) or "an empty file"
        raise DatasetError(
            path,
            expected=f"the columns {', '.join(columns)}",
            got=got,
            remedy=f"have {missing[0]} once",
        )
    return rows


def _number(path: Path, row: Mapping[str, str], column: str, most: float = math.inf) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf and value <= most):
        up_to = "" if most == math.inf else f", at most {most:g}"
        raise DatasetError(
            f"{path}, line {row['']}",
            expected=f"{column} to be a number above 0{up_to}",
            got=f"{shorten(row[column], 60)!r}",
            remedy="correct it, or leave the row out",
        )
    return value


def sample_of(
    points: PointTable,
    areas: Areas,
    classes: Sequence[str] = (),
    mapped_area: Mapping[str, float] | None = None,
    removed: int = 0,
) -> PointSample:
    """Return the sample of labelled points.

    Args:
        classes: all classes that may occur, in order; empty: those that occur, strata first.
        mapped_area: area of each class on the map. None: the strata's, if they are the classes, else unknown.
        removed: points of the sample that are not among `points`.

    Raises:
        DatasetError: a point's stratum has no area, its class is unknown, or a stratum has too few points.
    """
    labelled = [i for i, text in enumerate(points.reference) if text and (text != UNCLEAR or text in classes)]
    if not labelled:
        raise DatasetError(
            expected="points with a reference class",
            got=f"{counted(len(points.reference), 'point')} without one",
            remedy="label them in the field `reference`",
        )
    strata = tuple(areas.area)
    number_of_stratum = {name: h for h, name in enumerate(strata)}
    _check_known(points, points.stratum, range(len(points.stratum)), strata, "stratum with an area")
    if mapped_area is None:
        same = all(points.mapped[i] == points.stratum[i] for i in labelled)
        mapped_area = areas.area if same else {}
    if not classes:
        texts = {column[i] for column in (points.mapped, points.reference) for i in labelled} - {""}
        first = [name for name in strata if name in texts or name in mapped_area]
        classes = [*first, *sorted(texts - set(first))]
        alike = {name.casefold(): name for name in reversed(classes)}
        if twice := [(name, alike[name.casefold()]) for name in classes if alike[name.casefold()] != name]:
            raise DatasetError(
                expected="each class in one spelling",
                got=f"{shorten(twice[0][0], 60)!r} and {shorten(twice[0][1], 60)!r}",
                remedy="write them alike",
            )
    _check_known(points, points.mapped, labelled, classes, "mapped class")
    _check_known(points, points.reference, labelled, classes, "reference class")
    sample = PointSample(
        classes=tuple(classes),
        strata=strata,
        area_H=np.array([areas.area[name] for name in strata], np.float64),
        pixels_H=None if areas.pixels is None else np.array([areas.pixels[name] for name in strata]),
        stratum_N=np.array([number_of_stratum[points.stratum[i]] for i in labelled], np.intp),
        mapped_N=np.array([classes.index(points.mapped[i]) for i in labelled], np.intp),
        reference_N=np.array([classes.index(points.reference[i]) for i in labelled], np.intp),
        size_N=np.array([points.size[i] for i in labelled], np.float64),
        mapped_area_K=np.array([mapped_area.get(name, math.nan) for name in classes], np.float64),
        unlabelled=len(points.reference) - len(labelled) + removed,
        probability_N=_probability(points, labelled),
    )
    _check_points(sample)
    return sample


def _probability(points: PointTable, labelled: list[int]) -> NDArray[np.float64] | None:
    """Return the probability with which the pixel of each labelled point was drawn and labelled."""
    if points.probability is None:
        return None
    there, left = Counter(points.stratum), Counter(points.stratum[i] for i in labelled)
    share = {name: left[name] / count for name, count in there.items()}
    return np.array([points.probability[i] * share[points.stratum[i]] for i in labelled], np.float64)


def _check_known(
    points: PointTable, texts: Sequence[str], which: Iterable[int], known: Sequence[str], what: str
) -> None:
    names = set(known)
    for i in which:
        if texts[i] not in names:
            raise DatasetError(
                points.place[i],
                expected=f"a {what} ({shorten(', '.join(known), 200)})",
                got=f"{shorten(texts[i], 60)!r}",
                remedy="correct it, or remove a point that lies outside the map",
            )


def _check_points(sample: PointSample) -> None:
    """Refuse strata whose points give no variance: fewer than two, unless they are all of its pixels."""
    for index, count in enumerate(sample.points_H.tolist()):
        pixels = None if sample.pixels_H is None else int(sample.pixels_H[index])
        if (count < 2 and count != pixels) or (pixels is not None and count > pixels):
            share = percent(float(sample.area_H[index]) / sample.total)
            most = "" if pixels is None else f" and at most {pixels:,}, its pixels"
            raise DatasetError(
                f"stratum {shorten(sample.strata[index], 60)} ({share} of the area)",
                expected=f"at least 2 labelled points{most}",
                got=count,
                remedy="label more of them, or merge it with another",
            )
