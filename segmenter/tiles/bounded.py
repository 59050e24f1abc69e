"""Work in a child of this process, with limits on its memory and processor time.

Some libraries take what they are asked to take: an image of 2 · 10⁹ holes, a kernel of 10¹⁰ numbers. No check
of the numbers themselves knows what each of a hundred transforms makes of them; the kernel's limits hold for
all, and also where C code never comes back to Python. A fork costs milliseconds: nothing is imported anew.
The child must not touch what threads of this process may hold: TensorFlow, GDAL. A thread that multiplies
matrices meanwhile may keep OpenBLAS from forking: there is none where tiles are prepared.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import IO, Any, TypeVar

from segmenter import errors
from segmenter.errors import SegmenterError

T = TypeVar("T")
_ENDED = 1
_PATIENCE = 30
"""Seconds by the clock for each of processor time."""


class BeyondError(Exception):
    """The work took more than it was given, or ended its process; says which."""


def bounded(work: Callable[[], T], *, megabytes: int, seconds: int, patience: int | None = None) -> T:
    """The result of `work`, which JSON can hold, or the mistake of a user's that it raises.

    Args:
        megabytes: that it may take beside what this process has.
        seconds: of processor time.
        patience: seconds by the clock, for work that waits and never goes on; by default far more than a busy
            machine makes of the processor time.

    Raises:
        BeyondError: it took more.
    """
    taken, given = os.pipe()
    with open(taken, "rb", buffering=0) as answers:
        with open(given, "wb") as answer:
            child = _forked()
            if child == 0:
                _work(work, answer, megabytes, seconds)
        try:
            said = _all_of(answers, patience or _PATIENCE * seconds)
        except BaseException:  # Ctrl-C: the child has had it too, or not
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            exit_code = _ended(child)
    if not said:
        raise BeyondError(_why(exit_code, seconds))
    return _taken(json.loads(said))


def _taken(said: dict[str, Any]) -> Any:
    """What the child found; raises what it raised."""
    if "beyond" in said:
        raise BeyondError(said["beyond"])
    if "refused" in said:
        kind, message = said["refused"]
        raise getattr(errors, kind, SegmenterError)(message)
    if "defect" in said:
        raise RuntimeError(said["defect"])
    return said["result"]


def _all_of(answers: IO[bytes], patience: int) -> bytes:
    """What the child says until it closes its end.

    Raises:
        BeyondError: it says nothing for too long.
    """
    said, until, waiting = b"", time.monotonic() + patience, select.poll()
    waiting.register(answers, select.POLLIN)
    while waiting.poll(max(0.0, until - time.monotonic()) * 1000):
        if not (part := answers.read(1 << 20)):
            return said
        said += part
    raise BeyondError("for ever")


def _ended(child: int) -> int:
    """Exit code of the child, negative for a signal; that of `_work` where the system kept none."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # SIGCHLD is ignored here, by whoever started this process
        return _ENDED


def _forked() -> int:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 3.12, on threads: see the module
            return os.fork()
    except OSError as error:
        raise SegmenterError(
            f"cannot start a process to try the transforms in: {error.strerror}; "
            "raise the limit (ulimit -u), or free memory"
        ) from None


def _work(work: Callable[[], Any], answer: IO[bytes], megabytes: int, seconds: int) -> None:
    """All that the child does; it never returns."""
    try:
        gc.freeze()  # what the parent holds is not the child's to close
        silence = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):
            os.dup2(silence, output)
        _limit(megabytes, seconds)
        try:
            said = json.dumps({"result": work()})
        except MemoryError:
            said = json.dumps({"beyond": f"more than {megabytes / 1024:.1f} GiB of memory"})
        except SegmenterError as error:
            said = json.dumps({"refused": [type(error).__name__, str(error)]})
        except BaseException:  # also an exit that some library asks for
            said = json.dumps({"defect": traceback.format_exc()})
        answer.write(said.encode())
        answer.flush()
    finally:
        os._exit(_ENDED)  # not by the handlers of the parent, which would end its affairs


def _limit(megabytes: int, seconds: int) -> None:
    with contextlib.suppress(OSError):  # without /proc only the time is bounded
        with open("/proc/self/statm") as file:
            there = int(file.read().split()[0]) * resource.getpagesize()
        _lower(resource.RLIMIT_AS, there + megabytes * 2**20)
    _lower(resource.RLIMIT_CPU, seconds)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(kind: int, most: int) -> None:
    """A limit, unless there is a lower one."""
    soft, hard = resource.getrlimit(kind)
    limits = [limit for limit in (soft, hard, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(limits), hard))


def _why(exit_code: int, seconds: int) -> str:
    if exit_code == -signal.SIGXCPU:
        return f"more than {seconds} s of a processor"
    if exit_code in (_ENDED, -signal.SIGKILL):
        return "more memory, or time, than there is"
    if exit_code >= 0:
        return f"its process with it (code {exit_code})"
    known = {number.value: number.name for number in signal.Signals}
    return f"its process with it ({known.get(-exit_code, f'signal {-exit_code}')})"
