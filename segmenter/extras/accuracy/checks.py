"""Checks of labelled points: each once, at its place, with the weight and class that were drawn."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, RasterError, counted, shorten
from segmenter.extras.accuracy.points import centres
from segmenter.extras.vector_files.database import database
from segmenter.extras.written_map import WrittenMap
from segmenter.grid.geometry import Window
from segmenter.raster.polygons import crs_of

Fields = Mapping[str, NDArray[Any]]
"""Fields of a layer by name, with `fid` and, as WKB, `geometry`."""
_EXACT = 1e-6
"""Relative deviation of weights that is rounding."""
_NEAR = 0.05
"""The same where some pixels are drawn for certain, by classes of pixel size."""


def check_points(path: Path, found: Fields, drawn: int) -> list[int]:
    """Return the number of each point; refuse points that were added, copied or moved, and emptied cells.

    Args:
        found: fields of the layer `points`.
        drawn: number of points that were drawn.

    Raises:
        DatasetError: naming the first.
    """
    fids = found["fid"].tolist()
    numbers = np.asarray(found.get("id", found["fid"]), np.float64)
    size = np.asarray(found["pixel_area"], np.float64)
    for fid, number, area in zip(fids, numbers.tolist(), size.tolist(), strict=True):
        if number != number or not 0 < area < np.inf:
            raise DatasetError(
                f"{path}, point {fid}",
                "has no number or no area, so that the file was edited",
                remedy="remove points that were added",
            )
        if "id" in found and not (1 <= number <= drawn and number == int(number)):
            raise DatasetError(
                f"{path}, point {fid}",
                expected=f"an id from 1 to {drawn}, the number of points drawn",
                got=f"{number:g}",
                remedy="remove points that were added",
            )
    check_once([f"{path}, point {fid}" for fid in fids], [f"id {number:g}" for number in numbers.tolist()])
    if all(name in found for name in ("map", "row", "col")):
        _check_pixels(path, found)
    _check_places(path, found)
    return [int(number) for number in numbers]


def check_once(places: Sequence[str], keys: Sequence[str]) -> None:
    """Refuse a key that occurs twice: the second row is a copy.

    Raises:
        DatasetError: naming its place and that of the first.
    """
    first: dict[str, str] = {}
    for place, key in zip(places, keys, strict=True):
        if (other := first.setdefault(key, place)) is not place:
            raise DatasetError(
                place,
                expected="each point once, as it was drawn",
                got=f"{key}, as {other} has",
                remedy="remove the copy, or undo the edit",
            )


def _check_pixels(path: Path, found: Fields) -> None:
    """Refuse points without a map, row or column, and two points of one pixel."""
    cells = [np.asarray(found[name], np.float64) for name in ("row", "col")]
    keys = []
    for fid, name, row, col in zip(
        found["fid"].tolist(), found["map"], *(each.tolist() for each in cells), strict=True
    ):
        for what, value in (("row", row), ("col", col)):
            if not (0 <= value < np.inf and value == int(value)):
                raise _empty_error(path, fid, what, value)
        if name is None or name != name or not str(name).strip():
            raise _empty_error(path, fid, "map", None)
        keys.append(f"the pixel in row {row:.0f}, column {col:.0f} of {name}")
    check_once([f"{path}, point {fid}" for fid in found["fid"].tolist()], keys)


def _empty_error(path: Path, fid: int, field: str, value: float | None) -> DatasetError:
    return DatasetError(
        f"{path}, point {fid}",
        expected=f"the field {field} as it was drawn",
        got="an empty cell" if value is None or value != value else f"{value:g}",
        remedy="undo the edit, or remove the point",
    )


def _check_places(path: Path, found: Fields) -> None:
    """Refuse points that were moved: their labels are of other pixels than those that were drawn."""
    if "x" not in found or "y" not in found:  # of an earlier version
        return
    geometry_N = shapely.from_wkb(found["geometry"])
    here_N2 = np.stack([shapely.get_x(geometry_N), shapely.get_y(geometry_N)], axis=1)
    drawn_N2 = np.stack([found["x"], found["y"]], axis=1).astype(np.float64)
    _check_near(path, found, here_N2, drawn_N2, "move it back, or remove it")


def _check_near(
    path: Path, found: Fields, here_N2: NDArray[np.float64], drawn_N2: NDArray[np.float64], remedy: str
) -> None:
    same_N = np.isclose(here_N2, drawn_N2, rtol=1e-9, atol=1e-9).all(axis=1)
    for number in np.flatnonzero(~same_N)[:1]:
        at, drawn = (f"{x:.10g}, {y:.10g}" for x, y in (here_N2[number], drawn_N2[number]))
        raise DatasetError(
            f"{path}, point {found['fid'][number]}",
            expected=f"it where it was drawn, at {drawn}",
            got=at,
            remedy=remedy,
        )


def check_weights(
    path: Path,
    found: Fields,
    stratum: Sequence[str],
    probability: NDArray[np.float64],
    strata: Mapping[str, tuple[float, int]],
) -> None:
    """Refuse points whose pixel area or probability is not that of a draw by area.

    Args:
        probability: (N,) with which each point's pixel was drawn.
        strata: area of each stratum and the number of its points that were drawn.

    Raises:
        DatasetError: naming the first point, or the stratum.
    """
    fids, places = found["fid"].tolist(), defaultdict[str, list[int]](list)
    for place, name in enumerate(stratum):
        places[name].append(place)
    size = np.asarray(found["pixel_area"], np.float64)
    for fid, value in zip(fids, probability.tolist(), strict=True):
        if not 0 < value <= 1:
            raise _empty_error(path, fid, "probability", value)
    for name, (area, drawn) in strata.items():
        of = np.array(places[name], np.intp)
        some = of[probability[of] < 1]
        rate = probability[some] / size[some]
        usual = float(np.median(rate)) if len(some) else np.inf
        for place in some[np.abs(rate / usual - 1) > _EXACT][:1].tolist():
            raise DatasetError(
                f"{path}, point {fids[place]}",
                expected=f"probability and pixel_area in the ratio of others of {shorten(name, 60)}",
                got=f"{probability[place]:.6g} and {size[place]:.6g}",
                remedy="undo the edit, or remove the point",
            )
        certain = len(of) > len(some)
        whole = float(size[of[probability[of] == 1]].sum()) + len(some) / usual
        if len(of) == drawn and abs(whole / area - 1) > (_NEAR if certain else _EXACT):
            raise DatasetError(
                f"{path}: stratum {shorten(name, 60)}",
                expected=f"points that stand for its area of {area:.6g}",
                got=f"{whole:.6g}, by their probability and pixel_area",
                remedy="undo the edit of these fields",
            )


def check_counts(path: Path, layer: str, read: int) -> None:
    """Refuse a layer with more rows than its file counts: GDAL does not read those that were put in behind
    it.

    Raises:
        DatasetError: rows and count differ.
        OSError: the database is incomplete.
    """
    try:
        with database(path) as file:
            rows = int(file.execute(f'SELECT count(*) FROM "{layer}"').fetchone()[0])
    except sqlite3.Error as error:
        raise OSError(str(error)) from None
    if rows != read:
        raise DatasetError(
            f"{path}: layer {layer}",
            expected=f"the {counted(read, 'row')} that the file counts",
            got=rows,
            remedy="remove points that were added",
        )


# ------------------------------------------------------------------------------------------------ the maps


def check_maps(
    path: Path, found: Fields, crs: str | None, paths: Mapping[str, str], given: Sequence[Path]
) -> list[str]:
    """Compare points with their maps; return a line if some are not at hand.

    Args:
        crs: of the points.
        paths: of the maps by their names in `map`, from the folder of the points.
        given: maps, and folders of maps, to look in, too.

    Raises:
        DatasetError: a point lies elsewhere than its row and column, or the map has another class there.
    """
    apart = []
    names = np.array([str(name).strip() for name in found["map"]], object)
    for name in sorted(set(names)):
        file = _at_hand(path, name, paths, given)
        of = np.flatnonzero(names == name)
        part = {field: found[field][of] for field in found if found[field] is not None}
        if file is None or not _is_same(path, part, crs, file):
            apart.append(name)
    if not apart:
        return []
    more = f" and {len(apart) - 3} more" if len(apart) > 3 else ""
    return [
        f"{path}: `mapped` not compared with the maps, which are not at hand: {', '.join(apart[:3])}{more}"
    ]


def _at_hand(path: Path, name: str, paths: Mapping[str, str], given: Sequence[Path]) -> Path | None:
    beside = [path.parent / end for end in (paths.get(name), name) if end]
    own = [each for each in given if str(each.absolute()).endswith(f"/{name}")]
    inside = [each / Path(name).name for each in given]
    inside = [each for each in inside if str(each.absolute()).endswith(f"/{name}")]
    return next((each for each in (*beside, *own, *inside) if each.is_file()), None)


def _is_same(path: Path, found: Fields, crs: str | None, file: Path) -> bool:
    """Return False if a map has other classes, as those of changes, or cannot be read."""
    try:
        one = WrittenMap(file, with_confidence=False)
    except RasterError:
        return False
    with one:
        names = [each.name for each in one.classes]
        rows, cols = (found[name].astype(np.int64) for name in ("row", "col"))
        if not set(map(str, found["mapped"])) - {"None", ""} <= set(names):
            return False
        if "x" in found and "y" in found:
            drawn_N2 = np.stack([found["x"], found["y"]], axis=1).astype(np.float64)
            there_N2 = centres(one.info, rows, cols, None if crs is None else crs_of(crs))
            remedy = f"undo the edit of row and col, or is {file} another map?"
            _check_near(path, found, drawn_N2, there_N2, remedy)
        for place in np.lexsort((cols, rows)).tolist():
            _check_class(
                f"{path}, point {found['fid'][place]}",
                one,
                (rows[place], cols[place]),
                found["mapped"][place],
            )
    return True


def _check_class(point: str, one: WrittenMap, pixel: tuple[int, int], mapped: Any) -> None:
    (row, col), size = map(int, pixel), one.info.size
    number = -1
    if row < size.height and col < size.width:
        number = int(one.read(Window(row, col, 1, 1))[0][0, 0])
    names = [each.name for each in one.classes]
    there = names[number] if 0 <= number < len(names) else "no data"
    if str(mapped).strip() != there:
        raise DatasetError(
            point,
            expected=f"mapped {there!r}, as {one.info.path} has in row {row}, column {col}",
            got=f"{shorten(str(mapped or ''), 60)!r}",
            remedy="undo the edit; if the map was made anew, draw a new sample of it",
        )
