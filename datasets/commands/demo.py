"""Demo: make imagery, train, map scenes that training never saw, and show all of it on a page."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import ConfigError, plain
from segmenter.base.invocation import ToolParser, quote_path
from segmenter.base.options import option, parse_options
from segmenter.base.terminal import align_table, say
from segmenter.runs.checkpoints import checkpoints

from .demo_facts import ABOUT, HEAD, DemoFacts, next_commands
from .frame import tool_parser
from .recipes import ready_made
from .tools import module_of

_PAGE = "index.html"
_THREADS = "2"
"""Threads of an operation: their number decides the order of sums, so it is the same on every machine."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    folder: Path = option(
        Path("demo"), "folder to write, which must not exist (default: demo)", "DIR", positional=True
    )
    seed: int = option(
        1, "seed of the imagery and the training (default: 1, whose result the README states)", "N", least=0
    )
    resume: bool = option(False, "go on with a demo that was stopped or killed, in the folder that it wrote")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands that a user would run, on made imagery; return the exit code."""
    given = parse_options(_parser(), _Options, arguments)
    folder, started = given.folder, time.process_time()
    run, page = folder / "run", folder / _PAGE
    if folder.exists() and (not given.resume or page.exists()):
        raise ConfigError(folder, "exists already", remedy=_remedy(page))
    os.environ["TF_NUM_INTRAOP_THREADS"] = _THREADS
    settings = ["--set", f"dataset.root={folder / 'data'}", "--set", f"seed={given.seed}"]
    if not (folder / "data").exists():  # it is whole, or not there
        _make(folder / "data", given.seed)
    resumed = ["--resume"] if checkpoints(run) else []
    if run.exists() and not resumed:
        shutil.rmtree(run)
    words = [str(ready_made()["demo"]), "--run", str(run), *settings, *resumed]
    if trained := module_of("train").main(words):
        return int(trained)
    maps = ["--split", "test", "--output", str(folder / "maps"), "--pictures"]
    if mapped := module_of("predict").main([str(run), *maps]):
        return int(mapped)
    shutil.rmtree(run / "checkpoints")  # of a finished training, which nobody resumes
    _show(folder, time.process_time() - started)
    return 0


def _remedy(page: Path) -> str:
    if page.exists():
        return f"open {quote_path(page)}, or name another folder"
    return "--resume goes on with it; or remove it, or name another folder"


def _make(data: Path, seed: int) -> None:
    from ..synthetic.demo import make_demo

    make_demo(data, seed=seed)


def _show(folder: Path, seconds: float) -> None:
    """Print coverage and scores, the next commands, and write the page."""
    from segmenter.base.files import write_whole

    from .demo_page import demo_page

    facts = DemoFacts.of(folder)
    say("\n".join(["", *align_table(HEAD, facts.rows()), "", *ABOUT]))
    page = folder / _PAGE
    write_whole(page, demo_page(folder, facts).encode())
    say(plain(f"open {quote_path(page)}: image, label, map and errors ({seconds / 60:.1f} min of processor)"))
    labels = quote_path(folder / "data" / "labels" / "{stem}.tif")
    say(f"look: segmenter view {quote_path(folder / 'maps')} --labels {labels}")
    say("\n".join(["next, with your own data:", *(f"  {command}" for command, _ in next_commands())]))


_CALLS = {
    "": "make imagery, train, map, and write the page demo/index.html",
    "try --seed 2": "the same in the folder try, with other imagery",
}


def _parser() -> ToolParser:
    return tool_parser("demo", __doc__, _Options, calls=_CALLS)
