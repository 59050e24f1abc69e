"""Request of an export, and its command line; answers `--help` without the libraries."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from segmenter.base.errors import ConfigError
from segmenter.base.invocation import ToolParser, invocation

Format = Literal["onnx", "savedmodel"]
Profile = Literal["plain", "deepness"]

_EPILOG = """\
The model is that of predict.py: the best checkpoint, with averaged weights where the run has them. It is
checked with the runtime itself on windows of the run's validation images, and only then appears in DIR, with
a .json of what it takes and gives. docs/export.md says how other programs get the map of predict.py.

exit code
  0 written and checked; 1 it gives other classes than predict.py, or the disk is full: nothing is left
  behind; 2 wrong call; 130 or 143 interrupted.
"""


@dataclass(frozen=True)
class ExportRequest:
    """Request of an export.

    Attributes:
        run: run directory.
        output: folder of the file, created if missing.
        format: format of the runtime.
        profile: plain: includes normalisation, nodata and softmax; deepness: for the QGIS plug-in.
        fp16: compute in float16.
        size: side of the window in pixels, fixed; None: any height and width.
        images: images for the check; empty: the run's validation images.
        overwrite: replace existing files.

    Raises:
        ConfigError: values exclude each other or are invalid.
    """

    run: Path
    output: Path
    format: Format
    profile: Profile = "plain"
    fp16: bool = False
    size: int | None = None
    images: tuple[Path, ...] = ()
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.profile == "deepness" and self.format != "onnx":
            raise ConfigError(
                f"--profile deepness: expected --format onnx, which it reads, got {self.format}"
            )
        if self.size is not None and self.size < 1:
            raise ConfigError(f"--size: expected a number of pixels, got {self.size}")
        if "," in str(self.run) and not self.run.exists():
            raise ConfigError(
                f"{self.run}: expected one run, got several: an exported model is one network; export each, "
                "and average their probabilities"
            )


def parse(arguments: Sequence[str] | None = None) -> ExportRequest:
    """Parse a command line; end the process with code 2 if an argument is wrong.

    Raises:
        ConfigError: arguments exclude each other.
    """
    given = vars(_parser().parse_args(arguments))
    return ExportRequest(**{**given, "images": tuple(given["images"])})


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=invocation("export"),
        description="A run's model for other runtimes, checked with the runtime itself.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="run directory that train.py wrote")
    add("--format", required=True, choices=get_args(Format), help="the file's format")
    add("--output", type=Path, required=True, metavar="DIR", help="folder of the file")
    add(
        "--profile",
        choices=get_args(Profile),
        default="plain",
        help="plain: normalisation, nodata and softmax inside the model; deepness: what that plug-in of QGIS "
        "reads (default: plain)",
    )
    add("--fp16", action="store_true", help="16-bit floats: half the size, for GPUs and small devices")
    add(
        "--size",
        type=int,
        metavar="PIXELS",
        help="fixed side of the window; without it, any height and width",
    )
    add(
        "--images",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="check on windows of these; without it, of the run's validation images",
    )
    add("--overwrite", action="store_true", help="replace what was exported before")
    return parser
