"""Figures of a section, its verdict, and the files gpu.json and gpu.md, rewritten after each section."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from segmenter.base.files import write_whole

MARK = "segmenter gpu: "
"""Prefix of a section's results, to separate them from output of libraries."""
Value = float | str | None


@dataclass(frozen=True)
class Figure:
    """One figure of a section.

    Attributes:
        value: None if it could not be measured; `note` then has the reason.
        holds: True if the value is as expected; None without an expectation.
        law: True for a law of the program: if it does not hold, the command fails.
    """

    name: str
    value: Value
    unit: str = ""
    expected: str = ""
    holds: bool | None = None
    law: bool = False
    note: str = ""

    @property
    def shown(self) -> str:
        """Value and unit as text."""
        if self.value is None:
            return "–"
        text = self.value if isinstance(self.value, str) else f"{self.value:.4g}"
        return f"{text} {self.unit}".strip()


@dataclass
class Section:
    """Result of a section.

    Attributes:
        limit: time limit in seconds.
        fault: reason of an early end; else empty.
        cut_off: True if it was ended at its limit; earlier results count.
    """

    name: str
    limit: float
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list)
    fault: str = ""
    cut_off: bool = False
    is_law: bool = False

    @property
    def verdict(self) -> Literal["yes", "no", "failed", "cut off", "measured"]:
        """Verdict in a word; "no" if a figure is not as expected, law or not."""
        if self.fault and not self.cut_off:
            return "failed"
        if any(figure.holds is False for figure in self.figures):
            return "no"
        if self.cut_off:
            return "cut off"
        return "yes" if any(figure.holds for figure in self.figures) else "measured"

    @property
    def fails(self) -> bool:
        """True if a law does not hold, or the section failed."""
        broken = any(figure.law and figure.holds is False for figure in self.figures)
        return broken or self.verdict == "failed"

    @property
    def not_shown(self) -> bool:
        """True if the section ended before all of a law was shown."""
        return self.is_law and self.cut_off

    def as_line(self) -> dict[str, Any]:
        """Return the section for gpu.json."""
        return {
            "section": self.name,
            "verdict": self.verdict,
            "fails": self.fails,
            "not_shown": self.not_shown,
            "seconds": round(self.seconds, 1),
            "limit": round(self.limit, 1),
            **({"fault": self.fault} if self.fault else {}),
            "figures": [asdict(figure) for figure in self.figures],
        }


def line_of(figure: Figure) -> str:
    """Return a figure as a line that a section's process prints."""
    return MARK + json.dumps(asdict(figure))


def read_line(line: str) -> Figure | None:
    """Read a line of `line_of`; None for any other or truncated line."""
    if not line.startswith(MARK):
        return None
    try:
        return Figure(**json.loads(line.removeprefix(MARK)))
    except ValueError:
        return None


def spread(values: Sequence[float], unit: str = "") -> str:
    """Return smallest and largest of repeated values as text, for a note."""
    return f"{min(values):.4g} … {max(values):.4g} {unit}".strip() + f" in {len(values)}"


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
    yield "A law that does not hold ends the command with exit code 1, one that was not shown with 3."
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
