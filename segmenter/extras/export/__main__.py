"""Export of a run's model: `python -m segmenter.extras.export RUN --format onnx --output DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import run_tool
from segmenter.base.terminal import enduring_output
from segmenter.extras.export.request import parse

if TYPE_CHECKING:
    from segmenter.extras.export.exporting import Written


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the model and print the result; return the exit code."""
    request = parse(arguments)
    from segmenter.extras.export.exporting import export
    from segmenter.raster import quiet_gdal

    quiet_gdal()
    for line in _said(export(request)):
        print(line)
    return 0


def _said(written: Written) -> list[str]:
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


if __name__ == "__main__":
    with enduring_output():
        sys.exit(run_tool(main))
