"""Class maps as polygons: `segmenter vectors MAP… --output areas.gpkg`.

Each area of one class becomes one polygon, for maps of any size, with its class, code, pixels, area in square
metres and, if `STEM.confidence.tif` exists, its mean confidence. Rasterised again, the polygons give the same
map, unless `--min-area` or `--simplify` is used. Exit code 0; with a one-line error
1 where a file cannot be written, else 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segmenter.base.invocation import ToolParser, needing
from segmenter.base.options import OverwriteOptions, option
from segmenter.extras.vectors.options import PolygonOptions
from segmenter.extras.written_map import maps_in

from .frame import parse_quietly, tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options(OverwriteOptions):
    maps: tuple[Path, ...] = option(
        ..., "class maps to convert: GeoTIFFs, or folders of them", "MAP", positional=True, several=True
    )
    output: Path = option(..., "vector file to write: NAME.gpkg, or NAME.parquet for GeoParquet", "FILE")
    polygons: PolygonOptions = field(default_factory=PolygonOptions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)
    maps = maps_in(given.maps)
    with given.exclusive_outputs(given.output):
        with needing("vectors", "polygons"):
            from segmenter.extras.vectors.vectorise import vectorise
        count = vectorise(maps, given.output, given.polygons)
    print(f"{given.output}: {count:,} polygons of {len(maps)} map{'s' * (len(maps) > 1)}")
    return 0


_CALLS = {
    "maps/ --output areas.gpkg": "polygons of all maps in a folder",
    "maps/a.tif --output areas.parquet --min-area 25 --only building": "buildings from 25 square metres on",
}


def _parser() -> ToolParser:
    return tool_parser("vectors", __doc__, _Options, calls=_CALLS)
