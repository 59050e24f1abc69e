"""Errors and slips on the command line end in one line and an exit code; ours keep their traceback."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from datasets.commands.predict import parse
from segmenter.base import errors
from segmenter.base.errors import (
    ConfigError,
    OutputError,
    RasterError,
    SegmenterError,
    error_parts,
    extended_error,
    run_script,
)
from tests.helpers import messages

Make = Callable[..., Path]


def test_many_inputs_that_fail_alike_are_one_line(
    call: Callable[..., int], make_geotiff: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [make_geotiff(f"in/{i}.tif", np.ones((9, 11, 4), np.uint16)) for i in range(5)]
    assert call("in") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(lines) == 1
    assert lines[0].startswith(f"error: in/{paths[0].name} and 4 more: expected 3 bands")


def test_a_box_beside_the_inputs_is_told_where_they_lie(
    call: Callable[..., int], make_geotiff: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make_geotiff("a.tif", np.ones((40, 60, 3), np.uint8))
    assert call("a.tif", "--bbox", 13.0, 52.3, 13.1, 52.4) == 2
    said = capsys.readouterr().err
    assert "a.tif extends over 368000 5807980 368030 5808000 (EPSG:25833)" in said


@pytest.mark.parametrize("bands", ["1,2,x", "0", ""])
def test_bands_are_numbers(bands: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["run", "in", "--output", "out", "--bands", bands])
    assert f"got {bands!r}" in capsys.readouterr().err
    assert parse(["run", "in", "--output", "out", "--bands", "3,2"])[0].request.bands == (3, 2)


def test_help_starts_no_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--help"])
    with pytest.raises(SystemExit, match="0"):
        benchmarks.main()
    assert "python -m benchmarks.NAME" in capsys.readouterr().out


def test_elsewhere_than_on_linux_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert run_script(lambda: pytest.fail("it was started")) == 2
    assert capsys.readouterr().err.startswith("error: this program runs on Linux")


def _raise(error: BaseException) -> int:
    raise error


def test_every_error_is_a_child_of_the_root() -> None:
    named = [v for v in vars(errors).values() if getattr(v, "__module__", "") == errors.__name__]
    children = [value for value in named if isinstance(value, type)]
    assert len(children) >= 9
    assert all(issubclass(child, SegmenterError) for child in children)
    assert all(child.__doc__ for child in children)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("tiles.size: expected 16 px, got 3"), 2, "error: tiles.size: expected 16 px, got 3\n"),
        (OutputError("a.npz: cannot write it"), 1, "error: a.npz: cannot write it\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt(signal.SIGTERM), 143, "interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(lambda: _raise(error)) == code
    assert capsys.readouterr().err == said


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_script(lambda: _raise(ZeroDivisionError()))


def test_the_texts_of_all_errors_are_listed() -> None:
    """A changed text is seen in `tests/messages.txt`: `python -m tests.helpers.messages` writes it anew."""
    assert messages.LIST.read_text(encoding="utf-8").splitlines() == messages.messages()


def test_what_was_expected_and_came_are_fields() -> None:
    assert messages.without_fields() == []


def test_a_text_is_a_line_that_names_a_place() -> None:
    """A setting, an option, or what the program fills in; two are of all that a call is about."""
    texts = [line.partition(": ")[2] for line in messages.messages()]
    assert len(texts) > 600
    assert sum(not any(mark in text for mark in (": ", "--", "{")) for text in texts) == 2
    pleas = [text for text in texts if "please" in text.lower()]
    assert [*pleas, *(text for text in texts if text.endswith((".", "!")) or "\n" in text)] == []


def test_the_fields_of_an_error_are_its_text() -> None:
    error = RasterError(Path("a\n.tif"), expected="3 bands", got=4, remedy="say --bands")
    assert str(error) == "a\\n.tif: expected 3 bands, got 4; say --bands"
    assert str(RasterError("a.tif", "is damaged")) == "a.tif: is damaged"
    assert RasterError("is damaged").where is None
    copied = pickle.loads(pickle.dumps(error))  # as workers send it
    assert type(copied) is RasterError
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)
    assert (copied.where, copied.expected, copied.got) == ("a\n.tif", "3 bands", "4")
    assert vars(RasterError(**json.loads(json.dumps(error_parts(error))))) == vars(error)  # as machines do
    there = extended_error(error, where="worker 1", remedy="or --part")
    assert str(there) == f"worker 1: {error}; or --part"
    assert vars(there) == {**vars(error), "where": "worker 1: a\n.tif", "remedy": "say --bands; or --part"}
    lone = extended_error(RasterError("is damaged"), remedy="make it anew", kind=ConfigError)
    assert (type(lone), error_parts(lone)) == (ConfigError, {"fault": "is damaged", "remedy": "make it anew"})
