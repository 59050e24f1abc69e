"""Demo: make imagery, train, map scenes that training never saw, and show all of it on a page."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import ConfigError, plain, run_tool
from segmenter.base.invocation import COMMAND, ToolParser, invocation, typed
from segmenter.base.options import add_options, option, parsed
from segmenter.base.terminal import aligned, say

from . import module_of
from .demo_facts import ABOUT, HEAD, Facts, next_commands
from .recipes import ready_made

_THREADS = "2"
"""Threads of an operation: their number decides the order of sums, so it is the same on every machine."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    folder: Path = option(Path("demo"), "new folder to write (default: demo)", "DIR", positional=True)
    seed: int = option(1, "of imagery and training (default: 1, which the README speaks of)", "N", least=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands that a user would run, on made imagery; return the exit code."""
    given = parsed(_parser(), _Options, arguments)
    folder, started = given.folder, time.process_time()
    if folder.exists():
        raise ConfigError(folder, "exists already", remedy="remove it, or name another folder")
    os.environ["TF_NUM_INTRAOP_THREADS"] = _THREADS
    run = folder / "run"
    settings = ["--set", f"dataset.root={folder / 'data'}", "--set", f"seed={given.seed}"]
    _make(folder / "data", given.seed)
    trained = module_of("train").main([str(ready_made()["demo"]), "--run", str(run), *settings])
    if trained:
        say(plain(f"the demo is not finished; to begin again: rm -r {typed(folder)}, then {COMMAND} demo"))
        return int(trained)
    maps = ["--split", "test", "--output", str(folder / "maps"), "--pictures"]
    if mapped := module_of("predict").main([str(run), *maps]):
        return int(mapped)
    shutil.rmtree(run / "checkpoints")  # of a finished training, which nobody resumes
    _show(folder, time.process_time() - started)
    return 0


def _make(data: Path, seed: int) -> None:
    from ..synthetic.demo import make_demo

    make_demo(data, seed=seed)


def _show(folder: Path, seconds: float) -> None:
    """Print coverage and scores, the next commands, and write the page."""
    from segmenter.base.files import write_whole

    from .demo_page import demo_page

    facts = Facts.of(folder)
    say("\n".join(["", *aligned(HEAD, facts.rows()), "", *ABOUT]))
    page = folder / "index.html"
    write_whole(page, demo_page(folder, facts).encode())
    say(plain(f"open {typed(page)}: image, label, map and errors ({seconds / 60:.1f} min of processor)"))
    say("\n".join(["next, with your own data:", *(f"  {command}" for command, _ in next_commands())]))


def _parser() -> ToolParser:
    return add_options(ToolParser(prog=invocation("demo"), description=__doc__), _Options)


if __name__ == "__main__":
    sys.exit(run_tool(main))
