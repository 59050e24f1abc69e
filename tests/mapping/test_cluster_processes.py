"""Clusters of real processes: how they end, and what a call leaves that was ended with them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.child_predict import COMMAND, files, scene, without_styles
from tests.helpers.cluster_worker import PRELOAD, running_with

pytestmark = pytest.mark.slow
Make = Callable[..., Path]
OPTIONS = ("--window-size", "64", "--batch", "1")


@pytest.fixture
def sources(make_geotiff: Make) -> list[str]:
    """A small raster, whose map is the first to be finished, and a large one."""
    return [str(scene(make_geotiff, "in/a.tif", 90, 70)), str(scene(make_geotiff, "in/b.tif", 3000, 1050))]


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "0", "1000", *arguments, *OPTIONS]
    environment = {**PRELOAD, "TMPDIR": str(folder)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def ended_after(process: subprocess.Popen[str], line: str, end: Callable[[], Any]) -> tuple[int, str]:
    """Its exit code and stderr, where `end` is called once it has printed a line."""
    assert process.stdout is not None
    for found in process.stdout:
        if found.startswith(line):
            end()
            break
    _, err = process.communicate()
    return process.returncode, err


def finished(folder: Path, *arguments: str) -> dict[str, bytes]:
    """The files of a call that is not disturbed."""
    process = started(folder, *arguments)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return files(Path(arguments[-1]))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_call_that_is_ended_ends_its_workers_and_goes_on(
    tmp_path: Path, sources: list[str], number: signal.Signals, code: int
) -> None:
    arguments = (*sources, "--workers", "2", "--output", str(tmp_path / "maps"))
    process = started(tmp_path, *arguments)
    ended, err = ended_after(process, "named a.tif", lambda: process.send_signal(number))
    assert ended == code, err
    if code > 0:
        assert err.splitlines()[-1] == "interrupted"
        assert "Traceback" not in err
    assert without_styles(files(tmp_path / "maps")) == ["a.tif"]
    expected = finished(tmp_path, *sources, "--output", str(tmp_path / "one"))
    assert finished(tmp_path, *arguments) == expected
    assert running_with(f"TMPDIR={tmp_path}") == []
    assert list(tmp_path.glob(".segmenter-workers*")) == []


@contextmanager
def dask(*arguments: str, until: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Dask process, once it has printed a text, and that line."""
    command = [sys.executable, "-m", *arguments]
    log = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process: Any = subprocess.Popen(command, env={**PRELOAD, "TMPDIR": str(folder)}, **log)
    try:
        line = next(line for line in process.stderr if until in line)
        yield process, line.strip()
    finally:
        process.kill()
        process.communicate()


def test_a_scheduler_that_is_killed_ends_the_call_in_a_line_and_it_goes_on(
    tmp_path: Path, sources: list[str]
) -> None:
    local = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
    scheduler = ("distributed.cli.dask_scheduler", *local)
    worker = ("distributed.cli.dask_worker", "--nthreads", "1", "--no-dashboard", "--no-nanny")
    scratch = ("--local-directory", str(tmp_path / "scratch"))
    arguments = (*sources, "--output", str(tmp_path / "maps"))
    with dask(*scheduler, until="Scheduler at:", folder=tmp_path) as (process, line):
        address = line.split()[-1]
        with dask(*worker, address, *scratch, until="Registered to:", folder=tmp_path):
            call = started(tmp_path, "--scheduler", address, *arguments)
            ended, err = ended_after(call, "named a.tif", process.kill)
    assert ended == 1
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert f"{address}: the scheduler is gone" in error
    assert "Traceback" not in err
    expected = finished(tmp_path, *sources, "--output", str(tmp_path / "one"))
    assert finished(tmp_path, *arguments) == expected
    assert running_with(f"TMPDIR={tmp_path}") == []
