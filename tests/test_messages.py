"""What a slip on the command line ends in: one line that says what was meant instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from segmenter.api.asked import parse
from segmenter.base.errors import grouped, run_script

Make = Callable[..., Path]


def test_equal_errors_of_many_files_are_one_line_with_a_count() -> None:
    errors = [f"{i}.tif: expected 3 bands, got 4" for i in range(50)] + ["x.tif: is damaged", "no file here"]
    assert grouped(errors) == [
        "0.tif and 49 more: expected 3 bands, got 4",
        "x.tif: is damaged",
        "no file here",
    ]


def test_many_inputs_that_fail_alike_are_one_line(
    call: Callable[..., int], make_geotiff: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [make_geotiff(f"in/{i}.tif", np.ones((9, 11, 4), np.uint16)) for i in range(5)]
    assert call("in") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(lines) == 1
    assert lines[0].startswith(
        f"error: in/{paths[0].name} and 4 more: expected 3 bands as in training, got 4"
    )


def test_a_box_beside_the_inputs_is_told_where_they_lie(
    call: Callable[..., int], make_geotiff: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make_geotiff("a.tif", np.ones((40, 60, 3), np.uint8))
    assert call("a.tif", "--bbox", 13.0, 52.3, 13.1, 52.4) == 2
    said = capsys.readouterr().err
    assert "a.tif extends over 368000 5807980 368030 5808000 (EPSG:25833)" in said


@pytest.mark.parametrize("bands", ["RGB", "1,2,x", "0", ""])
def test_bands_are_numbers(bands: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["run", "in", "--output", "out", "--bands", bands])
    assert (
        f"--bands: expected numbers of bands, counted from 1, as in 1,2,3 (of an RGB image), got {bands!r}"
        in (capsys.readouterr().err)
    )
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
