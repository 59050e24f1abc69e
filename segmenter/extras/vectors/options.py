"""Options of polygons made from a map, for `predict.py` and `vectorise`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segmenter.base.errors import SegmenterError
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
    )
    simplify: float = option(
        0.0,
        "straighten borders, shared ones together: no gaps, no overlaps (pixels without georeference)",
        metavar="METRES",
        group=OUTPUTS,
    )
    only: tuple[str, ...] = option((), "may be given again", "CLASS", group=OUTPUTS, again=True)

    def __post_init__(self) -> None:
        for name in ("min_area", "simplify"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise SegmenterError(
                    f"--{name.replace('_', '-')}", expected="a number that is not negative", got=f"{value:g}"
                )
