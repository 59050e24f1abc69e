"""Write the report of a training again, as one HTML page that needs no network."""

from __future__ import annotations

import argparse
from pathlib import Path

from segmenter.runs.report.sections import REPORT, write_report

HELP = "write the report of a training anew"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m segmenter.runs report`."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"to write (default: {REPORT} in the run)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the report and print its path."""
    print(write_report(arguments.run_dir, arguments.output))
    return 0
