"""Terminal output: messages, escaped foreign text, aligned columns, closed or broken output streams."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tempfile
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TextIO

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that move the cursor, change the terminal's state, turn the direction of a line around, or are
none at all (surrogates). Not those that scripts need, as the joiners of Persian and Hindi."""
_KEPT = re.compile(r"\n|\t|^\r|^(?:\x1b\[A)+$")
"""Unsafe characters that programs print themselves: line ends, and cursor moves of progress bars."""


_WORDS = re.compile(r"( *)((?:'[^']*'|`[^`]*`|[^ ])+)")
"""A word with the spaces before it; what is quoted is one word."""
_MARKED = re.compile(r"^(?:(error)|warning)(?=: )", re.MULTILINE)
_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


@dataclass
class Said:
    """Messages collected instead of printed.

    Attributes:
        bars: True if progress bars are shown.
    """

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    bars: bool = False


_LISTENER: ContextVar[Said | None] = ContextVar("listener", default=None)


def say(text: str, *, aside: bool = False) -> None:
    """Print a line on stdout (`aside`: on stderr), or hand it to `listening`, if active."""
    listener = _LISTENER.get()
    if listener is None:
        print(text, file=sys.stderr if aside else sys.stdout)
    else:
        (listener.warnings if aside else listener.lines).append(text)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    say(f"warning: {text}", aside=True)


@contextmanager
def listening(*, bars: bool = False) -> Iterator[Said]:
    """Collect messages of the block, and of threads started in it, instead of printing them."""
    said = Said(bars=bars)
    token = _LISTENER.set(said)
    try:
        yield said
    finally:
        _LISTENER.reset(token)


def no_bar(by_default: bool | None = None) -> bool | None:
    """Return tqdm's `disable`: `by_default` (None: only on terminals), unless messages are collected."""
    listener = _LISTENER.get()
    return by_default if listener is None else by_default is True or not listener.bars


def collecting() -> bool:
    """Return whether messages are collected (`listening`) instead of printed."""
    return _LISTENER.get() is not None


def unsafe(text: str) -> str | None:
    """Return the first character that is forbidden in names, escaped; None if all are allowed."""
    found = _UNSAFE.search(text)
    return None if found is None else _escape(found)


def escape_text(text: str) -> str:
    """Return text for printing with unsafe characters escaped: file names may contain any character."""
    if _UNSAFE.search(text) is None:
        return text
    kept = {place for found in _KEPT.finditer(text) for place in range(*found.span())}
    return _UNSAFE.sub(lambda found: found[0] if found.start() in kept else _escape(found), text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def terminal_width(text: str) -> int:
    """Return the width of a text in terminal columns: Chinese characters take two, combining accents none."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def pad_text(text: str, width: int) -> str:
    """Return a text padded with spaces to `width` columns."""
    return text + " " * (width - terminal_width(text))


def columns() -> int | None:
    """Return the columns of the terminal that stdout is; None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fold_line(line: str, width: int) -> str:
    """Return a line, broken between words if it is wider than `width` columns.

    What follows is indented as the line is, below the second column of a list, or by four. What stands in
    quotes or backquotes is not broken: it may be a command to copy.
    """
    if terminal_width(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip(" ")))
    second = re.match(r" *[^ ]+(?: [^ ]+)*  +", line)
    column = terminal_width(second[0]) if second else len(indent) or 4
    lines, further = [indent], " " * (column if column <= width // 2 else len(indent) or 4)
    for gap, word in _WORDS.findall(line[len(indent) :]):
        last = lines[-1]
        if last.strip() and terminal_width(last + gap + word) > width:
            lines.append(further + word)
        else:
            lines[-1] = last + (gap + word if last.strip() else word)
    return "\n".join(lines)


def align_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], gap: str = "  ", *, left: int = 1
) -> list[str]:
    """Return the lines of a table.

    Args:
        left: number of left-aligned columns; the others are right-aligned.
    """
    return _table([head], [head, *rows], gap, left)


def _table(heads: Sequence[Sequence[str]], lines: Sequence[Sequence[str]], gap: str, left: int) -> list[str]:
    """Return lines, the first of which is replaced by the lines of its head."""
    lines = [*heads, *lines[1:]]
    widths = [max(map(terminal_width, column)) for column in zip(*lines, strict=True)]

    def cell(text: str, column: int) -> str:
        width = widths[column]
        return pad_text(text, width) if column < left else " " * (width - terminal_width(text)) + text

    return [gap.join(cell(text, column) for column, text in enumerate(line)).rstrip() for line in lines]


