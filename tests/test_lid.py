"""The lid: code lines, statements and lines of page templates by room, and what a user has to read."""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from datasets.commands.tools import TOOLS
from segmenter.config.reading import default_recipe, flat_settings
from tests.helpers.sources import nodes_of

ROOT = Path(__file__).parents[1]
LIMITS = {
    "datasets": (2677, 2604, 0),
    "datasets.commands": (2971, 3098, 0),
    "datasets.start": (3736, 4020, 0),
    "datasets.synthetic": (973, 981, 0),
    "extras.__init__.py": (0, 1, 0),
    "extras.accuracy": (1821, 1628, 0),
    "extras.dask": (788, 812, 0),
    "extras.export": (619, 587, 0),
    "extras.gis": (218, 279, 0),
    "extras.input_cost.py": (174, 174, 0),
    "extras.parameter_servers": (752, 795, 0),
    "extras.review": (788, 884, 0),
    "extras.sharing": (754, 616, 0),
    "extras.strategies": (266, 237, 0),
    "extras.upload.py": (211, 219, 0),
    "extras.vector_files": (565, 575, 0),
    "extras.vectors": (862, 900, 0),
    "extras.view": (1629, 1808, 1283),
    "extras.written_map.py": (106, 110, 0),
    "segmenter": (49, 37, 0),
    "segmenter.api": (669, 722, 0),
    "segmenter.base": (1364, 1553, 0),
    "segmenter.config": (2317, 1346, 0),
    "segmenter.demands": (119, 131, 0),
    "segmenter.devices": (1203, 1197, 0),
    "segmenter.diagnosis": (1595, 1378, 0),
    "segmenter.evaluation": (1291, 1424, 0),
    "segmenter.grid": (803, 869, 0),
    "segmenter.inference": (1405, 1504, 0),
    "segmenter.mapping": (3010, 3163, 0),
    "segmenter.model": (1932, 1958, 0),
    "segmenter.pages": (261, 244, 690),
    "segmenter.raster": (3561, 3909, 0),
    "segmenter.runs": (2488, 2489, 0),
    "segmenter.sampling": (1600, 1579, 0),
    "segmenter.tiles": (2899, 3097, 0),
    "segmenter.training": (3191, 3326, 0),
}
"""Room → code lines (no blanks, comments, docstrings, imports), statements, lines of templates and scripts.

A change may lower a number; to raise one is to edit it here, with a reason in the changelog.
"""
QUESTIONS = {"tools": 23, "settings": 121}
"""What a user has to read: tools of the command line, and settings of a recipe's defaults.

A new one says in the changelog which user asked for it.
"""
_SPACE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str, nodes: Iterable[ast.AST]) -> int:
    left_out = {
        line
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in _SPACE for n in range(t.start[0], t.end[0] + 1)}
    return len(lines - left_out)


def room_of(file: Path) -> str:
    folder, *parts = file.relative_to(ROOT).parts
    if len(parts) == 1:
        return folder
    return f"{folder}.{parts[0]}" if folder == "datasets" or parts[0] != "extras" else f"extras.{parts[1]}"


@pytest.fixture(scope="module")
def sizes() -> dict[str, tuple[int, int, int]]:
    code, statements, pages = Counter[str](), Counter[str](), Counter[str]()
    for folder in ("segmenter", "datasets"):
        for file in (ROOT / folder).rglob("*"):
            if {"built", "node_modules"} & {*file.parts}:  # made of others' code, by `make view`
                continue
            if file.suffix == ".py":
                code[room_of(file)] += code_lines(file.read_text(encoding="utf-8"), nodes_of(file))
                statements[room_of(file)] += sum(isinstance(node, ast.stmt) for node in nodes_of(file))
            elif file.suffix in (".html", ".js", ".mjs", ".css"):
                pages[room_of(file)] += len(file.read_text(encoding="utf-8").splitlines())
    return {room: (code[room], statements[room], pages[room]) for room in {*code, *pages}}


def test_no_room_grows_past_its_limit(sizes: dict[str, tuple[int, int, int]]) -> None:
    over = {
        room: (found, LIMITS.get(room))
        for room, found in sizes.items()
        if any(n > most for n, most in zip(found, LIMITS.get(room, (0, 0, 0)), strict=True))
    }
    assert over == {}


def test_limits_are_of_rooms_that_are_there(sizes: dict[str, tuple[int, int, int]]) -> None:
    assert set(LIMITS) <= set(sizes)


def test_there_are_no_more_tools_and_settings_than_were_asked_for() -> None:
    found = {"tools": len(TOOLS), "settings": len(flat_settings(default_recipe()))}
    assert {what: n for what, n in found.items() if n > QUESTIONS[what]} == {}
