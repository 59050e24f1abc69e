"""Compare runs: what they reached, class by class, how fast, and in which settings they differ."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.base.files import check_writable, write_whole
from segmenter.base.terminal import aligned
from segmenter.runs.copies import RUN_FILE, runs_in
from segmenter.runs.report.compared import Compared, compare_page, comparison
from segmenter.runs.report.run_record import read_story

HELP = "what runs reached, and in which settings they differ"
_WIDEST = 36
"""Characters of a cell in the terminal; the page has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m segmenter.runs compare`."""
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="two run directories or more, or a folder of them"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.html", help="also write a page with the curves")


def run(arguments: argparse.Namespace) -> int:
    """Print the tables, and write the page if it is asked for."""
    paths = _checked([run for path in arguments.runs for run in _meant(path)])
    compared = comparison([read_story(path) for path in paths])
    if arguments.output is not None:  # which may be refused: before anything is said
        check_writable(arguments.output)
        write_whole(arguments.output, compare_page(compared).encode())
    print(as_text(compared))
    if arguments.output is not None:
        print(f"\npage: {arguments.output}")
    return 0


def _meant(path: Path) -> list[Path]:
    """A run, or those in a folder."""
    return [path] if (path / RUN_FILE).exists() else runs_in(path) or [path]


def _checked(paths: Sequence[Path]) -> list[Path]:
    if len(paths) < 2:
        raise SegmenterError(
            f"compare: expected two run directories or more, or their folder, got {len(paths)}: {paths[0]}"
        )
    known: dict[Path, Path] = {}
    for path in paths:
        first = known.setdefault(path.resolve(), path)
        if first is not path:
            raise SegmenterError(
                f"compare: expected each run once, got {first} and {path}, which are the same"
            )
    return list(paths)


def as_text(compared: Compared) -> str:
    """The comparison for a terminal."""
    parts = []
    for group in compared.groups:
        parts.append("\n".join([group.title, *_table(group.ranking.header, group.ranking.rows)]))
        parts.append(
            "\n".join(["IoU of each class, in percent", *_table(group.classes.header, group.classes.rows)])
        )
    if compared.apart:
        parts.append("\n".join(["not in one ranking:", *(f"  {line}" for line in compared.apart)]))
    for table in (compared.unscored, compared.speed, compared.settings):
        if table.rows:
            parts.append("\n".join([table.caption, *_table(table.header, table.rows, words=table.words)]))
    if not compared.settings.rows:
        parts.append("their recipes have the same settings")
    return "\n\n".join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]], *, words: bool = False) -> list[str]:
    """Lines of a table; long cells are cut, `words` are to the left."""
    cells = [[_cut(str(getattr(cell, "name", cell))) for cell in row] for row in rows]
    return [f"  {line}" for line in aligned(header, cells, left=len(header) if words else 1)]


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
