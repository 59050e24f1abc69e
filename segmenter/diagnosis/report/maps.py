"""Small maps in the report that show a class's share in the scenes; the page's script draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segmenter.base.errors import counted
from segmenter.diagnosis.data import Diagnosis, SceneMap
from segmenter.pages.parts import Maps, Named, Paragraph, Section, Table, colour, label, percent, plain

_FEW_MAPS = 4  # up to so many are drawn large


def map_section(diagnosis: Diagnosis) -> Section:
    """Return a small map for each scene or group; a reader chooses the class, the rarest comes first."""
    title, maps = "Where does a class lie?", diagnosis.maps
    if not maps:
        return Section("maps", title, [Paragraph("There is no scene to draw a map of.")])
    if not diagnosis.rarest_first:
        return Section("maps", title, [Paragraph("")])
    left = diagnosis.maps_left_out
    note = "Each cell is a part of a scene; north is up where the scene has a place on the ground. "
    note += f"{counted(left, 'more map is', 'more maps are')} not shown." if left else ""
    block = Maps(
        maps=[(one.name, _map_text(one)) for one in maps],
        choices=["All classes: the largest of each cell", *diagnosis.names],
        chosen=diagnosis.rarest_first[0] + 1,
        legend=[Named(c.name, c.colour) for c in diagnosis.classes],
        few=len(maps) <= _FEW_MAPS,
        note=note,
        table=_map_table(diagnosis),
    )
    return Section("maps", title, [block])


def _map_text(one: SceneMap) -> str:
    text = counted(one.scenes, "scene")
    return f"{text}, {one.crs}" if one.georeferenced and one.crs else f"{text}, no place on the ground"


def _cells(one: SceneMap, c: int) -> list[float]:
    """Return the shares of class c in cells with data."""
    return [share for row in one.share[c] for share in row if share is not None]


def _map_table(diagnosis: Diagnosis) -> Table:
    """Return a table of each map's share of cells that show each class."""
    rows = []
    for one in diagnosis.maps:
        cells = [_cells(one, c.id) for c in diagnosis.classes]
        shares = [sum(s > 0 for s in of_class) / len(of_class) if of_class else None for of_class in cells]
        rows.append([one.name, *map(percent, shares)])
    return Table("Cells that show any of the class", ["Map", *diagnosis.names], rows)


def map_data(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Return the data from which the page's script draws the maps; shares in percent, two digits."""
    maps, ids = diagnosis.maps, range(len(diagnosis.classes))
    if not maps or not diagnosis.rarest_first:
        return None
    most = [max((s for m in maps for s in _cells(m, c)), default=0.0) for c in ids]
    shown = [sum(any(s > 0 for s in _cells(m, c)) for m in maps) for c in ids]
    titles = ["The class that covers most of each cell"]
    for name, count in zip(diagnosis.names, shown, strict=True):
        titles.append(f"{plain(name)} lies in {count} of {counted(len(maps), 'map')}")
    return {
        "maps": [
            {
                "rows": m.rows,
                "cols": m.cols,
                "aspect": _aspect(m),
                "share": [_rounded(m.share[c]) for c in ids],
            }
            for m in maps
        ],
        "names": [label(name) for name in diagnosis.names],
        "colours": [colour(c.colour) for c in diagnosis.classes],
        "most": [_two_digits(share) for share in most],
        "mostText": [f"up to {percent(share)} of a cell" for share in most],
        "titles": titles,
    }


def _aspect(one: SceneMap) -> float:
    """Return a map's height divided by its width, limited to fit the page."""
    height, width = float(one.rows), float(one.cols)
    if one.bounds:
        left, bottom, right, top = one.bounds
        height, width = abs(top - bottom), abs(right - left)
    return float(min(1.6, max(0.3, height / width if width else 1.0)))


def _rounded(share: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[None if s is None else _two_digits(s) for s in row] for row in share]


def _two_digits(share: float) -> float:
    """Return percent with two digits; whole numbers without a point: a page may have a million."""
    value = float(f"{100 * share:.2g}")
    return int(value) if value.is_integer() else value
