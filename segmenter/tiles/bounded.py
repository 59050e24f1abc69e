"""Work in a child of this process, with limits on its memory and processor time.

Some libraries take what they are asked to take: an image of 2 · 10⁹ holes, a kernel of 10¹⁰ numbers. No check
of the numbers themselves knows what each of a hundred transforms makes of them; the kernel's limits hold for
all, and also where C code never comes back to Python. A fork costs milliseconds: nothing is imported anew.
The child must not touch what threads of this process may hold: TensorFlow, GDAL.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import IO, Any, TypeVar

from segmenter.errors import SegmenterError

T = TypeVar("T")
_ENDED = 1


class BeyondError(Exception):
    """The work took more than it was given, or ended its process; says which."""


def bounded(work: Callable[[], T], *, megabytes: int, seconds: int) -> T:
    """The result of `work`, or what it raises; both must be such as can be pickled.

    Args:
        megabytes: that it may take beside what this process has.
        seconds: of processor time.

    Raises:
        BeyondError: it took more.
    """
    taken, given = os.pipe()
    with open(taken, "rb") as answers:
        with open(given, "wb") as answer:
            child = _forked()
            if child == 0:
                _work(work, answer, megabytes, seconds)
        try:
            said = answers.read()
        except BaseException:  # Ctrl-C: the child has had it too, or not
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not said:
        raise BeyondError(_why(exit_code, seconds))
    done, result = pickle.loads(said)
    if not done:
        raise result
    return result


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
            said: Any = True, work()
        except MemoryError:
            said = False, BeyondError(f"more than {megabytes / 1024:.1f} GiB of memory")
        except SegmenterError as error:
            said = False, error
        except Exception:
            said = False, RuntimeError(traceback.format_exc())
        answer.write(pickle.dumps(said))
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
        return "more memory than there is"
    return f"its process with it ({signal.Signals(-exit_code).name})"
