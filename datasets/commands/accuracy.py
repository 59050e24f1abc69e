"""Areas and accuracy of maps: `segmenter accuracy sample MAP… --output points.gpkg`.

`sample` draws points from class maps at random; `estimate` takes them, labelled, and prints the accuracy of
the map and the area of each class with 95 % intervals (Olofsson et al. 2014, Stehman 2014). Exit code 0;
with a one-line error 1 where a file cannot be written, else 2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segmenter.base.errors import SegmenterError
from segmenter.base.files import check_writable
from segmenter.base.invocation import ToolParser, invocation, needing, quote_path
from segmenter.base.options import Command, parsed_command
from segmenter.base.terminal import say, stdout_for_json, warn
from segmenter.extras.accuracy.request import EstimateRequest, SampleRequest

from .frame import tool_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    return parsed_command(_parser(), _COMMANDS, arguments)()


def _sample(request: SampleRequest) -> int:
    with needing("vectors", "points"):
        from segmenter.extras.accuracy.sampling import sample
    with request.exclusive_outputs(request.output, request.output.with_suffix(".qml")):
        lines = sample(request)
    for line in lines:
        say(line)
    say(f"label them: {invocation('view')} {quote_path(request.output)}", aside=True)
    return 0


def _estimate(request: EstimateRequest) -> int:
    from segmenter.extras.accuracy import estimators as account
    from segmenter.extras.accuracy.estimators import estimates

    points = request.points
    sample, unit = _read_sample(request)
    found = estimates(sample)
    if request.report is not None:
        check_writable(request.report)
    with stdout_for_json(request.json) as answer:
        if _is_geopackage(points):
            from segmenter.extras.accuracy.tables import compare_with_maps

            for line in compare_with_maps(points, request.keep):
                warn(line)
        if request.keep:
            from segmenter.extras.accuracy.kept import keep
            from segmenter.extras.accuracy.tables import maps_of

            mapped = maps_of(points) if _is_geopackage(points) else None
            kept = keep(found, unit, points, mapped, request.keep)
            more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""
            say(f"kept with {', '.join(map(str, kept[:3]))}{more}")
        for line in account.remarks(found):
            warn(line)
        if request.report is not None:
            from segmenter.extras.accuracy.page import write_page

            write_page(found, unit, points, request.report)
            say(str(request.report))
        if request.json:
            print(json.dumps(account.as_json(found, unit), ensure_ascii=False, allow_nan=False), file=answer)
            return 0
    lines = [*account.table(found, unit), "", account.head(found), *account.sentences(found, unit)]
    say("\n".join(lines))
    if _is_geopackage(points):
        say(f"look: segmenter view MAPS --places {quote_path(points)}")
    return 0


def _is_geopackage(path: Path) -> bool:
    return path.suffix.lower() == ".gpkg"


def _read_sample(request: EstimateRequest) -> tuple[Any, str]:
    """Return the sample in a file of points, and the unit of its areas."""
    with needing("vectors", "points"):
        from segmenter.extras.accuracy.tables import read_areas, read_labelled, read_points, sample_of
    path = request.points
    if request.unit is not None and request.areas is None:
        raise SegmenterError(
            f"--unit {request.unit}", "is of the areas in --areas, which is not given", remedy="leave it out"
        )
    areas = None if request.areas is None else read_areas(request.areas)
    if _is_geopackage(path):
        return read_labelled(path, areas, request.unit, request.labels)
    if request.labels is not None:
        raise SegmenterError(
            f"--labels {request.labels}", "is for points in a GeoPackage", got=path, remedy="leave it out"
        )
    if areas is None:
        raise SegmenterError(path, "the areas of its strata are missing; name them by --areas areas.csv")
    return sample_of(read_points(path), areas), request.unit or ""


_COMMANDS = {
    "sample": Command("draw random points of class maps, to be labelled", SampleRequest, _sample),
    "estimate": Command(
        "estimate accuracy and areas, with intervals, from labelled points", EstimateRequest, _estimate
    ),
}


_CALLS = {
    "sample maps/ --points 600 --output points.gpkg": "draw points, to be labelled",
    "estimate points.gpkg --report accuracy.html": "accuracy and areas from the labelled points",
    "estimate points.csv --areas areas.csv --unit ha --json": "from plain tables, as JSON",
}


def _parser() -> ToolParser:
    return tool_parser("accuracy", __doc__, commands=_COMMANDS, calls=_CALLS)
