"""Errors that a user can cause: one root class, and one subclass for each kind of mistake.

Any other exception is a defect of the program and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any

EXIT_SOME_FAILED = 1
EXIT_WRONG_CALL = 2
EXIT_INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk."""


class SegmenterError(Exception):
    """Root of all errors that the user can mend: one line, `where: expected E, got G; remedy`.

    Its parts are attributes, None if left out: `where` (a file, setting or option), `expected` or `fault`
    (what is wrong), `got`, `remedy`. A lone argument is the fault.

    >>> try:
    ...     run.predict(np.zeros((5, 5), np.uint16))
    ... except SegmenterError as error:
    ...     print(error)
    image: expected an array of (height, width, 3), the bands last, got (5, 5)
    """

    exit_code = EXIT_WRONG_CALL

    def __init__(
        self, where: Any = ..., fault: Any = ..., *, expected: Any = ..., got: Any = ..., remedy: Any = ...
    ) -> None:
        if fault is ... is expected:
            where, fault = fault, where
        fields = (None if field is ... else f"{field}" for field in (where, fault, expected, got, remedy))
        self.where, self.fault, self.expected, self.got, self.remedy = fields
        wrong = self.fault if self.expected is None else f"expected {self.expected}"
        text = ": ".join(part for part in (self.where, wrong) if part is not None)
        text += "" if self.got is None else f", got {self.got}"
        super().__init__(text if self.remedy is None else f"{text}; {self.remedy}")

    def __str__(self) -> str:
        return plain(super().__str__())


def error_parts(error: SegmenterError) -> dict[str, str]:
    """Return the parts that are not left out: `type(error)(**parts)` is equal, also in another process."""
    names = ("where", "fault", "expected", "got", "remedy")
    return {name: part for name in names if (part := getattr(error, name)) is not None}


def extended_error(
    error: SegmenterError, *, where: str = "", remedy: str = "", kind: type[SegmenterError] | None = None
) -> SegmenterError:
    """Return an error with a place before its own, or a further remedy; `kind`: as another class."""
    place, advice = ": ".join(filter(None, (where, error.where))), filter(None, (error.remedy, remedy))
    parts = {**error_parts(error), "where": place, "remedy": "; ".join(advice)}
    return (kind or type(error))(**{name: part for name, part in parts.items() if part})


def plain(text: str) -> str:
    """Return a text on one printable line: file names may contain line ends and control characters."""
    shown = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return "".join(shown)


def shorten(text: str, most: int = 300) -> str:
    """Return the beginning and the end of a quoted text: foreign text may have any length."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-most // 3 :]}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 tile`, `2 tiles`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def group_lines(texts: Iterable[str]) -> list[str]:
    """Group lines of the form `FILE: message`; one message about more than three files becomes one line.

    Messages that differ only in names of files with the stem of their own are one: it becomes `{stem}`.
    """
    files: dict[str, list[str]] = {}
    for text in texts:
        file, _, what = text.partition(": ")
        own = re.escape(PurePath(file).stem)
        files.setdefault(re.sub(rf"(?<![^/ ]){own}(?=\.)", "{stem}", what) if own else what, []).append(text)
    lines: list[str] = []
    for what, of in files.items():
        first, colon, _ = of[0].partition(": ")
        lines += of if len(of) <= 3 else [f"{first} and {len(of) - 1} more{colon}{what}"]
    return lines


class ConfigError(SegmenterError):
    """A recipe has an unknown key, a wrong unit or an impossible combination."""


class DatasetError(SegmenterError):
    """Files of a dataset are missing, unpaired, of unequal size or in the wrong place."""


class LabelError(SegmenterError):
    """A label raster contains a value or colour that the class map does not define."""


class RasterError(SegmenterError):
    """A raster cannot be opened, read or written, or lacks properties that the run needs."""


class BandsError(RasterError):
    """It is ambiguous which bands of a raster are data; the setting `bands` must name them."""


class ChangedInputError(RasterError):
    """A raster changed while the call ran: the result would mix two versions of the file."""


class DeviceError(SegmenterError):
    """Requested devices are missing, can no longer be set up, or have too little memory."""


class ClusterError(SegmenterError):
    """A cluster cannot be started, reached or used, or its workers differ."""


class LostClusterError(ClusterError):
    """The scheduler or all workers are gone; finished work is kept, and repeating the call continues it."""

    exit_code = EXIT_SOME_FAILED


class CheckpointError(SegmenterError):
    """A run directory or checkpoint is missing, damaged or does not fit the recipe."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is damaged: truncated, changed, or not written by this program."""


