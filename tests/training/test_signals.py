"""Stopping with real processes: signals are heard at once, also in C, and with nobody reading the output."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.helpers.time_limits import wait_until

ROOT = Path(__file__).resolve().parents[2]
IN_C = """
    import hashlib
    from segmenter.training.stopping import stop_signal
    with stop_signal() as stop:
        print("begun", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)  # minutes, without a look at signals
"""
BETWEEN = """
    import sys, time
    from pathlib import Path
    from tqdm import tqdm
    from segmenter.base.terminal import enduring_output
    from segmenter.training.stopping import stop_signal
    with enduring_output():
        with stop_signal() as stop, tqdm(total=10) as bar:
            while not stop:
                bar.update(0)
                bar.refresh()
                tqdm.write("a line")
                time.sleep(0.01)
        print("stopped", flush=True)
        Path(sys.argv[1]).write_text(str(stop))
    sys.exit(128 + stop[0])
"""


def started(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    read = b""
    while text not in read:
        more = os.read(process.stdout.fileno(), 1000)
        assert more, read
        read += more
    return read


@pytest.mark.timeout(60)
def test_the_second_signal_ends_a_call_that_does_not_return() -> None:
    with started(IN_C) as process:
        read_until(process, b"begun")
        process.send_signal(signal.SIGINT)
        read_until(process, b"once more ends at once")  # said while the call goes on
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() == 128 + signal.SIGINT


@pytest.mark.timeout(60)
def test_a_stop_is_seen_where_nobody_reads_any_more(tmp_path: Path) -> None:
    """As with `train.py … 2>&1 | tee log`, where Ctrl-C ends both."""
    process = started(BETWEEN, str(tmp_path / "stop"))
    read_until(process, b"a line")
    process.stdout.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert (tmp_path / "stop").read_text() == str([int(signal.SIGTERM)])


def test_handlers_are_as_they_were_afterwards() -> None:
    from segmenter.training.stopping import stop_signal

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_signal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert wait_until(lambda: stop)
    assert stop == [signal.SIGTERM]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


TAKEN = """
    import sys
    from pathlib import Path
    from segmenter.base.terminal import enduring_output
    with enduring_output():
        for number in range(20_000):
            print("a line", number)
        print("an error", file=sys.stderr)
        with open(sys.argv[1], "w") as file:
            file.write("done")
"""


@pytest.mark.parametrize(
    ("redirect", "heard"),
    [
        ("| head -n 1", "a line 0\nan error\n"),
        ("> /dev/full", "an error\n"),
        ("2> /dev/full | tail -n 1", "a line 19999\n"),
        (">&- 2>&- <&-", ""),
    ],
)
def test_work_goes_on_without_its_output(tmp_path: Path, redirect: str, heard: str) -> None:
    """The other stream is heard, a file that is opened is not printed to, and the exit code stays."""
    (tmp_path / "script.py").write_text(textwrap.dedent(TAKEN))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    where, pipe, reader = redirect.partition("|")
    command = f"( {{ {sys.executable} script.py made {where}; echo $? > code; }} {pipe} {reader} ) 2>&1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert sorted(done.stdout.decode().splitlines()) == sorted(heard.splitlines())
    assert (tmp_path / "made").read_text() == "done"
    assert (tmp_path / "code").read_text() == "0\n"


ANSWERING = """
import sys
from segmenter.base.errors import run_tool
from segmenter.base.terminal import stdout_for_json
def answered():
    with stdout_for_json(True) as answer:
        print("answer " * 9999, file=answer)
    return 0
sys.exit(run_tool(answered))
"""


@pytest.mark.parametrize(("redirect", "code"), [("> /dev/full", 1), ("| true", 0)])
def test_an_answer_lost_to_a_full_disk_is_an_error(redirect: str, code: int) -> None:
    """Unlike messages, and unlike an answer whose reader went away."""
    command = f"set -o pipefail; {sys.executable} -c '{ANSWERING}' {redirect}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (code, code)


@pytest.mark.parametrize("script", ["train.py", "predict.py", "-m datasets"])
def test_each_script_outlasts_its_reader(script: str) -> None:
    command = f"{sys.executable} {script} --help > /dev/full"
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # what is printed is kept until the exit
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
