"""Mapping calls, built from the command line of `predict.py` or the keywords of `run.map(…)`.

Both use the options declared by the request and each finisher. `--help` needs no libraries.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.addresses import is_address
from segmenter.base.errors import DatasetError
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.options import add_options, given_by_python, option, taken
from segmenter.extras.dask.options import ClusterOptions, taken_from
from segmenter.extras.gis.finisher import Styles
from segmenter.extras.vectors.mapped import PolygonFile
from segmenter.extras.vectors.wanted import Wanted
from segmenter.mapping.finisher import Finisher
from segmenter.mapping.outputs.pictures import Pictures
from segmenter.mapping.request.map_request import (
    GROUPS,
    MapRequest,
    parse_runs,
)

if TYPE_CHECKING:
    from segmenter.extras.upload import Uploads
    from segmenter.mapping.request.truth import Images
    from segmenter.mapping.session import Mapped
    from segmenter.runs.ensemble import AnyRun

_EPILOG = """\
outputs
  One map per input, DIR/STEM.tif: a tiled, compressed GeoTIFF with the CRS, transform and size of the input
  (of the part, with --bbox or --part), class ids, colours and names of the classes. With a NAIC2020 run,
  images without georeference give PNGs with the original codes. Inputs of the same stem get longer names.
  Beside it DIR/STEM.qml and DIR/STEM.tif.aux.xml show its classes by name and colour in QGIS and GDAL.
  A map appears when it is complete and checked; one that was there before is replaced in that moment.

stopped and gone on
  The same command again, after whatever end, goes on: maps that are finished are checked and kept, large
  rasters go on within the file. Maps of a changed input, with another run or other options are made anew.
  docs/prediction.md has the guarantees.

scores
  --labels 'truth/{stem}.png' finds each image's label by the image's name without extension; {scene} is that
  name without a trailing _RGB, _IRRG or _RGBIR, as in 'labels/{scene}_label_noBoundary.tif'. A pattern may
  hold * and **, and must match one file per image; the {names} of the run's recipe can be used too. A label
  must lie on its image. --split test takes images and labels from the run's recipe instead. Both write
  DIR/scores.json (the total, and each scene) and DIR/confusion.png.

exit code
  0 all done; 1 some inputs failed, the others are done; 2 wrong call; 130 or 143 interrupted.
"""


@dataclass(frozen=True)
class _Destination:
    """Options for the destination of maps."""

    work: Path | None = option(None, "folder for maps on the way to s3:// (default: in ~/.cache)", "DIR")


_KINDS = (_Destination, MapRequest, Styles, Pictures, PolygonFile, Wanted, ClusterOptions)
"""All that declare options of a call."""


@dataclass(frozen=True)
class Asked:
    """One mapping call with its finishers, cluster and uploads.

    Attributes:
        finishers: finishers that process the maps, in this order; uploads come last.
        cluster: cluster whose workers compute; None: this process.
        uploads: uploads to the bucket for maps; None: they stay in the folder.
    """

    request: MapRequest
    finishers: tuple[Finisher, ...]
    cluster: ClusterOptions | None
    uploads: Uploads | None

    def map(self, run: AnyRun, images: Images | None) -> Mapped:
        """Make the maps; see `map_rasters`."""
        from segmenter.mapping.session import map_rasters

        windows = None
        if self.cluster is not None:
            from segmenter.extras.dask.windows import ClusterWindows

            windows = ClusterWindows(self.cluster)
        finishers = self.finishers if self.uploads is None else (*self.finishers, self.uploads)
        return map_rasters(
            self.request, run, images, finishers=finishers, windows=windows, store=self.uploads
        )


def parse(arguments: Sequence[str] | None = None) -> tuple[Asked, bool]:
    """Parse a command line; end the process with code 2 on an error.

    Returns:
        The call, and True if its result is wanted as JSON.

    Raises:
        DatasetError: arguments exclude each other.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--" in words:  # it gets lost where options and inputs may be mixed
        end = words.index("--")
        words[end:] = [f"./{path}" if path.startswith("-") else path for path in words[end + 1 :]]
    # Plain parse_args would take `RUN --output DIR INPUT` for a call without INPUT, since there may be none.
    given = vars(_parser().parse_intermixed_args(words))
    json = given.pop("json")
    return _asked(given.pop("run"), given.pop("inputs"), given.pop("output"), given), json


def asked_by_python(
    runs: tuple[Path, ...], inputs: Sequence[str], output: str, options: Mapping[str, Any]
) -> Asked:
    """Build a call from keywords.

    Args:
        options: options of `predict.py` with underscores in names (`window_size`) and the same defaults.
            Texts are read as on the command line (`memory="8GB"`); numbers, paths, sequences and, for
            `codes`, a dict are accepted too.

    Raises:
        DatasetError: an unknown option or an invalid value.
    """
    return _asked(runs, inputs, output, given_by_python(options, *_KINDS))


def _asked(runs: Path | tuple[Path, ...], inputs: Sequence[str], output: str, given: dict[str, Any]) -> Asked:
    cluster, styles, pictures = taken_from(given), taken(Styles, given), taken(Pictures, given)
    polygons = taken(PolygonFile, given, wanted=taken(Wanted, given))
    finishers: list[Finisher] = [styles]
    finishers += [pictures] if pictures.pictures else []
    finishers += [polygons] if polygons.vectors is not None else []
    uploads, folder = _destination(output, taken(_Destination, given).work)
    request = taken(MapRequest, given, run=runs, output=folder, inputs=tuple(inputs))
    return Asked(request, tuple(finishers), cluster, uploads)


def _destination(output: str, work: Path | None) -> tuple[Uploads | None, Path]:
    """Return the uploader if the output is an address, and the folder to write to.

    Raises:
        DatasetError: the address is not writable, or a working folder has no effect.
    """
    if not is_address(output):
        if work is not None:
            raise DatasetError(f"--work {work}: is for an --output in a bucket (s3://…); leave it out")
        return None, Path(output)
    from segmenter.extras.upload import Uploads  # brings rasterio

    uploads = Uploads(output)
    return uploads, work or uploads.working_folder


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=invocation("predict").removeprefix("python "),
        description="Class maps from images, with the model of a run directory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # `--window` is not to be read as `--window-size`
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        type=parse_runs,
        help="run directory that train.py made; several, as RUN1,RUN2, are averaged in one pass",
    )
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="*", help="image, folder of images (not its subfolders) or glob"
    )
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="folder for the maps, or s3://BUCKET/PREFIX"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object of what was made, and words on stderr"
    )
    for title in GROUPS:
        parser.add_argument_group(title)
    add_options(parser, *_KINDS)
    return parser
