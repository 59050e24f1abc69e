"""Names of our tools as a person types them: scripts and modules in a clone, one command where installed."""

from __future__ import annotations

import sys
from pathlib import Path

COMMAND = "segmenter"
"""The installed command; its first argument is a tool."""

TOOLS = {
    "train": "python train.py",
    "predict": "python predict.py",
    "datasets": "python -m datasets",
    "devices": "python -m segmenter.devices",
    "vectorise": "python -m segmenter.mapping.vectorise",
    "export": "python -m segmenter.export",
    "runs": "python -m segmenter.runs",
    "convert-weights": "python -m segmenter.pretrained.convert",
}
"""Tool → what starts it from the root of a clone."""

_PACKAGE = "coverage-segmenter"
_CLONE = Path(__file__).parents[1]


def invocation(tool: str) -> str:
    """What starts a tool, for usage lines and hints: in the same way as this process was started.

    `segmenter predict` below that command and wherever there is no clone; else `python predict.py`.
    """
    return TOOLS[tool] if _in_clone() else f"{COMMAND} {tool}"


def recipes_hint() -> str:
    """Where ready-made recipes are, for hints."""
    return "see configs/ for recipes" if _in_clone() else f"`{COMMAND} recipes` lists ready-made ones"


def installation(extra: str) -> str:
    """What installs an extra of ours: `make …` in a clone, else pip."""
    if _in_clone():
        return "make " + {"cpu": "setup", "gpu": "setup GPU=1", "report": "setup"}.get(extra, extra)
    # Two wheels of TensorFlow in one environment overwrite each other.
    first = "pip uninstall -y tensorflow-cpu; " if extra == "gpu" else ""
    return f"{first}pip install '{_PACKAGE}[{extra}]'"


def for_installed(text: str) -> str:
    """A text for people, with all that is typed in a clone replaced by what an installed package takes."""
    for tool, typed in TOOLS.items():
        text = text.replace(typed, f"{COMMAND} {tool}")
    return text.replace("make pretrained", f"pip install '{_PACKAGE}[pretrained]'")


def as_started(text: str) -> str:
    """A text for people, with tools as this process was started: for descriptions in `--help`."""
    return text if _in_clone() else for_installed(text)


def _in_clone() -> bool:
    """Whether the tools are started from a clone; its own environment has the command `segmenter` too."""
    return Path(sys.argv[0] if sys.argv else "").name != COMMAND and (_CLONE / "train.py").is_file()
