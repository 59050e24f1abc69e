"""Class maps from images: runs → images → maps, scores and pictures → what went wrong.

`python predict.py RUN INPUT... --output DIR` in a clone, else `segmenter predict`; `--help` has the options.
What a stage does stands in `datasets/commands/predict_stages.py`; maps are made by `segmenter/mapping/`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from segmenter.base.errors import end_at_once_on_ctrl_c, run_tool

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time
if not __package__:  # started as a script; as a module it is datasets/commands/predict.py, a link to it
    __package__ = "datasets.commands"

from . import predict_stages as stages
from .predict_options import parse
from .predict_options import predict_parser as _parser

__all__ = ["_parser", "main", "parse", "run"]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the whole program without rasterio's own messages; return the exit code."""
    sys.unraisablehook, sys.excepthook = stages.without_rasterio(sys.unraisablehook, sys.excepthook)
    return run_tool(lambda: main(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Map the requested images, each stage by one call; return the exit code."""
    call, as_json = parse(arguments)
    with stages.output_of(call, as_json=as_json) as answer:
        model = stages.load_runs(call.request)
        images = stages.find_images(call.request, model)
        mapped = call.map(model, images)
        stages.tell(call, mapped, answer)
    return mapped.exit_code


if __name__ == "__main__":
    sys.exit(run())