class WeightsError(SegmenterError):
    """Pretrained weights are missing, unreadable, or do not belong to the recipe's encoder."""


class OutputError(SegmenterError):
    """A result cannot be written although the call was correct: the disk is full."""

    exit_code = EXIT_SOME_FAILED


class ExportError(SegmenterError):
    """A model cannot be exported, or gives other classes in another runtime; no file is left behind."""

    exit_code = EXIT_SOME_FAILED


class ScoreError(SegmenterError):
    """Scores were requested under a protocol that does not fit the data, or under two different protocols."""


class TrainingError(SegmenterError):
    """Training cannot continue: the loss is not finite, or a step lacked a class that was promised to it."""


class WorkerError(SegmenterError):
    """Another worker of the training has died, hangs, never connected or differs from this one."""

    exit_code = EXIT_SOME_FAILED


@contextlib.contextmanager
def failing(
    kind: type[SegmenterError], where: Any, fault: str, if_full: Any = ..., *, remedy: Any = ...
) -> Iterator[None]:
    """Convert a system error in the block: `where: fault: No space left on device; if_full`.

    Args:
        if_full: remedy of a full disk.
        remedy: that of all other errors; left out where they say what to do.
    """
    try:
        yield
    except OSError as error:
        remedy = if_full if if_full is not ... and error.errno in (None, *FULL) else remedy  # GDAL: None
        raise kind(where, f"{fault}: {error.strerror or error}", remedy=remedy) from None


def end_at_once_on_ctrl_c() -> None:
    """Let Ctrl-C end the process with a one-word message until `run_script` begins.

    Used while a script imports modules: no work is lost then, and Python's traceback would not help.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(signal_number: int, frame: Any) -> None:
    os.write(2, b"interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def run_script(main: Callable[[], int]) -> int:
    """Run a script's `main`; a user's error becomes one line on stderr and its exit code, 2 or 1.

    Ctrl-C gives 130. A handler of another signal raises `KeyboardInterrupt(number)`: 128 + number.
    """
    if sys.platform != "linux":
        print(
            f"error: this program runs on Linux (also under WSL or in a container), got {sys.platform}",
            file=sys.stderr,
        )
        return EXIT_WRONG_CALL
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return main()
    except SegmenterError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interruption:
        print("interrupted", file=sys.stderr)
        return 128 + interruption.args[0] if interruption.args else EXIT_INTERRUPTED


def run_tool(main: Callable[[], int]) -> int:
    """Run a tool as `run_script` does, whatever becomes of its output streams (`enduring_output`).

    A machine-readable answer that cannot be written, as the disk is full, is an error. SIGTERM (`kill`) ends
    the tool like Ctrl-C, removing unfinished files.
    """
    from segmenter.base.terminal import enduring_output

    def answered() -> int:
        code = main()
        out.flush()
        if out.answers and out.failure is not None and not isinstance(out.failure, BrokenPipeError):
            fault = f"cannot write it: {out.failure.strerror}"
            raise OutputError("standard output", fault, remedy="is the disk full?")
        return code

    before = signal.signal(signal.SIGTERM, _end_like_ctrl_c)
    try:
        with enduring_output() as out:
            return run_script(answered)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_like_ctrl_c(signal_number: int, frame: Any) -> None:
    raise KeyboardInterrupt(signal_number)
