"""Limits of time: a hang ends, whatever hangs; a busy machine fails nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.own_time import own_seconds
from tests.helpers.time_limits import wait_until

TESTS = Path(__file__).parent
HANGS = """
import ctypes, os, pathlib, subprocess, time
import pytest
from tests.helpers.time_limits import pytest_timeout_cancel_timer, pytest_timeout_set_timer

def test_in_a_process():
    with subprocess.Popen(["sleep", "1000"]) as process:
        pathlib.Path("child").write_text(str(process.pid))

def test_in_python():
    time.sleep(1000)

def test_in_a_loop():
    while True:
        pass

def test_in_c():
    mutex = ctypes.create_string_buffer(64)  # as of a collective: no signal interrupts it
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)

def test_after():
    pass
"""


def test_waiting_for_a_processor_is_not_a_tests_own_time() -> None:
    assert own_seconds(1, ran=0, waited=0) == 1  # asleep: a deadlock ends
    assert own_seconds(1, ran=1, waited=0) == 1  # a loop on a free core ends
    assert own_seconds(1, ran=0.1, waited=0.9) == pytest.approx(0.1)  # nine others on the core
    assert own_seconds(1, ran=2, waited=6) == pytest.approx(0.25)  # eight threads on two cores
    assert own_seconds(3600, ran=0, waited=0) < 10  # the machine itself slept


@pytest.mark.slow
def test_whatever_hangs_fails_and_the_next_test_runs(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text(
        "from tests.helpers import time_limits\ntime_limits._GRACE = 1\n"
        "from tests.helpers.time_limits import pytest_timeout_cancel_timer, pytest_timeout_set_timer\n"
    )
    command = [*(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1"), "--timeout", "1"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout
    assert "4 failed, 1 passed" in done.stdout
    assert done.stdout.count(" - Failed: Timeout") == 3
    assert "crashed while running 'test_hangs.py::test_in_c'" in done.stdout
    child = Path("/proc", (tmp_path / "child").read_text())
    assert wait_until(lambda: not child.exists())
