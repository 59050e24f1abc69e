"""All benchmarks in one table, with date and machine: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import suite, suite_page
from benchmarks.page import table
from segmenter.base.errors import OutputError, run_script
from segmenter.base.files import write_whole
from segmenter.devices.setup import processor_model

JSON, PAGE = "bench.json", "bench.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them, write the page after each call; the exit code is 1 if any of them failed."""
    given = _parse(arguments)
    try:
        given.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"--output: expected a folder that can be made, got {given.output} ({error})"
        ) from None
    entries = suite.chosen(given.only, quick=given.quick)
    head = _head(given.quick)
    done: list[tuple[suite.Entry, suite.Call]] = []
    for entry, call in suite.run(entries, given.rounds, quick=given.quick):
        done.append((entry, call))
        said = call.fault or "; ".join(json.dumps(line) for line in call.lines[:1])
        print(
            f"{entry.name:<18} {call.seconds:6.0f} s  {call.processor:6.0f} s of processor   {said}",
            flush=True,
        )
        _write(given.output, head, done)
    print("\n".join(table(suite_page.HEAD, suite_page.rows(done), words=3)))
    print(f"{given.output / PAGE}: the table; {JSON}: all lines")
    return int(any(call.fault for _, call in done))


def _write(folder: Path, head: dict[str, str], done: list[tuple[suite.Entry, suite.Call]]) -> None:
    """Whole, after each call: a crash loses nothing."""
    page = suite_page.lines(head, done)
    write_whole(folder / PAGE, "\n".join(page).encode())
    content: dict[str, Any] = {**head, "calls": [dataclasses.asdict(call) for _, call in done]}
    write_whole(folder / JSON, (json.dumps(content, indent=1) + "\n").encode())


def _head(quick: bool) -> dict[str, str]:
    """Date, machine, and how busy it was before the first call."""
    cores = len(os.sched_getaffinity(0))
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="minutes"),
        "machine": f"{cores} cores, {processor_model()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "sizes": "quick" if quick else "full",
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run all benchmarks, each call in a process: some hours, or minutes with --quick.",
        epilog="One alone: python -m benchmarks.NAME. "
        "Not part of it: " + "; ".join(f"{name} ({why})" for name, why in suite.LEFT_OUT.items()),
    )
    names = list(dict.fromkeys(entry.name for entry in suite.ENTRIES))
    parser.add_argument("--quick", action="store_true", help="the short ones, with smaller work")
    parser.add_argument("--only", nargs="+", default=[], choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, metavar="N", help="calls of short ones (default: 2 or 3)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/bench"),
        metavar="DIR",
        help="for bench.md and bench.json",
    )
    given = parser.parse_args(arguments)
    if given.rounds is not None and given.rounds < 1:
        parser.error(f"--rounds: expected 1 or more, got {given.rounds}")
    if not suite.chosen(given.only, quick=given.quick):
        parser.error(f"--quick: expected a benchmark that it has, got only {', '.join(given.only)}")
    return given


if __name__ == "__main__":
    sys.exit(run_script(main))
