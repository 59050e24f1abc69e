"""Export of a run's model: `segmenter export RUN --format onnx --output DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from segmenter.base.invocation import ToolParser
from segmenter.extras.export.request import ExportRequest

from .frame import parse_quietly, tool_parser

if TYPE_CHECKING:
    from segmenter.extras.export.exporting import Written


_EPILOG = """\
The model is that of predict.py: the best checkpoint, with averaged weights where the run has them. It is
checked with the runtime itself on windows of the run's validation images, and only then appears in DIR, with
a .json of what it takes and gives. docs/export.md says how other programs get the map of predict.py.

exit code
  0 written and checked; 1 it gives other classes than predict.py, or the disk is full: nothing is left
  behind; 2 wrong call; 130 or 143 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the model and print the result; return the exit code."""
    request = parse_quietly(_parser(), ExportRequest, arguments)
    from segmenter.extras.export.exporting import export

    for line in _result_lines(export(request)):
        print(line)
    return 0


def _result_lines(written: Written) -> list[str]:
    facts = written.facts
    (name, image), *_ = facts["input"].items()
    shape = ", ".join(map(str, image["shape"]))
    gives = ", ".join(facts["outputs"])
    bands = facts["bands"]
    lines = [
        f"checked on {written.checked_on}: {written.agreement}",
        f"{written.path}: {written.bytes / 2**20:.1f} MiB; {name} ({shape}) → {gives}",
        f"  image: {image['values']}; band{'s' * (len(bands) > 1)} {', '.join(map(str, bands))} of a file",
        f"  nodata: {facts['nodata']}",
    ]
    if "tile_size" in facts:
        lines.append(f"  tiles of {facts['tile_size']} pixels that share {facts['tiles_overlap']} %")
        if "resolution" not in facts:
            lines.append("  resolution: not known, as the run's images have no georeference: set it in QGIS")
    return [*lines, f"  {facts['tiling']}"]


_CALLS = {
    "runs/mine --format onnx --output models/": "an ONNX model with normalisation inside",
    "runs/mine --format onnx --profile deepness --output models/": "for the plug-in Deepness of QGIS",
    "runs/mine --format savedmodel --output models/": "for TensorFlow without this program",
}


def _parser() -> ToolParser:
    about = "A run's model for other runtimes, checked with the runtime itself."
    return tool_parser("export", about, ExportRequest, epilog=_EPILOG, calls=_CALLS)
