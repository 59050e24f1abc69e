"""Areas and accuracy of maps: `python -m segmenter.extras.accuracy sample MAP… --output points.gpkg`.

`sample` draws points from class maps at random; `estimate` takes them, labelled, and prints the accuracy of
the map and the area of each class with 95 % intervals (Olofsson et al. 2014, Stehman 2014). Exit code 0, or 2
with a one-line error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import SegmenterError, run_tool
from segmenter.base.invocation import ToolParser, as_started, installation, invocation
from segmenter.base.options import add_options, taken
from segmenter.base.terminal import say, warn, words_aside
from segmenter.extras.accuracy.request import EstimateRequest, SampleRequest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    args = _parser().parse_args(arguments)
    return int(args.run(args))


def _sample(args: argparse.Namespace) -> int:
    if args.output.exists() and not args.overwrite:
        raise SegmenterError(args.output, "exists already", remedy="name another file, or add --overwrite")
    request = taken(SampleRequest, vars(args))
    try:
        from segmenter.extras.accuracy.sampling import sample
    except ModuleNotFoundError as error:
        raise SegmenterError(f"points need the package {error.name}: {installation('vectors')}") from None
    for line in sample(args.maps, args.output, request):
        say(line)
    return 0


def _estimate(args: argparse.Namespace) -> int:
    from segmenter.extras.accuracy import account
    from segmenter.extras.accuracy.estimators import estimates

    request = taken(EstimateRequest, vars(args))
    sample, unit = _labelled(args.points, request)
    found = estimates(sample)
    with words_aside(request.json) as answer:
        for line in account.remarks(found):
            warn(line)
        if request.report is not None:
            from segmenter.extras.accuracy.page import write_page

            write_page(found, unit, args.points, request.report)
            say(str(request.report))
        if request.keep:
            from segmenter.extras.accuracy.kept import keep
            from segmenter.extras.accuracy.labelled import maps_of

            mapped = maps_of(args.points) if _is_geopackage(args.points) else None
            kept = keep(found, unit, args.points, mapped, request.keep)
            say(f"kept with {', '.join(map(str, kept))}")
        if request.json:
            print(json.dumps(account.as_json(found, unit), ensure_ascii=False, allow_nan=False), file=answer)
            return 0
    lines = [*account.table(found, unit), "", account.head(found), *account.sentences(found, unit)]
    say("\n".join(lines))
    return 0


def _is_geopackage(path: Path) -> bool:
    return path.suffix.lower() == ".gpkg"


def _labelled(path: Path, request: EstimateRequest) -> tuple[Any, str]:
    """Return the sample in a file of points, and the unit of its areas."""
    from segmenter.extras.accuracy.tables import read_areas, read_points, sample_of

    areas = None if request.areas is None else read_areas(request.areas)
    if _is_geopackage(path):
        try:
            from segmenter.extras.accuracy.labelled import read_labelled
        except ModuleNotFoundError as error:
            raise SegmenterError(
                f"GeoPackages need the package {error.name}: {installation('vectors')}"
            ) from None
        return read_labelled(path, areas, request.unit, request.labels)
    if request.labels is not None:
        raise SegmenterError(
            f"--labels {request.labels}", "is for points in a GeoPackage", got=path, remedy="leave it out"
        )
    if areas is None:
        raise SegmenterError(path, "the areas of its strata are missing; name them by --areas areas.csv")
    return sample_of(read_points(path), areas), request.unit or ""


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=invocation("accuracy"),
        description=as_started(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "random points of class maps, to be labelled"
    sample = commands.add_parser("sample", help=about, description=f"Write {about}.")
    sample.add_argument("maps", type=Path, nargs="+", metavar="MAP", help="GeoTIFFs, or folders of them")
    sample.add_argument("--output", type=Path, required=True, metavar="FILE", help="NAME.gpkg")
    add_options(sample, SampleRequest)
    sample.add_argument("--overwrite", action="store_true", help="replace FILE")
    sample.set_defaults(run=_sample)
    about = "accuracy and areas with intervals, from labelled points"
    estimate = commands.add_parser("estimate", help=about, description=f"Print {about}.")
    estimate.add_argument(
        "points",
        type=Path,
        metavar="POINTS",
        help="NAME.gpkg of `sample`, or a table with stratum,mapped,reference",
    )
    add_options(estimate, EstimateRequest)
    estimate.set_defaults(run=_estimate)
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(main))
