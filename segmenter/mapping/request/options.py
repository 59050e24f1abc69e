"""Arguments of `predict.py`; answers `--help` without the libraries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from segmenter.base.addresses import is_address
from segmenter.base.errors import DatasetError
from segmenter.base.invocation import ToolParser, invocation
from segmenter.extras.dask.options import add_cluster_options, taken_from
from segmenter.extras.vectors.mapped import add_polygon_options
from segmenter.grid.geometry import Window
from segmenter.mapping.request import option_values as values
from segmenter.mapping.request.map_request import (
    BlendWeights,
    Format,
    LabelKind,
    MapRequest,
    Mode,
    Precision,
    Probabilities,
)

if TYPE_CHECKING:
    from segmenter.mapping.jobs import Bounds

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


def parse(arguments: Sequence[str] | None = None) -> MapRequest:
    """The request of a call; ends the process with code 2 where an argument is wrong.

    Raises:
        DatasetError: arguments that exclude each other.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--" in given:  # it gets lost where options and inputs may be mixed
        end = given.index("--")
        given[end:] = [f"./{path}" if path.startswith("-") else path for path in given[end + 1 :]]
    # Plain parse_args would take `RUN --output DIR INPUT` for a call without INPUT, since there may be none.
    return _request(_parser().parse_intermixed_args(given))


def request_of(
    runs: tuple[Path, ...], inputs: Sequence[str], output: str, options: Mapping[str, Any]
) -> MapRequest:
    """The request of a call from Python.

    Args:
        options: of `predict.py`, each under its name with underscores (`window_size`), by default as there. A
            text is read as on the command line (`memory="8GB"`); numbers, paths, sequences and, for `codes`,
            a dict may stand for one.

    Raises:
        DatasetError: an option that is none, or whose value none can be.
    """
    actions = {action.dest: action for action in _parser()._actions}
    positional = ("help", "run", "inputs", "output")
    known = {name: action for name, action in actions.items() if name not in positional}
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
            raise DatasetError(f"{name}: expected an option of predict.py{hint}")
    given = {name: action.default for name, action in known.items()}
    given |= {name: values.of_python(known[name], value) for name, value in options.items()}
    if given["bbox"] is not None and given["part"] is not None:
        raise DatasetError("bbox, part: expected one of the two, got both")
    return _request(argparse.Namespace(run=runs, inputs=list(inputs), output=output, **given))


def _request(args: argparse.Namespace) -> MapRequest:
    """The arguments as a value: options have the names of its attributes, but for the two kinds of parts."""
    given = vars(args)
    box, pixels = given.pop("bbox"), given.pop("part")
    part: Bounds | Window | None = None if pixels is None else Window(*pixels)
    if box is not None:
        from segmenter.mapping.jobs import Bounds  # brings rasterio

        part = Bounds(*box)
    given["cluster"], given["only"] = taken_from(given), tuple(given["only"])
    given["vectors"] = _local(given["vectors"])
    upload, output = _output(given.pop("output"), given.pop("work"))
    return MapRequest(
        **{**given, "inputs": tuple(given["inputs"]), "part": part, "output": output, "upload": upload}
    )


def _local(text: str | None) -> Path | None:
    """The file of polygons.

    Raises:
        DatasetError: it is an address.
    """
    if text is not None and is_address(text):
        raise DatasetError(
            f"--vectors {text}: expected a file here; copy it into a bucket when it is finished"
        )
    return None if text is None else Path(text)


def _output(text: str, work: Path | None) -> tuple[str | None, Path]:
    """Address in a bucket, where the output is one, and the folder that is written to.

    Raises:
        DatasetError: an address that cannot be written to, or a working folder that would do nothing.
    """
    if not is_address(text):
        if work is not None:
            raise DatasetError(f"--work {work}: is for an --output in a bucket (s3://…); leave it out")
        return None, Path(text)
    from segmenter.extras.upload import working_folder  # brings rasterio

    folder = working_folder(text)
    return text, work or folder


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
        type=values.runs,
        help="run directory that train.py made; several, as RUN1,RUN2, are averaged in one pass",
    )
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="*", help="image, folder of images (not its subfolders) or glob"
    )
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="test, validation or train: the recipe's scenes instead of INPUT, scored",
    )
    parser.add_argument(
        "--recipe", metavar="FILE", type=Path, help="whose scenes --split takes (default: the run's)"
    )
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="folder for the maps, or s3://BUCKET/PREFIX"
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        help="folder for maps on the way to s3:// (default: in ~/.cache)",
    )
    _add_part(parser)
    parser.add_argument(
        "--bands", metavar="1,2,3", type=values.bands, help="bands of the inputs, not the run's"
    )
    parser.add_argument("--redo", action="store_true", help="make all maps anew, also finished ones")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first input that fails")
    _add_outputs(parser.add_argument_group("outputs"))
    _add_values(parser.add_argument_group("maps in a GIS"))
    _add_opening(parser.add_argument_group("what is opened"))
    _add_computing(parser.add_argument_group("computing"))
    add_cluster_options(parser.add_argument_group("cluster"), "compute")
    _add_scores(parser.add_argument_group("scores"))
    return parser


