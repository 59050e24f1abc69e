"""Labelled points in a GeoPackage of `accuracy sample`, whatever program labelled them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, SegmenterError, counted, shortened
from segmenter.extras.accuracy.estimators import Sample
from segmenter.extras.accuracy.points import CLASSES, POINTS, STRATA
from segmenter.extras.accuracy.tables import Points, Strata, sample_of
from segmenter.extras.vectors.features import check_kind, check_tables
from segmenter.extras.vectors.library import pyogrio

_LAYERS = {
    POINTS: ("stratum", "mapped", "reference", "pixel_area"),
    STRATA: ("stratum", "area", "unit", "pixels", "points"),
    CLASSES: ("class", "area", "unit"),
}


def read_labelled(path: Path, areas: Strata | None, unit: str | None) -> tuple[Sample, str]:
    """Return the labelled points, and the unit of the areas.

    Args:
        areas: strata to take in place of the file's.
        unit: their unit.

    Raises:
        DatasetError: the file is damaged or lacks a layer or column, or a point does not fit the others.
    """
    check_kind(path)
    try:
        layers = {name: _layer(path, name, columns) for name, columns in _LAYERS.items()}
    except (RuntimeError, OSError, ValueError, UnicodeDecodeError) as error:
        why = shortened(" ".join(str(error).split()), 200)
        raise DatasetError(f"{path}: cannot be read: {why}; is the file whole?") from None
    points = _points(path, layers[POINTS])
    strata, classes = layers[STRATA], layers[CLASSES]
    names = _texts(strata["stratum"])
    drawn = dict(zip(names, strata["points"].tolist(), strict=True))
    if areas is None:
        pixels = dict(zip(names, strata["pixels"].tolist(), strict=True))
        areas = Strata(_areas(path, names, strata["area"]), pixels)
        unit = next(iter(_texts(strata["unit"])), "")
    removed = _check_drawn(path, points, drawn)
    known = _texts(classes["class"])
    mapped_area = dict(zip(known, classes["area"].tolist(), strict=True))
    sample = sample_of(points, areas, known, mapped_area, removed)
    return sample, unit or ""


def _layer(path: Path, layer: str, columns: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return columns of a layer, and `fid`."""
    check_tables(path, layer)
    there = [str(name) for name, _ in pyogrio.list_layers(path)]
    if layer not in there:
        raise DatasetError(
            f"{path}: expected the layer {layer} of `accuracy sample`, got {', '.join(there) or 'none'}; "
            "label a copy of the whole file, or give tables (points.csv --areas areas.csv)"
        )
    meta, fids, _, values = pyogrio.raw.read(path, layer=layer, return_fids=True, read_geometry=False)
    found = dict(zip((str(name) for name in meta["fields"]), values, strict=True))
    if missing := [name for name in columns if name not in found]:
        raise DatasetError(
            f"{path}: layer {layer}: expected the field {missing[0]}, got {', '.join(found) or 'none'}; "
            "take the names of `accuracy sample`"
        )
    return {**{name: found[name] for name in columns}, "fid": np.asarray(fids)}


def _texts(values: NDArray[Any]) -> list[str]:
    return ["" if value is None or value != value else str(value).strip() for value in values]


def _points(path: Path, layer: dict[str, NDArray[Any]]) -> Points:
    size = np.asarray(layer["pixel_area"], np.float64)
    labelled = np.array([bool(text) for text in _texts(layer["reference"])], np.bool_)
    if (wrong := labelled & ~(np.isfinite(size) & (size > 0))).any():
        fid = layer["fid"][np.argmax(wrong)]
        raise DatasetError(
            f"{path}, point {fid}: expected the area of its pixel, got none; remove points that were added"
        )
    stratum, mapped, reference = (_texts(layer[name]) for name in ("stratum", "mapped", "reference"))
    return Points([f"{path}, point {fid}" for fid in layer["fid"]], stratum, mapped, reference, size.tolist())


def _areas(path: Path, names: list[str], area_H: NDArray[Any]) -> dict[str, float]:
    areas = dict(zip(names, np.asarray(area_H, np.float64).tolist(), strict=True))
    if len(areas) < len(names) or not all(0 < area < float("inf") for area in areas.values()):
        raise DatasetError(f"{path}: layer {STRATA}: expected strata with an area each; is the file whole?")
    return areas


def _check_drawn(path: Path, points: Points, drawn: dict[str, int]) -> int:
    """Refuse points that were added by hand; return the number of those that were removed."""
    there = Counter(points.stratum)
    for name, count in drawn.items():
        if there[name] > count:
            raise SegmenterError(
                f"{path}: stratum {name}: expected the {counted(count, 'point')} that were drawn, got "
                f"{there[name]}; remove those that were added"
            )
    return sum(drawn.values()) - sum(there[name] for name in drawn)
