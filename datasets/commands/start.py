"""Plan a recipe from a folder of images and labels: look at the files, choose every setting, say why."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import ConfigError, counted, plain, run_tool, shortened
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.options import positive
from segmenter.base.terminal import enduring_output, words_aside

if TYPE_CHECKING:
    from ..start.choice import Choice

_WIDE, _REASON = 44, 110
"""Characters of a value and of a reason in the table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a recipe and its page, or explain a setting; return the exit code."""
    given = _parser().parse_args(arguments)
    with words_aside(given.json) as answer:
        from ..start.look import look
        from ..start.plan import plan
        from ..start.recipe_file import check_free
        from ..start.request import Request

        recipe = given.output or Path(f"{_name(given.data)}.yaml")
        page = given.page or recipe.with_suffix(".html")
        if given.explain is None:
            for path in (recipe, page):
                check_free(path)
        request = Request(given.hours, given.gpus, recipe.stem)
        seen = look(given.data, given.labels)
        choices = (*seen, *plan(seen, request))
        if given.explain is not None:
            print(_explained(given.explain, seen, choices))
        else:
            print(_table(choices))
            _write(given, choices, recipe, page)
        if given.json:
            told = [vars(choice) for choice in choices if given.explain in (None, choice.key)]
            print(json.dumps(told, ensure_ascii=False), file=answer, flush=True)
    return 0


def _write(given: argparse.Namespace, choices: Sequence[Choice], recipe: Path, page: Path) -> None:
    """Check the dataset, then write recipe and page."""
    from segmenter.base.files import write_whole

    from .. import load_dataset
    from ..check import check_dataset
    from ..start.page import start_page
    from ..start.recipe_file import recipe_of, recipe_text, write_recipe

    planned = recipe_of(choices, recipe.stem)
    dataset = load_dataset(planned)
    report = check_dataset(dataset)
    html = start_page(planned, choices, dataset, report)
    command = ["segmenter start", str(given.data), *(["--labels", str(given.labels)] if given.labels else [])]
    write_recipe(recipe, recipe_text(choices, " ".join(command)))
    write_whole(page, html.encode())
    if report.findings:
        print(f"{counted(len(report.findings), 'finding')}: {invocation('datasets')} check {recipe}")
    print(plain(f"written: {recipe}, and {page} with pictures: look at it first"))
    print(plain(f"then: {invocation('train')} {recipe}"))


def _table(choices: Sequence[Choice]) -> str:
    """Return the settings, their values and reasons as a table."""
    from segmenter.base.terminal import aligned

    rows = []
    for choice in choices:
        reason = shortened(choice.reason, _REASON)
        rows.append([choice.key, shortened(plain(_shown(choice)), _WIDE), plain(reason)])
        if choice.other:
            rows.append(["", "", plain(f"or: {shortened(choice.other, _REASON)}")])
    return "\n".join(aligned(["setting", "value", "reason"], rows, left=3))


def _shown(choice: Choice) -> str:
    value = choice.value
    if isinstance(value, list):
        return ", ".join(
            str(each["name"]) if isinstance(each, dict) and "name" in each else str(each) for each in value
        )
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, bool)) else str(value)


def _explained(key: str, seen: Sequence[Choice], choices: Sequence[Choice]) -> str:
    """Return value, reason, other reading and source of a setting.

    Raises:
        ConfigError: nothing was planned for the key.
    """
    by_key = {choice.key: choice for choice in choices}
    choice = by_key.get(key)
    if choice is None:
        near = get_close_matches(key, by_key, 1, 0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"--explain {key}: expected a planned setting{meant}; there are {', '.join(by_key)}"
        )
    source = "seen in the files" if choice in seen else "a rule of the plan"
    lines = [f"{key}: {_shown(choice)}", f"reason: {choice.reason}"]
    lines += [f"or: {choice.other}"] if choice.other else []
    return "\n".join(map(plain, [*lines, f"source: {source}"]))


def _name(data: Path) -> str:
    """Return the name of a recipe for a folder."""
    name = (data if data.is_dir() else data.with_suffix("")).resolve().name
    return re.sub(r"[^\w .-]|^\W+", "_", name) or "data"


def _gpus(text: str) -> tuple[int, ...]:
    """Return the GiB of each card of a text as `4x11GB` or `2x24GB,11GB`."""
    cards: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:(\d{1,3})\s*[x×*]\s*)?(\d{1,4})\s*(?:GB|GiB|G)?\s*", part, re.IGNORECASE)
        if match is None or not int(match[2]) or match[1] == "0":
            raise argparse.ArgumentTypeError(f"expected cards as 4x11GB or 2x24GB,1x11GB, got {text!r}")
        cards += [int(match[2])] * int(match[1] or 1)
    return tuple(cards)


def _parser() -> ToolParser:
    parser = ToolParser(prog=invocation("start"), description=__doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of images, and of labels")
    parser.add_argument(
        "--labels", type=Path, metavar="LABELS", help="folder or file of the labels, where they lie elsewhere"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.yaml", help="recipe to write (default: DATA.yaml, here)"
    )
    parser.add_argument("--hours", type=positive(float), metavar="H", help="time that the training may take")
    parser.add_argument(
        "--gpus", type=_gpus, metavar="4x11GB", help="cards to plan for (default: this machine)"
    )
    parser.add_argument("--explain", metavar="KEY", help="say why a setting is so, and write nothing")
    parser.add_argument(
        "--page", type=Path, metavar="FILE.html", help="page to write (default: beside the recipe)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the settings as JSON on stdout, all else on stderr"
    )
    return parser


if __name__ == "__main__":
    with enduring_output():
        sys.exit(run_tool(main))