def _add_part(parser: argparse.ArgumentParser) -> None:
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--bbox",
        nargs=4,
        type=float,
        metavar=("LEFT", "BOTTOM", "RIGHT", "TOP"),
        help="map only this box, in the coordinates of the input's CRS; inputs beside it are left out",
    )
    part.add_argument(
        "--part", nargs=4, type=int, metavar=("ROW", "COL", "HEIGHT", "WIDTH"), help="map only these pixels"
    )


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--confidence", action="store_true", help="also STEM.confidence.tif: the largest probability × 255"
    )
    group.add_argument(
        "--probabilities",
        choices=get_args(Probabilities),
        help="also STEM.probabilities.tif: a band for each class; uint8 is × 255",
    )
    group.add_argument("--cog", action="store_true", help="cloud-optimised GeoTIFFs, with overviews")
    group.add_argument(
        "--quicklook", action="store_true", help="also STEM.quicklook.png: the map, small, in its colours"
    )
    group.add_argument("--format", choices=get_args(Format), default="auto", help="of the maps")
    group.add_argument(
        "--pictures", action="store_true", help="also STEM.view.png: image, label and map side by side"
    )
    group.add_argument(
        "--vectors",
        metavar="FILE",
        help="also the maps' polygons, as one .gpkg or .parquet (GeoParquet); never uploaded",
    )
    add_polygon_options(group)


def _add_values(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--codes",
        metavar="CODES",
        help="what maps hold for the classes in place of ids: 10,20,30 in their order, or "
        "building=10,road=20, or recipe (those of its classes); 16 bits where one is above 255",
    )
    group.add_argument(
        "--nodata",
        type=int,
        metavar="N",
        help="GeoTIFF value without data (default 255; with 16-bit codes 65535; another where it is a code)",
    )
    group.add_argument(
        "--no-styles",
        dest="styles",
        action="store_false",
        help="without STEM.qml, by which QGIS shows classes by name and colour, and STEM.tif.aux.xml, the "
        "attribute table",
    )


def _add_opening(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-pixels",
        metavar="N",
        type=values.positive,
        help="refuse larger rasters; default 2**30, or 10,000 per byte of the file if that is more",
    )
    group.add_argument(
        "--drivers",
        metavar="NAME,…",
        type=values.names,
        default=(),
        help="further GDAL drivers that may open inputs; a VRT can read any other file",
    )
    group.add_argument(
        "--insist",
        action="store_true",
        help="map also inputs whose type, order of bands or range of values is not that of training",
    )
    group.add_argument(
        "--remote",
        action="store_true",
        help="inputs may also be URLs (https://, s3://, gs://, az://) and GDAL's own paths (/vsizip/…), of "
        "GeoTIFFs; their maps are made in each call",
    )


def _add_computing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mode",
        choices=get_args(Mode),
        help="exact: as if the model had seen the whole raster at once (default where it is possible and "
        "keeps half of what it computes); smooth: overlapping windows, blended",
    )
    group.add_argument(
        "--overlap", metavar="PERCENT", type=float, default=50, help="of windows, in smooth mode (default 50)"
    )
    group.add_argument(
        "--blend-weights", choices=get_args(BlendWeights), default="hann", help="in smooth mode"
    )
    group.add_argument(
        "--tta",
        metavar="WHAT",
        type=values.tta,
        default="none",
        help="test-time augmentation: average over mirror images (none; flips: 4; all: 8) and scales "
        "(scales: 0.75, 1 and 1.25, or numbers), as flips,scales or 0.5,1; takes the time of each of them",
    )
    group.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="of the model; run: as in training and validation (default on a GPU; on a CPU float32, which is "
        "faster there)",
    )
    group.add_argument(
        "--gsd",
        metavar="METRES",
        type=values.gsd,
        help="ground sampling distance at which the model sees the inputs, as 0.5, or auto: that of its "
        "training; they are resampled while they are read, and the map comes back on their own pixels",
    )
    group.add_argument(
        "--raster-gsd", metavar="METRES", type=float, help="that of inputs that do not say it, with --gsd"
    )
    group.add_argument(
        "--memory",
        metavar="SIZE",
        type=values.memory,
        help="what the program may take, as 8GB (half of the machine's): decides how large windows are",
    )
    group.add_argument(
        "--window-size", metavar="PX", type=values.positive, help="side of the model's window, not chosen"
    )
    group.add_argument(
        "--batch", metavar="N", type=values.positive, help="windows computed at once, not chosen"
    )
    group.add_argument(
        "--mosaic",
        action="store_true",
        help="inputs that adjoin are one raster: windows see over their edges",
    )


def _add_scores(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--labels", metavar="PATTERN", help="score the maps with these labels, as truth/{stem}.png"
    )
    group.add_argument(
        "--label-kind", choices=get_args(LabelKind), help="what these labels are (those it trained on)"
    )
    group.add_argument("--protocol", metavar="NAME", help="a published protocol: potsdam-6 or potsdam-5")
    group.add_argument(
        "--split-name",
        metavar="NAME",
        help="what --labels are of, for the record: test, … (default unstated)",
    )
