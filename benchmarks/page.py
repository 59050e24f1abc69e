"""Tables of a page in docs/ that a benchmark writes, between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

END = "<!-- end of table -->"


def renew(path: Path, mark: str, lines: Iterable[str]) -> None:
    """Put new lines between `mark` and the end of the table that follows it."""
    before, rest = path.read_text(encoding="utf-8").split(mark)
    after = rest.split(END, 1)[1]
    path.write_text("\n".join([before + mark, *lines, END + after]), encoding="utf-8")


def rows_of(path: Path, mark: str) -> list[str]:
    """The lines between `mark` and the end of the table that follows it."""
    return path.read_text(encoding="utf-8").split(mark)[1].split(END, 1)[0].strip().splitlines()


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """Return lines of a Markdown table; the first `words` columns are text, the others numbers."""
    rule = [" --- " if column < words else " ---: " for column in range(len(head))]
    return [f"| {' | '.join(head)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]
