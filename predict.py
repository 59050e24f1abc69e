"""Class maps from images: `python predict.py RUN INPUT... --output DIR`; `--help` has the rest."""

from __future__ import annotations

import sys

from datasets.commands.predict import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    sys.exit(run())
