"""Work in a child: its result or error comes back, and what takes too much ends there."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
import pytest

from segmenter.errors import ConfigError, SegmenterError
from segmenter.tiles.bounded import BeyondError, bounded


def small(work: Any) -> Any:
    return bounded(work, megabytes=200, seconds=2)


def test_the_result_or_the_error_is_that_of_the_work() -> None:
    def refuse() -> None:
        raise ConfigError("a: expected b, got c")

    assert small(lambda: {"n": 3}) == {"n": 3}
    assert small(lambda: None) is None
    with pytest.raises(ConfigError, match=r"^a: expected b, got c$"):
        small(refuse)


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)Traceback .*ZeroDivisionError"):
        small(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback .*SystemExit"):
        small(lambda: sys.exit(3))
    with pytest.raises(RuntimeError, match=r"(?s)Traceback .*JSON"):
        small(lambda: lambda: 1)


def test_a_long_answer_comes_whole() -> None:
    assert small(lambda: "ü" * 3_000_000) == "ü" * 3_000_000


def test_what_waits_for_ever_ends_too() -> None:
    with pytest.raises(BeyondError, match=r"^for ever$"):
        bounded(signal.pause, megabytes=200, seconds=2, patience=1)


def test_where_the_system_keeps_no_exit_codes_it_answers_all_the_same() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert small(lambda: 5) == 5
    finally:
        signal.signal(signal.SIGCHLD, before)


def endless() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: np.ones(400 * 2**20, np.uint8).sum(), r"^more than 0.2 GiB of memory$"),
        (endless, r"^more than 2 s of a processor$"),
        (lambda: os.kill(os.getpid(), signal.SIGUSR1), r"^its process with it \(SIGUSR1\)$"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"^more memory, or time, than there is$"),
        (lambda: os._exit(255), r"^its process with it \(code 255\)$"),
    ],
    ids=["memory", "time", "crash", "killed", "exit"],
)
def test_what_takes_too_much_is_told_and_no_child_is_left(
    work: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forked.append(fork()) or forked[-1])
    with pytest.raises(BeyondError, match=said):
        small(work)
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)


def test_where_no_process_can_be_started_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    with pytest.raises(SegmenterError, match=r"cannot start a process .*: Resource temporarily .*ulimit -u"):
        small(lambda: 1)


def test_what_it_prints_is_not_seen_and_what_it_changes_stays_its_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen: list[int] = []

    def work() -> int:
        seen.append(1)
        os.write(1, b"noise")
        os.write(2, b"noise")
        return len(seen)

    assert small(work) == 1
    assert not seen
    assert capfd.readouterr() == ("", "")
