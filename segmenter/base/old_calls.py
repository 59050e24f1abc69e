"""Old spellings of tools, for one release: `python -m segmenter.runs` leads to `segmenter runs`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

from segmenter.base.errors import end_at_once_on_ctrl_c


def hand_on(tool: str) -> int:
    """Run a tool of the command `segmenter` with the words of this process; return the exit code.

    It is found by name, since it lies above the modules that once started it.
    """
    end_at_once_on_ctrl_c()  # before the imports that take time
    loaders = "segmenter_datasets" if find_spec("segmenter_datasets") else "datasets"
    return int(import_module(f"{loaders}.commands").main([tool, *sys.argv[1:]]))
