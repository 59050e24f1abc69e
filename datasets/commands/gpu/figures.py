"""Figures of a section, each beside the expectation of studies/four_gpus.md, and the section's verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

MARK = "segmenter gpu: "
"""Prefix of a section's results, to separate them from output of libraries."""
Value = float | str | None


@dataclass(frozen=True)
class Figure:
    """One figure of a section.

    Attributes:
        value: None if it could not be measured; `note` then has the reason.
        expected: text: the value computed by studies/four_gpus.md for four RTX 2080 Ti, or a limit.
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
