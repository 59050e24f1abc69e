"""Options of `segmenter predict`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segmenter.api.mapping_call import OPTIONS, MappingCall, mapping_call
from segmenter.base.invocation import ToolParser
from segmenter.base.options import build_options, option
from segmenter.mapping.request.map_request import GROUPS, parse_runs

from .frame import tool_parser

_EPILOG = """\
outputs
  One map per input, DIR/STEM.tif: a tiled, compressed GeoTIFF with the CRS, transform and size of the input
  (of the part, with --bbox or --part), class ids, colours and names of the classes. With a NAIC2020 run,
  images without georeference give PNGs with the original codes. Inputs of the same stem get longer names.
  Beside it DIR/STEM.qml and DIR/STEM.tif.aux.xml show its classes by name and colour in QGIS and GDAL.
  A map appears when it is complete and checked; an older one is replaced in that moment.
  A file of that name that is no map of an earlier call is left, and the input refused, unless with --redo.

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


def parse(arguments: Sequence[str] | None = None) -> tuple[MappingCall, bool]:
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
    given = vars(predict_parser().parse_intermixed_args(words))
    named = build_options(_Named, given)
    return mapping_call(named.run, named.inputs, named.output, given), named.json


@dataclass(frozen=True, kw_only=True)
class _Named:
    """Runs, inputs and output that a command line names in front of the options of the call."""

    run: Path | tuple[Path, ...] = option(
        ...,
        "run directory of a trained model; several, as RUN1,RUN2, are averaged in one pass",
        "RUN",
        positional=True,
        read=parse_runs,
    )
    inputs: tuple[str, ...] = option(
        (),
        "image, folder of images (its subfolders are not searched) or glob pattern in quotes",
        "INPUT",
        positional=True,
        several=True,
        path=True,
    )
    output: str = option(..., "folder to write the maps to, or s3://BUCKET/PREFIX", "DIR", path=True)
    json: bool = option(False, "print the result as one JSON object on stdout, all other text on stderr")


_CALLS = {
    "runs/mine scenes/ --output maps/": "a class map of each image in a folder",
    "runs/mine scenes/ --output maps/ --tta flips --confidence": "averaged over mirror images",
    "runs/mine --split test --output maps/": "map and score the test scenes of the recipe",
}


def predict_parser() -> ToolParser:
    """Return the parser of `segmenter predict`."""
    about = "Class maps from images, with the model of a run directory."
    # `--window` is not to be read as `--window-size`.
    how: dict[str, Any] = {"epilog": _EPILOG, "allow_abbrev": False}
    return tool_parser("predict", about, _Named, *OPTIONS, titles=GROUPS, calls=_CALLS, **how)
