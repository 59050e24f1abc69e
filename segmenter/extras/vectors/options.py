"""Options of polygons made from a map, for `predict.py` and `segmenter vectors`."""

from __future__ import annotations

from dataclasses import dataclass

from segmenter.base.options import option

OUTPUTS = "outputs"


@dataclass(frozen=True, kw_only=True)
class PolygonOptions:
    """Options of the polygons of a map."""

    min_area: float = option(
        0.0,
        "merge polygons smaller than this area, in square metres (in pixels without georeference), into "
        "the neighbour with the longest shared border (default: 0, none)",
        "M2",
        group=OUTPUTS,
        least=0,
    )
    simplify: float = option(
        0.0,
        "straighten borders: corners go that span less than this length squared with their neighbours, in "
        "metres (in pixels without georeference), and so do spurs that are long but narrow; shared borders "
        "move together, without gaps or overlaps (default: 0, not at all)",
        metavar="METRES",
        group=OUTPUTS,
        least=0,
    )
    only: tuple[str, ...] = option(
        (),
        "write polygons of this class only, by its name; may be repeated for several (default: all classes)",
        "CLASS",
        group=OUTPUTS,
        again=True,
    )
