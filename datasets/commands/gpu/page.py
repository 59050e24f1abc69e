"""Page of the answers for a person: a verdict in five lines, then a table for each question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segmenter.base.invocation import invocation
from segmenter.pages.page import html_page
from segmenter.pages.parts import Block, Head, PageSection, Paragraph, Table, TermList

from .figures import Figure, QuestionAnswer
from .questions import PARTS, Question

PAGE = "gpu.html"
Pair = tuple[Question, QuestionAnswer]
_HOLDS = {True: "yes", False: "no", None: ""}


def verdict(pairs: Sequence[Pair], cards: int) -> list[tuple[str, str]]:
    """Return the five lines: what each part found, or why it is not shown."""
    return [(part, "; ".join(_describe_part(part, pairs, cards))) for part in PARTS]


def _describe_part(part: str, pairs: Sequence[Pair], cards: int) -> Iterator[str]:
    if part == PARTS[-1] and cards == 1:
        yield "there is one"
    own = [answer for question, answer in pairs if question.part == part]
    for answer in own:
        for figure in answer.figures:
            if figure.told or (figure.law and figure.holds is False):
                word = "does NOT hold: " if figure.law and figure.holds is False else ""
                yield f"{word}{figure.name}: {figure.shown}"
        if answer.fault:
            yield f"{answer.question} not shown: {answer.fault}"
    if not own and not (part == PARTS[-1] and cards == 1):
        yield "not asked"


def broken(pairs: Sequence[Pair]) -> list[str]:
    """Return the names of laws that do not hold."""
    return [
        f"{answer.question} ({figure.name}: {figure.shown})"
        for _, answer in pairs
        for figure in answer.figures
        if figure.law and figure.holds is False
    ]


def missing(pairs: Sequence[Pair]) -> list[str]:
    """Return what is not shown, by name, with the reason."""
    return [f"{answer.question} ({each})" for _, answer in pairs for each in answer.missing]


def page(head: Mapping[str, Any], pairs: Sequence[Pair], cards: int) -> str:
    """Return the page as HTML."""
    wrong, gaps = broken(pairs), missing(pairs)
    laws = any(figure.law for _, answer in pairs for figure in answer.figures)
    lead = "Every law that was shown holds." if laws else "No law was shown yet."
    lead = f"A law does not hold: {', '.join(wrong)}." if wrong else lead
    lead += f" Not shown: {len(gaps)}, listed below." if gaps else " Everything is shown."
    first: list[Block] = [TermList(verdict(pairs, cards))]
    if head["tiny"]:
        first.append(Paragraph("Tiny models on a CPU: the command runs; no speed means anything.", "notice"))
    elif "CPU" in head["devices"]:
        first.append(Paragraph("On a CPU laws hold or do not; no speed means anything.", "notice"))
    sections = [PageSection("verdict", "Verdict", first)]
    if gaps:
        told = [(name, text.removesuffix(")")) for name, _, text in (gap.partition(" (") for gap in gaps)]
        sections.append(PageSection("missing", "What is not shown?", [TermList(told)]))
    asked = sorted(pairs, key=lambda pair: not pair[0].part)  # facts of the machine last
    sections += [
        PageSection(each.name, each.asks, [_table(answer)]) for each, answer in asked if answer.figures
    ]
    facts = {key: str(value) for key, value in head.items() if key != "tiny"}
    return html_page(Head(f"GPUs of {head['machine']}", lead, facts, invocation("gpu")), sections)


def _table(answer: QuestionAnswer) -> Table:
    header = ["Figure", "Found", "Expected", "As expected", "Remark"]
    caption = f"{answer.question}: {answer.verdict}, {answer.seconds:.0f} s of {answer.limit:.0f}"
    return Table(caption, header, [_row(figure) for figure in answer.figures], words=True)


def _row(figure: Figure) -> list[str]:
    holds = _HOLDS[figure.holds] + " (a law)" * (figure.law and figure.holds is not None)
    return [figure.name, figure.shown, figure.expected, holds, figure.note]
