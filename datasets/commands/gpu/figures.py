"""Figures, the answers that they make, and gpu.json, which keeps them for the next call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from segmenter.base.errors import OutputError
from segmenter.base.files import write_whole

MARK = "segmenter gpu: "
"""Prefix of a figure on the output of its process, to separate it from output of libraries."""
JSON = "gpu.json"
Value = float | str | None
Verdict = Literal["shown", "does not hold", "not shown"]


@dataclass(frozen=True)
class Figure:
    """One figure of an answer.

    Attributes:
        value: None if it could not be found; `note` then has the reason.
        holds: True if the value is as expected; None without an expectation.
        law: True for a law of the program: if it does not hold, the command fails.
        told: True if the page's verdict has it.
    """

    name: str
    value: Value
    unit: str = ""
    expected: str = ""
    holds: bool | None = None
    law: bool = False
    note: str = ""
    told: bool = False

    @property
    def shown(self) -> str:
        """Value and unit as text."""
        if self.value is None:
            return "not shown"
        if isinstance(self.value, str):
            return self.value
        number = f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.3g}"
        return f"{number} {self.unit}".strip()


@dataclass
class QuestionAnswer:
    """Answer to a question.

    Attributes:
        question: its name.
        limit: time limit in seconds.
        fault: why there are no more figures; empty if it is answered in full.
    """

    question: str
    limit: float = 0.0
    seconds: float = 0.0
    fault: str = ""
    figures: list[Figure] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Gaps of the answer: figures without a value, and the reason why it ended before it had all."""
        gaps = [f"{each.name}: {each.note}" for each in self.figures if each.value is None]
        return [*([self.fault] if self.fault else []), *gaps]

    @property
    def verdict(self) -> Verdict:
        """Verdict on the answer: a law does not hold, some figure is missing, or all is shown."""
        if any(figure.law and figure.holds is False for figure in self.figures):
            return "does not hold"
        return "not shown" if self.missing else "shown"


def line_of(figure: Figure) -> str:
    """Return a figure as a line that a question's process prints."""
    return MARK + json.dumps(asdict(figure))


def read_line(line: str) -> Figure | None:
    """Read a line of `line_of`; None for any other or truncated line."""
    if not line.startswith(MARK):
        return None
    try:
        return Figure(**json.loads(line.removeprefix(MARK)))
    except ValueError:
        return None


def content_of(head: Mapping[str, Any], answers: Iterable[QuestionAnswer]) -> dict[str, Any]:
    """Return what gpu.json holds."""
    return {**head, "answers": [{**asdict(each), "verdict": each.verdict} for each in answers]}


def keep(folder: Path, content: Mapping[str, Any]) -> None:
    """Write gpu.json whole: what is known survives whatever comes next."""
    write_whole(folder / JSON, (json.dumps(content, indent=1) + "\n").encode())


def kept_answers(folder: Path, head: Mapping[str, Any]) -> list[QuestionAnswer]:
    """Return the answers of an earlier call in a folder; none if there was none.

    Raises:
        OutputError: they are of another machine, other devices, or another program.
    """
    path = folder / JSON
    if not path.exists():
        return []
    remedy = "take another folder, or remove it"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = {each.name for each in fields(QuestionAnswer)} - {"figures"}
        answers = [
            QuestionAnswer(
                **{name: line[name] for name in names}, figures=[Figure(**f) for f in line["figures"]]
            )
            for line in content["answers"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise OutputError(path, expected="answers of segmenter gpu", remedy=remedy) from None
    for key, value in head.items():
        if key != "date" and content.get(key) != value:
            raise OutputError(path, expected=f"answers of {key} {value}", got=content.get(key), remedy=remedy)
    return answers


def spread(values: Sequence[float], unit: str = "") -> str:
    """Return smallest and largest of repeated values as text, for a note."""
    return f"{min(values):.4g} … {max(values):.4g} {unit}".strip() + f" in {len(values)}"
