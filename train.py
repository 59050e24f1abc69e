"""Train a model: `python train.py RECIPE`; `--help` has the rest."""

from __future__ import annotations

import sys

from segmenter.base.errors import end_at_once_on_ctrl_c, run_tool

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from datasets.commands.train import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(run_tool(main))
