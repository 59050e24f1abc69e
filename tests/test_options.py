"""Options declared as fields: what a command line makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from segmenter.base.invocation import ToolParser
from segmenter.base.options import add_options, option, parsed


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int = option(2, "levels", "N")
    sides: tuple[float, float] | None = option(None, "of the box", ("WIDTH", "HEIGHT"))


@dataclass(frozen=True, kw_only=True)
class Outer:
    source: Path = option(..., "to read", positional=True)
    more: tuple[Path, ...] = option((), "read too", positional=True, several=True)
    folds: int | None = option(None, "how many", "K", alone=0, among=range(5))
    fast: bool = option(False, "less exact", one_of="speed")
    slow: bool = option(False, "exact", one_of="speed")
    keep: tuple[Path, ...] = option((), "again", again=True, short="-k")
    inner: Inner = field(default_factory=Inner)
    perhaps: Nested | None = None


@dataclass(frozen=True, kw_only=True)
class Nested:
    workers: int | None = option(None, "processes", "N")


def read(*words: str) -> Outer:
    return parsed(add_options(ToolParser(), Outer), Outer, words)


def test_untyped_options_have_the_defaults_of_their_fields() -> None:
    assert read("a.tif") == Outer(source=Path("a.tif"))
    assert read("a.tif").perhaps is None


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["b.tif", "c.tif"], {"more": (Path("b.tif"), Path("c.tif"))}),
        (["--folds"], {"folds": 0}),
        (["--folds", "3"], {"folds": 3}),
        (["--slow"], {"slow": True}),
        (["-k", "x", "--keep", "y"], {"keep": (Path("x"), Path("y"))}),
        (["--depth", "5", "--sides", "1.5,2"], {"inner": Inner(depth=5, sides=(1.5, 2.0))}),
        (["--workers", "2"], {"perhaps": Nested(workers=2)}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_typed_options_are_fields_also_of_what_lies_within(words: list[str], changes: dict[str, Any]) -> None:
    assert read("a.tif", *words) == Outer(source=Path("a.tif"), **changes)


@pytest.mark.parametrize("typed", ["", "a --folds 5", "a --fast --slow", "a --depth x", "a --sides 1"])
def test_a_wrong_command_line_ends_with_code_2(typed: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        read(*typed.split())
    assert (end.value.code, capsys.readouterr().err.count("\n")) == (2, 1)
