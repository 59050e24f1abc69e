"""`.ci/run` with stand-ins for make and apt-get: it gets a browser where it may, and says where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
BROWSER = ("chromium", "chromedriver")
INSTALLS = 'case "$*" in *" install "*) for p in chromium chromedriver; do cp "$0" "${0%/*}/$p"; done;; esac'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The only folder on PATH; `make` tells what it is asked for, and fails if there is something to read."""
    for name in ("bash", "dirname", "cat", "cp"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    _program(tmp_path, "make", '[ -z "$(cat)" ] && echo "made $*"')
    _program(tmp_path, "id", "echo 0")
    return tmp_path


def _program(folder: Path, name: str, body: str = "true") -> None:
    (folder / name).write_text(f"#!/usr/bin/env -S {folder}/bash\n{body}\n")
    (folder / name).chmod(0o755)


def _run(programs: Path) -> tuple[list[str], str]:
    """What make was asked for, and all that was said."""
    command, only = [programs / "bash", RUN], {"PATH": str(programs)}
    done = subprocess.run(command, env=only, input="an answer", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("made")], done.stdout + done.stderr


def test_a_browser_that_is_there_is_used(programs: Path) -> None:
    for name in BROWSER:
        _program(programs, name)
    _program(programs, "apt-get", "echo called; exit 1")
    assert _run(programs) == (["made lint", "made test"], "made lint\nmade test\n")


def test_a_browser_is_installed_where_that_may_be(programs: Path) -> None:
    _program(programs, "apt-get", f'echo "apt $*"\n{INSTALLS}')
    made, said = _run(programs)
    assert made == ["made lint", "made test"]
    assert "chromium and chromium-driver" in said
    assert all(os.access(programs / name, os.X_OK) for name in BROWSER)
    assert "WARNING" not in said


@pytest.mark.parametrize(("user", "apt"), [("0", "exit 100"), ("1000", "echo called"), ("0", "")])
def test_without_a_browser_the_tests_run_and_it_is_said_twice(programs: Path, user: str, apt: str) -> None:
    _program(programs, "id", f"echo {user}")
    if apt:
        _program(programs, "apt-get", apt)
    made, said = _run(programs)
    assert made == ["made lint", "made test"]
    assert said.count("WARNING: the tests of the report in a browser do NOT run") == 2
    assert "called" not in said