def fit_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    gap: str = "  ",
    *,
    left: int = 1,
    room: int | None = None,
) -> list[str]:
    """Return the lines of a table that fits on the terminal: in parts below each other, if it must be.

    Heads take several lines where that makes columns narrower; each part begins with the first column.

    Args:
        room: columns of the terminal; None: as they are, without a limit where stdout is no terminal.
    """
    lines, room = [head, *rows], columns() if room is None else room
    whole = align_table(head, lines[1:], gap, left=left)
    if room is None or max(map(terminal_width, whole)) <= room:
        return whole
    cells = [max(map(terminal_width, each), default=0) for each in zip(*lines[1:], strict=True)]
    stacked = [_stack_head(text, width) for text, width in zip(head, cells or [0] * len(head), strict=True)]
    widths = [max(width, *map(len, texts)) for width, texts in zip(cells, stacked, strict=False)]
    parts, used = [[0]], 0
    for column in range(1, len(widths)):
        used += 2 + widths[column]
        if widths[0] + used > room and len(parts[-1]) > 1:
            parts, used = [*parts, [0]], 2 + widths[column]
        parts[-1].append(column)
    found: list[str] = []
    for part in parts:
        heads = list(zip_longest(*(reversed(stacked[c]) for c in part), fillvalue=""))[::-1]
        found += _table(heads, [[line[c] for c in part] for line in lines], "  ", left)
    return found


def _stack_head(text: str, width: int) -> list[str]:
    """Return the head of a column as lines of its cells' width, or of its longest word."""
    longest = max(map(len, text.split()), default=1)
    return textwrap.wrap(text, max(width, longest, 1)) or [""]


@contextmanager
def enduring_output() -> Iterator[Enduring]:
    """Keep the program running if stdout or stderr is closed, full or no longer read (`| head`).

    Only the output to that stream is lost. Control characters, and those missing in the terminal's encoding,
    are printed escaped. On a terminal `error:` is red and `warning:` yellow, unless NO_COLOR is set.
    Yields the stream in place of stdout.
    """
    _open_standard_files()
    out, err = Enduring(sys.stdout, 1), Enduring(sys.stderr, 2)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield out
        finally:
            out.flush()  # what is kept until the exit would fail there
            err.flush()


def _open_standard_files() -> None:
    """Open closed standard streams 0 to 2 (`2>&-`) on /dev/null: the next file would get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest that is free


class Enduring:
    """Stream that switches to /dev/null once it fails, so that its flush at exit succeeds.

    Attributes:
        failure: why it failed; None if it did not.
        answers: True if it carries a machine-readable answer (`stdout_for_json`).
    """

    failure: OSError | None = None
    answers = False

    def __init__(self, stream: Any, number: int) -> None:
        self._stream = open(number, "w", closefd=False) if stream is None else stream  # noqa: SIM115
        if isinstance(self._stream, io.TextIOWrapper):
            self._stream.reconfigure(errors="backslashreplace")
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        # A tool called by another prints through both: the outer one colours and folds.
        self._on_terminal = not isinstance(self._stream, Enduring) and self._stream.isatty()
        self._coloured = not plain and self._on_terminal
        self._begun = False

    def write(self, text: str) -> int:
        with self._going_on():
            shown = escape_text(text)
            # A text behind another on its line, and a bar that redraws its line, stay as they are.
            if self._on_terminal and not (self.answers or self._begun or "\r" in shown or "\x1b" in shown):
                width = shutil.get_terminal_size().columns
                shown = "\n".join(fold_line(line, width) for line in shown.split("\n"))
            self._begun = not text.endswith("\n") and (self._begun or text != "")
            self._stream.write(_MARKED.sub(_in_colour, shown) if self._coloured else shown)
        return len(text)

    def flush(self) -> None:
        with self._going_on():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # nobody reads it, or the disk below it is full
            self.failure = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _in_colour(word: re.Match[str]) -> str:
    return f"{_RED if word[1] else _YELLOW}{word[0]}{_PLAIN}"


@contextmanager
def stdout_for_json(aside: bool) -> Iterator[TextIO]:
    """Yield stdout for a machine-readable answer; if `aside`, messages printed meanwhile go to stderr."""
    answer = sys.stdout
    if not aside:
        yield answer
        return
    if isinstance(answer, Enduring):
        answer.answers = True
    with redirect_stdout(sys.stderr):
        yield answer


@contextmanager
def quiet(silent: bool) -> Iterator[None]:
    """Suppress stdout if `silent`, because another process prints the same; stderr stays."""
    if not silent:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


@contextmanager
def stderr_held() -> Iterator[list[str]]:
    """Collect the lines written to stderr in the block, also by native code, without showing them."""
    lines: list[str] = []
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield lines
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            lines += held.read().decode(errors="replace").splitlines()
