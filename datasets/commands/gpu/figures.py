"""Figures of a section, each beside what studies/four_gpus.md expects, and the verdict on a section."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

MARK = "segmenter gpu: "
"""In front of what a section's process hands over, among whatever libraries print."""
Value = float | str | None


@dataclass(frozen=True)
class Figure:
    """One line of a section.

    Attributes:
        value: None where it could not be had; `note` then says why.
        expected: what studies/four_gpus.md computes for four RTX 2080 Ti, or a limit, in words.
        holds: whether the value is as expected; None where nothing is promised.
        law: a law of the program: where it does not hold, the command fails.
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
        """Value and unit, for people."""
        if self.value is None:
            return "–"
        text = self.value if isinstance(self.value, str) else f"{self.value:.4g}"
        return f"{text} {self.unit}".strip()


@dataclass
class Section:
    """Result of a section.

    Attributes:
        limit: seconds that it could have.
        fault: why it ended before its end; empty if it did not.
        cut_off: it was ended at its limit: what it found until then counts.
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
        """In a word; "no" where a figure is not as expected, law or not."""
        if self.fault and not self.cut_off:
            return "failed"
        if any(figure.holds is False for figure in self.figures):
            return "no"
        if self.cut_off:
            return "cut off"
        return "yes" if any(figure.holds for figure in self.figures) else "measured"

    @property
    def fails(self) -> bool:
        """A law does not hold, or the section could not be run."""
        broken = any(figure.law and figure.holds is False for figure in self.figures)
        return broken or self.verdict == "failed"

    @property
    def not_shown(self) -> bool:
        """It ended before all of a law was shown."""
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
    """Read what `line_of` gave; None for any other line, as for one that was cut in the middle."""
    if not line.startswith(MARK):
        return None
    try:
        return Figure(**json.loads(line.removeprefix(MARK)))
    except ValueError:
        return None


def spread(values: Sequence[float], unit: str = "") -> str:
    """Return the smallest and largest of repetitions, for a note."""
    return f"{min(values):.4g} … {max(values):.4g} {unit}".strip() + f" in {len(values)}"
