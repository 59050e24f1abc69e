"""Progress: bars on terminals only, a line each minute elsewhere, nothing where messages are collected."""

import io
import re
import sys
from typing import Any

import pytest

from segmenter.base import bars
from segmenter.base.bars import EVERY, Bar, clock, time_left
from segmenter.base.terminal import listening
from segmenter.base.threads import in_threads


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until a test moves it."""
    at = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: at[0])
    return at


def worked(now: list[float], seconds: float, **how: Any) -> None:
    with Bar(total=10, desc="packing", unit="px", **how) as bar:
        for _ in range(10):
            now[0] += seconds
            bar.update()


def test_a_file_gets_no_bar_but_a_line_each_minute_with_the_time_left(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    worked(now, EVERY / 2)
    said = re.findall(r"^packing: (\d+)%, (.+) left \(\d\d:\d\d\)$", file.getvalue(), re.MULTILINE)
    assert said == [(f"{20 * n}", clock(EVERY / 2 * (10 - 2 * n))) for n in range(1, 6)]
    assert len(file.getvalue().splitlines()) == len(said)
    assert "\r" not in file.getvalue()


@pytest.mark.parametrize("how", [{"shown": False}, {"lines": False}])
def test_nothing_is_written_to_a_file_where_the_caller_says_so(
    how: dict[str, bool], now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    worked(now, 10 * EVERY, **how)
    assert not file.getvalue()


def test_collected_messages_have_no_lines_of_progress(now: list[float]) -> None:
    with listening() as said:
        worked(now, 10 * EVERY)
    assert not [*said.lines, *said.warnings]


def test_short_work_writes_nothing_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    assert list(in_threads(abs, [-1, 2], description="numbers", unit="number")) == [1, 2]
    assert list(Bar([3, 4], desc="numbers")) == [3, 4]
    assert not file.getvalue()


def test_a_terminal_gets_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    assert list(in_threads(abs, [-1, 2], description="numbers", unit="number")) == [1, 2]
    assert "numbers: 100%" in screen.getvalue()


def test_the_end_of_long_work_has_a_day() -> None:
    assert re.fullmatch(r"30 s left \(\d\d:\d\d\)", time_left(30))
    assert re.fullmatch(r"50 h 0 min left \(\d\d \w+ \d\d:\d\d\)", time_left(50 * 3600))
