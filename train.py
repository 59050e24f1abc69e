"""Train a model: `python train.py RECIPE`; `--help` has the rest."""

from __future__ import annotations

import sys

from datasets.commands.train import main, parse_arguments, run

__all__ = ["main", "parse_arguments", "run"]

if __name__ == "__main__":
    sys.exit(run())
