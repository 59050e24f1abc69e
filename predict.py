"""Class maps from images: `python predict.py RUN INPUT... --output DIR`; `--help` has the rest."""

from __future__ import annotations

import sys

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from datasets.commands.predict import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    sys.exit(run())
