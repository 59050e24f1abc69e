"""Files gpu.json and gpu.md with the results of `segmenter gpu`, rewritten after each section."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from segmenter.base.files import write_whole

from .figures import Figure, Section

JSON, PAGE = "gpu.json", "gpu.md"
_WORDS = {True: "yes", False: "no", None: ""}


def write(folder: Path, head: Mapping[str, Any], sections: Sequence[Section]) -> None:
    """Write both files completely: results survive a later crash."""
    content = {**head, "sections": [section.as_line() for section in sections]}
    for name, text in (
        (JSON, json.dumps(content, indent=1) + "\n"),
        (PAGE, "\n".join(lines(head, sections))),
    ):
        write_whole(folder / name, text.encode())


def lines(head: Mapping[str, Any], sections: Sequence[Section]) -> Iterator[str]:
    """Yield the lines of gpu.md."""
    yield "# Measured on this machine"
    yield ""
    yield "; ".join(f"{key}: {value}" for key, value in head.items())
    yield ""
    if head.get("tiny"):
        yield "**Tiny models on logical CPU devices: the command runs; no figure means anything.**"
        yield ""
    elif "logical" in head["devices"]:
        yield "**Logical CPU devices: laws hold or do not; no speed means anything.**"
        yield ""
    yield "*Expected* is what studies/four_gpus.md computes for four RTX 2080 Ti, or a limit. A law that does"
    yield "not hold ends the command with exit code 1, one that was not shown with 3; other figures do not."
    yield ""
    rows = [[s.name, s.verdict, f"{s.seconds:.0f}", f"{s.limit:.0f}", cell(s.fault)] for s in sections]
    yield from table(["section", "as expected", "seconds", "limit", "remark"], rows, words=2)
    for section in sections:
        yield ""
        yield f"## {section.name}"
        yield ""
        yield from table(
            ["figure", "measured", "expected", "holds", "remark"], map(_row, section.figures), words=5
        )
    yield ""


def _row(figure: Figure) -> list[str]:
    holds = _WORDS[figure.holds] + " (law)" * (figure.law and figure.holds is not None)
    return [cell(text) for text in (figure.name, figure.shown, figure.expected, holds, figure.note)]


def cell(text: str) -> str:
    """Return a text for a cell of a Markdown table: one line without `|`."""
    return " ".join(text.split()).replace("|", "\\|")


def line(section: Section) -> str:
    """Return a line for the terminal: the section with its figures that have a verdict, or its first ones."""
    judged = [f for f in section.figures if f.holds is not None] or section.figures[:3]
    text = "; ".join(f"{figure.name} {figure.shown}" for figure in judged[:4])
    return f"{section.name:<12} {section.verdict:<9} {section.seconds:4.0f} s   {section.fault or text}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """Return lines of a Markdown table; the first `words` columns are text, the others numbers."""
    rule = [" --- " if column < words else " ---: " for column in range(len(head))]
    return [f"| {' | '.join(head)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]
