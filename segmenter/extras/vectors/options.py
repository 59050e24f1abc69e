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
        "smaller areas go to the neighbour with the longest shared border (pixels without georeference)",
        "M2",
        group=OUTPUTS,
        least=0,
    )
    simplify: float = option(
        0.0,
        "straighten borders, shared ones together: no gaps, no overlaps (pixels without georeference)",
        metavar="METRES",
        group=OUTPUTS,
        least=0,
    )
    only: tuple[str, ...] = option(
        (), "polygons of this class alone; may be given again", "CLASS", group=OUTPUTS, again=True
    )
