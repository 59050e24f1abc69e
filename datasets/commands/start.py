"""Plan a recipe from a folder of images and labels: look at the files, choose every setting, say why."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import ConfigError, counted, plain, shorten
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.options import option, parse_options
from segmenter.base.terminal import align_table, columns, say, stdout_for_json, terminal_width

from ..start.choice import Choice, nest_choices, recipe_text, value_text
from .frame import tool_parser

if TYPE_CHECKING:
    from segmenter.grid.deals import Deals

    from ..contents import Contents

_WIDE, _REASON = 44, 110
"""Characters of a value and of a reason in the table."""


NOT_MEASURED = "time: not measured, as --gpus names another machine; the first steps of a training say it"
_CARDS = re.compile(r"\s*(?:(\d{1,3})\s*[x×*]\s*)?(\d{1,4})\s*(GB|GiB|G)?\s*", re.IGNORECASE)

_REMARKS = 3
"""Remarks of the check that are printed; the page has more."""


def _gpus(text: str) -> tuple[int, ...]:
    """Return the GiB of each card of a text as `4x11GB` or `2x24GB,11GB`."""
    cards: list[int] = []
    for part in text.split(","):
        match = _CARDS.fullmatch(part)
        if match is None or not int(match[2]) or match[1] == "0":
            raise argparse.ArgumentTypeError(f"expected cards as 4x11GB or 2x24GB,1x11GB, got {text!r}")
        if match[1] is None and match[3] is None:  # a number alone is a count to most people
            raise argparse.ArgumentTypeError(
                f"expected the memory of each card, got {text!r}: {match[2]} cards of 11 GB are "
                f"{match[2]}x11GB, one card of {match[2]} GB is {match[2]}GB"
            )
        cards += [int(match[2])] * int(match[1] or 1)
    return tuple(cards)


@dataclass(frozen=True, kw_only=True)
class _Options:
    data: Path = option(
        ...,
        "folder of the images, and of the labels if --labels names no other place",
        "DATA",
        positional=True,
    )
    labels: Path | None = option(
        None,
        "labels of the images: a folder, one file, or a pattern such as '*_lc.tif' (default: found in DATA)",
        "LABELS",
    )
    output: Path | None = option(None, "recipe to write (default: DATA.yaml in this folder)", "FILE.yaml")
    hours: float | None = option(
        None,
        "time that the training may take, in hours (default: as many epochs as the tiles need)",
        "H",
        least=1e-9,
    )
    like: Path | None = option(
        None,
        "recipe or run whose split is taken over, so that its scenes stay in training, validation or test "
        "(default: a recipe of the same data in the folder of the one to write, if there is one)",
        "RECIPE|RUN",
    )
    gpus: tuple[int, ...] | None = option(
        None,
        "GPUs to plan for, by number and memory, as 4x11GB or 2x24GB,11GB (default: those of this machine)",
        "4x11GB",
        read=_gpus,
    )
    explain: str | None = option(
        None, "explain the choice of one setting, as training.epochs, and write nothing", "KEY"
    )
    page: Path | None = option(
        None, "HTML page to write (default: beside the recipe, with its name)", "FILE.html"
    )
    json: bool = option(False, "print the settings as JSON on stdout, all other text on stderr")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a recipe and its page, or explain a setting; return the exit code."""
    given = parse_options(_parser(), _Options, arguments)
    with stdout_for_json(given.json) as answer:
        from segmenter.base.files import check_writable, exclusive_outputs

        from ..contents import Contents
        from ..start.like import as_before
        from ..start.look import look
        from ..start.plan import plan

        recipe = given.output or Path(f"{_name(given.data)}.yaml")
        page = given.page or recipe.with_suffix(".html")
        say(plain(f"looking at {given.data}"), aside=True)
        with ExitStack() as stack:
            if given.explain is None:
                check_writable(page)
                remedy = "nothing is written over; name another by --output or --page"
                stack.enter_context(exclusive_outputs(recipe, page, remedy=remedy, kind=ConfigError))
            contents = Contents()
            seen, deals = as_before(look(given.data, given.labels, contents), given.like, recipe)
            choices = (*seen, *plan(seen, recipe.stem, given.hours, given.gpus, contents))
            if given.explain is None:
                _write(given, choices, recipe, page, deals, contents)
            else:
                print(_explain(given.explain, seen, choices))
        if given.json:
            told = [vars(choice) for choice in choices if given.explain in (None, choice.key)]
            print(json.dumps(told, ensure_ascii=False), file=answer, flush=True)
    return 0


