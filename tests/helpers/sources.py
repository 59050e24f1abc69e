"""The syntax of Python files, parsed and walked once a process."""

import ast
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file; the first is its module."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def module_at(path: Path) -> ast.Module:
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    return module


@cache
def nodes_of_program() -> tuple[ast.AST, ...]:
    files = (path for folder in ("segmenter", "datasets") for path in (ROOT / folder).rglob("*.py"))
    return tuple(chain.from_iterable(map(nodes_of, files)))
