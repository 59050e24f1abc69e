"""Class maps as polygons: `python -m segmenter.extras.vectors MAP… --output areas.gpkg`.

Each area of one class becomes one polygon, for maps of any size, with its class, code, pixels, area in square
metres and, if `STEM.confidence.tif` exists, its mean confidence. Rasterised again, the polygons give the same
map, unless `--min-area` or `--simplify` is used. Exit code 0, or 2 with a one-line error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import SegmenterError, run_tool
from segmenter.base.invocation import ToolParser, as_started, installation, invocation
from segmenter.base.options import OverwriteOptions, add_options, option, parsed
from segmenter.extras.vectors.map_files import maps_in
from segmenter.extras.vectors.options import PolygonOptions
from segmenter.raster import quiet_gdal


@dataclass(frozen=True, kw_only=True)
class _Options(OverwriteOptions):
    maps: tuple[Path, ...] = option(
        ..., "class maps to convert: GeoTIFFs, or folders of them", "MAP", positional=True, several=True
    )
    output: Path = option(..., "vector file to write: NAME.gpkg, or NAME.parquet for GeoParquet", "FILE")
    polygons: PolygonOptions = field(default_factory=PolygonOptions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; return the exit code."""
    given = parsed(_parser(), _Options, arguments)
    quiet_gdal()
    maps = maps_in(given.maps)
    with given.alone_at(given.output):
        try:
            from segmenter.extras.vectors.vectorise import vectorise
        except ModuleNotFoundError as error:
            raise SegmenterError(
                f"polygons need the package {error.name}: {installation('vectors')}"
            ) from None
        count = vectorise(maps, given.output, given.polygons)
    print(f"{given.output}: {count:,} polygons of {len(maps)} map{'s' * (len(maps) > 1)}")
    return 0


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=invocation("vectorise"),
        description=as_started(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return add_options(parser, _Options)


if __name__ == "__main__":
    sys.exit(run_tool(main))
