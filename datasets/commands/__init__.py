"""Installed command `segmenter TOOL …`; its tools connect the loaders and the library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from segmenter.base.errors import EXIT_WRONG_CALL, run_script, run_tool

if TYPE_CHECKING:
    from segmenter.base.invocation import ToolParser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool named by the first argument; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_script(lambda: _run(words))  # so that an import that is interrupted ends in one line, too


def _run(words: Sequence[str]) -> int:
    if words and words[0] in TOOLS:
        return TOOLS[words[0]](words[1:])
    from segmenter.base.terminal import enduring_output

    with enduring_output():
        if not words:
            _parser().print_help(sys.stderr)
            return EXIT_WRONG_CALL
        _parser().parse_args(words)  # --help, --version, or what is wrong
    return 0


def _parser() -> ToolParser:
    from argparse import RawDescriptionHelpFormatter

    from segmenter.base.invocation import COMMAND, ToolParser
    from segmenter.base.version import __version__

    width = max(map(len, TOOLS))
    listed = "\n".join(f"  {name:{width}}  {tool.about}" for name, tool in TOOLS.items())
    parser = ToolParser(
        prog=COMMAND,
        usage=f"{COMMAND} TOOL … (its options: {COMMAND} TOOL --help)",
        description="Land-cover segmentation of remote-sensing imagery.",
        epilog=f"tools:\n{listed}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("tool", choices=TOOLS, metavar="TOOL", help="one of the tools below")
    parser.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
    return parser


@dataclass(frozen=True)
class Tool:
    """A tool of the command.

    Attributes:
        module: with its `main`, from this package where it begins with a dot.
        about: what it is for.
        run: ends it, by signals and errors; None: the module's own `run` does.
    """

    module: str
    about: str
    run: Callable[[Callable[[], int]], int] | None = run_script

    def __call__(self, words: Sequence[str]) -> int:
        """Run it with the arguments behind its name; return the exit code."""
        program = import_module(self.module, __package__)
        if self.run is None:
            return int(program.run(words))
        from segmenter.base.terminal import enduring_output

        with enduring_output():
            return self.run(lambda: program.main(words))


TOOLS = {
    "start": Tool(".start", "plan a recipe from a folder of images and labels", run_tool),
    "train": Tool(".train", "train a model as a recipe says", None),
    "predict": Tool(".predict", "class maps from images, with a trained model", None),
    "calibrate": Tool(".calibrate", "calibrated probabilities for a trained run", run_tool),
    "datasets": Tool("..__main__", "check, coverage, pack: the data of a recipe; make, stitch: imagery"),
    "devices": Tool("segmenter.devices.__main__", "the GPUs of this machine, and what a training would use"),
    "input": Tool(".input", "what the input of a recipe costs, and how many GPUs it feeds", run_tool),
    "gpu": Tool(".gpu.command", "laws and speed of this GPU server, in ten minutes: a page", run_tool),
    "vectorise": Tool("segmenter.extras.vectors.__main__", "class maps as polygons", run_tool),
    "accuracy": Tool(
        "segmenter.extras.accuracy.__main__",
        "sample, estimate: areas and accuracy of maps, with intervals",
        run_tool,
    ),
    "review": Tool(".review", "labels to review, and what to label next", run_tool),
    "export": Tool(
        "segmenter.extras.export.__main__", "the model for other runtimes: ONNX, SavedModel", run_tool
    ),
    "runs": Tool(
        "segmenter.runs.__main__", "report, compare, card, stac, pack, unpack: of run directories", run_tool
    ),
    "convert-weights": Tool("segmenter.model.pretrained.convert", "weights of PyTorch as .safetensors"),
    "recipes": Tool(".recipes", "ready-made recipes: list them, copy one"),
}
"""By name. Imports wait until a tool is started: `--help` answers at once."""
