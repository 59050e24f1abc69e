"""Errors that a user can cause: one root, one child for each thing that can be wrong.

A message says what was expected, what came, where, and what to do. Anything else that is raised is a
defect of the program, and keeps its traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

EXIT_SOME_FAILED = 1
EXIT_WRONG_CALL = 2
EXIT_INTERRUPTED = 130


class SegmenterError(Exception):
    """Root of all errors that are the user's to mend; its text is one clear line.

    >>> try:
    ...     run.predict(np.zeros((5, 5), np.uint16))
    ... except SegmenterError as error:
    ...     print(error)
    image: expected an array of (height, width, 3), the bands last, got (5, 5)
    """

    exit_code = EXIT_WRONG_CALL

    def __str__(self) -> str:
        return plain(super().__str__())


def plain(text: str) -> str:
    """Return a text on one line that any terminal takes: file names may hold line ends and worse."""
    shown = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return "".join(shown)


def shortened(text: str, most: int = 300) -> str:
    """Return the beginning and the end of a text that is quoted: what is foreign may be of any length."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-most // 3 :]}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return `1 tile`, `2 tiles`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def grouped(texts: Iterable[str], most: int = 3) -> list[str]:
    """Group lines of the form `FILE: what`: of more than `most` files one line with their number."""
    files: dict[str, list[str]] = {}
    for text in texts:
        file, colon, what = text.partition(": ")
        files.setdefault(colon + what, []).append(file)
    lines: list[str] = []
    for what, of in files.items():
        named = of if len(of) <= most else [f"{of[0]} and {len(of) - 1} more"]
        lines += [f"{name}{what}" for name in named]
    return lines


class ConfigError(SegmenterError):
    """A recipe has an unknown key, a wrong unit or an impossible combination."""


class DatasetError(SegmenterError):
    """Files of a dataset are missing, unpaired, of unequal size or in the wrong place."""


class LabelError(SegmenterError):
    """A label raster holds a value or colour that the class map does not know."""


class RasterError(SegmenterError):
    """A raster cannot be opened, read or written, or does not have what the run needs."""


class BandsError(RasterError):
    """It cannot be told which bands of a raster are data; `bands` is to be said."""


class ChangedInputError(RasterError):
    """A raster is no longer the file that the call began with: what is made of it would be of two files."""


class DeviceError(SegmenterError):
    """Devices asked for are not there, can no longer be set up, or have too little memory."""


class ClusterError(SegmenterError):
    """A cluster cannot be started, reached or used, or its workers differ."""


class LostClusterError(ClusterError):
    """The scheduler or all workers are gone: what is done is kept, and the same call goes on."""

    exit_code = EXIT_SOME_FAILED


class CheckpointError(SegmenterError):
    """A run directory or checkpoint is missing, damaged or does not fit."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not what was written: cut, changed, or not written by this program at all."""


class WeightsError(SegmenterError):
    """Pretrained weights are not there, cannot be read, or are not those of the recipe's encoder."""


class OutputError(SegmenterError):
    """A result cannot be written though the call was right: the disk is full."""

    exit_code = EXIT_SOME_FAILED


class ExportError(SegmenterError):
    """A model cannot be exported, or gives other classes in another runtime: nothing is left behind."""

    exit_code = EXIT_SOME_FAILED


class ScoreError(SegmenterError):
    """Scores are asked for under a protocol that the data do not fit, or of two different protocols."""


class TrainingError(SegmenterError):
    """Training cannot go on: the loss is not finite, or a class was not in a step that promised it."""


class WorkerError(SegmenterError):
    """Another worker of the training is gone, hangs, did not come or differs from this one."""

    exit_code = EXIT_SOME_FAILED


def end_at_once_on_ctrl_c() -> None:
    """Let Ctrl-C end the process with one word until `run_script` begins.

    For the imports of a script: nothing is done yet, and Python would print where it was.
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
    """Return `run_script`, where `kill` ends as Ctrl-C does: what is half-written is removed."""
    before = signal.signal(signal.SIGTERM, _end_like_ctrl_c)
    try:
        return run_script(main)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_like_ctrl_c(signal_number: int, frame: Any) -> None:
    raise KeyboardInterrupt(signal_number)
