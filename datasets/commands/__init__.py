"""Installed command `segmenter TOOL …`; its tools connect the loaders and the library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from segmenter.base.errors import EXIT_WRONG_CALL, run_script, run_tool

if TYPE_CHECKING:
    from segmenter.base.invocation import ToolParser

Program = Callable[[Sequence[str]], int]
"""Takes the arguments behind the tool's name; gives the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool named by the first argument; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_script(lambda: _run(words))  # so that an import that is interrupted ends in one line, too


def _run(words: Sequence[str]) -> int:
    if words and words[0] in TOOLS:
        return TOOLS[words[0]][0](words[1:])
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
    listed = "\n".join(f"  {name:{width}}  {about}" for name, (_, about) in TOOLS.items())
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


def _train(words: Sequence[str]) -> int:
    from .train import run

    return run(words)


def _predict(words: Sequence[str]) -> int:
    from .predict import run

    return run(words)


def _datasets(words: Sequence[str]) -> int:
    from ..__main__ import main

    return _ended(main, words)


def _recipes(words: Sequence[str]) -> int:
    from .recipes import main

    return _ended(main, words)


def _devices(words: Sequence[str]) -> int:
    from segmenter.devices.__main__ import main

    return _ended(main, words)


def _input(words: Sequence[str]) -> int:
    from .input import main

    return _ended(main, words, run_tool)


def _gpu(words: Sequence[str]) -> int:
    from .gpu.command import main

    return _ended(main, words, run_tool)


def _vectorise(words: Sequence[str]) -> int:
    from segmenter.extras.vectors.__main__ import main

    return _ended(main, words, run_tool)


def _export(words: Sequence[str]) -> int:
    from segmenter.extras.export.__main__ import main

    return _ended(main, words, run_tool)


def _runs(words: Sequence[str]) -> int:
    from segmenter.runs.__main__ import main

    return _ended(main, words, run_tool)


def _convert_weights(words: Sequence[str]) -> int:
    from segmenter.model.pretrained.convert import main

    return _ended(main, words)


def _ended(
    program: Program, words: Sequence[str], run: Callable[[Callable[[], int]], int] = run_script
) -> int:
    from segmenter.base.terminal import enduring_output

    with enduring_output():
        return run(lambda: program(words))


TOOLS: dict[str, tuple[Program, str]] = {
    "train": (_train, "train a model as a recipe says"),
    "predict": (_predict, "class maps from images, with a trained model"),
    "datasets": (_datasets, "check, coverage, pack: the data of a recipe; make, stitch: imagery"),
    "devices": (_devices, "the GPUs of this machine, and what a training would use"),
    "input": (_input, "what the input of a recipe costs, and how many GPUs it feeds"),
    "gpu": (_gpu, "laws and speed of this GPU server, in ten minutes: a page"),
    "vectorise": (_vectorise, "class maps as polygons"),
    "export": (_export, "the model for other runtimes: ONNX, SavedModel"),
    "runs": (_runs, "report, compare, card, stac, pack, unpack: of run directories"),
    "convert-weights": (_convert_weights, "weights of PyTorch as .safetensors"),
    "recipes": (_recipes, "ready-made recipes: list them, copy one"),
}
"""Name → program and its purpose. Imports wait until a tool starts, so that `--help` answers at once."""
