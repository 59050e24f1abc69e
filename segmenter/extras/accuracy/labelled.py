"""Labelled points in a GeoPackage of `accuracy sample`, whatever program labelled them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import shapely
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, shortened
from segmenter.extras.accuracy.estimators import Sample
from segmenter.extras.accuracy.points import CLASSES, POINTS, STRATA
from segmenter.extras.accuracy.tables import Areas, Points, sample_of
from segmenter.extras.accuracy.units import Unit
from segmenter.extras.vectors.features import check_kind, check_tables
from segmenter.extras.vectors.library import pyogrio

_LAYERS = {
    POINTS: ("stratum", "mapped", "reference", "pixel_area"),
    STRATA: ("stratum", "area", "unit", "pixels", "points"),
    CLASSES: ("class", "area"),
}
"""Layers, and the fields that are read; the first is a text, as are `mapped`, `reference` and `unit`."""


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
    labels = dict(zip(map(int, found["ID"]), _texts(found["Label"]), strict=True))
    if strange := sorted(labels.keys() - set(ids)):
        raise DatasetError(
            path, expected="points of the sample", got=f"ID {strange[0]}", remedy="is it of another sample?"
        )
    return [labels.get(number, "") for number in ids]


def read_labelled(
    path: Path, areas: Areas | None, unit: str | None, labels: Path | None = None
) -> tuple[Sample, str]:
    """Return the labelled points, and the unit of the areas.

    Args:
        areas: strata to take in place of the file's.
        unit: their unit.
        labels: file of AcATaMa with the labels; None: they are in `reference`.

    Raises:
        DatasetError: a file is damaged or lacks a layer or field, points were added, or a point does not
            fit the others.
    """
    check_kind(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # GDAL's remarks on what is refused below
            found, strata, classes = (_layer(path, *each) for each in _LAYERS.items())
        size = np.asarray(found["pixel_area"], np.float64)
        area_H, area_K = (np.asarray(layer["area"], np.float64) for layer in (strata, classes))
        numbers = found.get("id", found["fid"])
        if added := [fid for fid, number in zip(found["fid"], numbers, strict=True) if number != number]:
            raise _added(path, f"point {added[0]}")
        ids = [int(number) for number in numbers]
        _check_places(path, found)
        labelled = found["reference"] if labels is None else _labels(labels, ids)
        pixels, drawn = ([int(count) for count in strata[name]] for name in ("pixels", "points"))
    except (RuntimeError, OSError, ValueError, TypeError, OverflowError) as error:
        why = shortened(" ".join(str(error).split()), 200)
        raise DatasetError(
            path, f"cannot be read: {why}", remedy="is it whole, as `accuracy sample` wrote it?"
        ) from None
    stratum, mapped, reference = map(_texts, (found["stratum"], found["mapped"], labelled))
    places = [f"{path}, point {fid}" for fid in found["fid"]]
    names, known = _texts(strata["stratum"]), _texts(classes["class"])
    missing = _missing(path, stratum, dict(zip(names, drawn, strict=True)))
    if wrong := [fid for fid, area in zip(found["fid"], size, strict=True) if not 0 < area < np.inf]:
        raise _added(path, f"point {wrong[0]}")
    if not ((area_H > 0).all() and np.isfinite(area_H).all()):
        raise DatasetError(
            f"{path}: layer {STRATA}", expected="an area of each stratum", remedy="is it whole?"
        )
    if not known:
        raise DatasetError(
            f"{path}: layer {CLASSES}", expected="the classes of the map", got="none", remedy="is it whole?"
        )
    if areas is None:
        of_pixels = dict(zip(names, pixels, strict=True))
        areas = Areas(dict(zip(names, area_H.tolist(), strict=True)), of_pixels)
        unit = next(iter(_texts(strata["unit"])), "")
        if unit not in ("", *get_args(Unit)):
            raise DatasetError(
                f"{path}: layer {STRATA}", expected=f"unit {', '.join(get_args(Unit))}", got=unit
            )
    points = Points(places, stratum, mapped, reference, size.tolist())
    sample = sample_of(points, areas, known, dict(zip(known, area_K.tolist(), strict=True)), missing)
    return sample, unit or ""


def _added(path: Path, point: str) -> DatasetError:
    return DatasetError(
        f"{path}, {point}",
        expected="points that were drawn",
        got="one without number or area",
        remedy="remove those that were added",
    )


def _check_places(path: Path, found: Mapping[str, NDArray[Any]]) -> None:
    """Refuse points that were moved: their labels are of other pixels than those that were drawn."""
    if "x" not in found or "y" not in found:  # of an earlier version
        return
    geometry_N = shapely.from_wkb(found["geometry"])
    here_N2 = np.stack([shapely.get_x(geometry_N), shapely.get_y(geometry_N)], axis=1)
    drawn_N2 = np.stack([found["x"], found["y"]], axis=1).astype(np.float64)
    same_N = np.isclose(here_N2, drawn_N2, rtol=1e-9, atol=1e-9).all(axis=1)
    for number in np.flatnonzero(~same_N)[:1]:
        at, drawn = (f"{x:.10g}, {y:.10g}" for x, y in (here_N2[number], drawn_N2[number]))
        raise DatasetError(
            f"{path}, point {found['fid'][number]}",
            expected=f"it where it was drawn, at {drawn}",
            got=at,
            remedy="move it back, or remove it",
        )


def _layer(path: Path, layer: str, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return fields of a layer, its `geometry` as WKB (None of a table), and `fid`."""
    check_tables(path, layer)
    there = [str(name) for name, _ in pyogrio.list_layers(path)]
    if layer not in there:
        got = shortened(", ".join(there), 100) or "none"
        raise DatasetError(
            path,
            expected=f"the layer {layer}",
            got=got,
            remedy="label a copy of the whole file, or take tables (points.csv --areas areas.csv)",
        )
    meta, fids, wkb, values = pyogrio.raw.read(path, layer=layer, return_fids=True)
    fields = dict(zip(map(str, meta["fields"]), values, strict=True))
    if missing := [name for name in columns if name not in fields]:
        got = shortened(", ".join(fields), 100) or "none"
        raise DatasetError(
            f"{path}: layer {layer}", expected=f"the field {missing[0]}", got=got, remedy="name it so"
        )
    return {**fields, "geometry": wkb, "fid": np.asarray(fids)}


def _texts(values: Iterable[Any]) -> list[str]:
    return ["" if value is None or value != value else str(value).strip() for value in values]


def _missing(path: Path, stratum: list[str], drawn: dict[str, int]) -> int:
    """Return how many points were removed; refuse points that were added, which are not random."""
    there = Counter(stratum)
    for name, count in drawn.items():
        if there[name] > count:
            raise DatasetError(
                f"{path}: stratum {shortened(name, 60)}",
                expected=f"the {count} points that were drawn",
                got=there[name],
                remedy="remove those that were added",
            )
    return sum(drawn.values()) - sum(there[name] for name in drawn)