def _write(
    given: _Options, choices: Sequence[Choice], recipe: Path, page: Path, deals: Deals, contents: Contents
) -> None:
    """Check the dataset, print the settings, and write recipe, deal and page."""
    from segmenter.base.files import write_whole
    from segmenter.config.reading import recipe_from, with_deals

    from .. import load_dataset
    from ..check import check_dataset
    from ..known import keep_deal
    from ..start.page import start_page
    from ..start.timing import time_here

    planned = with_deals(recipe_from({"name": recipe.stem, **nest_choices(choices)}, "the plan"), deals)
    dataset = load_dataset(planned)
    report = check_dataset(dataset, contents=contents)
    lasts = NOT_MEASURED if given.gpus is not None else time_here(planned, dataset)
    html = start_page(planned, choices, dataset, report, lasts)
    text = recipe_text(choices, _command(given))
    print(_table(choices))
    write_whole(page, html.encode())
    keep_deal(recipe, deals, dataset)
    write_whole(recipe, text.encode())
    typed = shlex.quote(str(recipe))
    for remark in report.remarks[:_REMARKS]:
        print(plain(f"warning: {remark}"))
    for choice in choices:
        _print_asked(choice, recipe)
    if report.findings:
        print(plain(f"{counted(len(report.findings), 'finding')}: {invocation('check')} {typed}"))
    print(plain(f"written: {recipe}, and {page} with pictures: look at it first"))
    first = "then" if not report.findings else "then, once the findings are settled"
    print(plain(f"{first}: {invocation('train')} {typed}"))
    print(lasts)


def _print_asked(choice: Choice, recipe: Path) -> None:
    """Print what is left out, and a question with the lines to paste if the answer is the other reading."""
    if choice.left:
        print(plain(f"finding: {choice.left}"))
    if choice.question:
        print(plain(f"question: {choice.question} If so, in {recipe}:"))
        print("\n".join(f"  {plain(line)}" for line in choice.lines()))


def _command(given: _Options) -> str:
    """Return the command with all that the plan depends on."""
    gpus = None if given.gpus is None else ",".join(f"{card}GB" for card in given.gpus)
    options = {"--labels": given.labels, "--hours": given.hours, "--gpus": gpus, "--like": given.like}
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return shlex.join(["segmenter", "start", str(given.data), *words])


def _table(choices: Sequence[Choice]) -> str:
    """Return the settings, their values and reasons as a table; on a narrow terminal as blocks."""
    rows = []
    for choice in choices:
        texts = [choice.reason, *([f"or: {choice.other}"] if choice.other else [])]
        heads = [[choice.key, shorten(value_text(choice.value), _WIDE)], ["", ""]]
        rows += [[*head, plain(shorten(text, _REASON))] for head, text in zip(heads, texts, strict=False)]
    lines = align_table(["setting", "value", "reason"], rows, left=3)
    room = columns()
    if room is None or max(map(terminal_width, lines)) <= room:
        return "\n".join(lines)
    return "\n".join(line for choice in choices for line in _block(choice))


def _block(choice: Choice) -> Iterator[str]:
    """Yield a setting with its value, and its reason and other reading below."""
    yield plain(f"{choice.key}: {shorten(value_text(choice.value), _REASON)}")
    yield plain(f"    {choice.reason}")
    if choice.other:
        yield plain(f"    or: {choice.other}")


def _explain(key: str, seen: Sequence[Choice], choices: Sequence[Choice]) -> str:
    """Return value, reason, other reading and source of a setting.

    Raises:
        ConfigError: nothing was planned for the key.
    """
    by_key = {choice.key: choice for choice in choices}
    if key not in by_key:
        near = get_close_matches(key, by_key, 1, 0.5)
        meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(by_key)}"
        raise ConfigError(
            f"--explain {key}", expected=f"a planned setting, nothing was planned for it{meant}"
        )
    choice = by_key[key]
    lines = [f"{key}: {value_text(choice.value)}", f"reason: {choice.reason}"]
    lines += [f"or: {choice.other}"] if choice.other else []
    lines += [f"question: {choice.question} If so: {line}" for line in choice.lines()]
    lines.append("source: " + ("seen in the files" if choice in seen else "a rule of the plan"))
    return "\n".join(map(plain, lines))


def _name(data: Path) -> str:
    """Return the name of a recipe for a folder."""
    name = (data if data.is_dir() else data.with_suffix("")).resolve().name
    return re.sub(r"[^\w .-]|^\W+", "_", name) or "data"


_CALLS = {
    "data/mine": "find images and labels in data/mine; write mine.yaml and a page",
    "data/images --labels data/labels --hours 4": "labels elsewhere, and a limit of the training's time",
    "data/mine --explain training.epochs": "why a setting is planned so",
}


def _parser() -> ToolParser:
    return tool_parser("start", __doc__, _Options, calls=_CALLS)
