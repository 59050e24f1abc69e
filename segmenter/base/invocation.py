"""Command lines of our tools as a user types them: `segmenter TOOL`, or a script of a clone."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from segmenter.base.errors import EXIT_WRONG_CALL, SegmenterError, extended_error, plain

COMMAND = "segmenter"
"""The installed command; its first argument is a tool."""


_CALL_WIDTH = 56
"""Characters of a usual call beside which its purpose stands; that of a longer one stands below it."""
_PACKAGE = "coverage-segmenter"
_CLONE = Path(__file__).parents[2]


def invocation(tool: str) -> str:
    """Return the command that starts a tool, for usage lines and hints: `segmenter predict`.

    In a clone, unless started by that command, a tool with a script there has its name: `python predict.py`.
    """
    script = f"{tool}.py"
    return f"python {script}" if _in_clone() and (_CLONE / script).is_file() else f"{COMMAND} {tool}"


def quote_path(path: Path) -> str:
    """Return a path as it is typed in a command: in quotes if it has a blank, say."""
    return plain(shlex.quote(str(path)))


def recipes_hint() -> str:
    """Return a hint on the location of ready-made recipes."""
    return "see configs/ for recipes" if _in_clone() else f"`{COMMAND} recipes` lists ready-made ones"


def installation(extra: str) -> str:
    """Return the command that installs an optional extra: `make …` in a clone, else pip."""
    if _in_clone():
        return "make " + {"cpu": "setup", "gpu": "setup GPU=1"}.get(extra, extra)
    # Two wheels of TensorFlow in one environment overwrite each other.
    first = "pip uninstall -y tensorflow-cpu; " if extra == "gpu" else ""
    return f"{first}pip install '{_PACKAGE}[{extra}]'"


@contextlib.contextmanager
def needing(
    extra: str, what: str, where: str = "", kind: type[SegmenterError] = SegmenterError
) -> Iterator[None]:
    """Refuse `what`, in the plural, in one line if a package of an optional extra cannot be imported.

    Args:
        where: the option or setting that asks for it.
        kind: class of the error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = SegmenterError(f"{what} need the package {error.name}: {installation(extra)}")
        raise extended_error(missing, where=where, kind=kind) from None


def _in_clone() -> bool:
    """Return whether this process runs from a clone and not by the command `segmenter`."""
    return Path(sys.argv[0] if sys.argv else "").name != COMMAND and (_CLONE / "train.py").is_file()


class ParagraphFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter of help texts that fills the lines of a paragraph anew if they are too wide."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        if max(map(len, lines), default=0) <= width:
            return super()._fill_text(text, width, indent)
        filled: list[str] = []
        for margin, paragraph in groupby(lines, lambda line: len(line) - len(line.lstrip()) if line else -1):
            if margin < 0:
                filled += paragraph
                continue
            own = indent + " " * margin
            told = " ".join(line.strip() for line in paragraph)
            filled.append(textwrap.fill(told, width, initial_indent=own, subsequent_indent=own))
        return "\n".join(filled)


class ToolParser(argparse.ArgumentParser):
    """Command-line parser: an error prints one line with a suggestion and exits with code 2.

    Options that take several numbers also accept commas between them.
    """

    settings: Callable[[], Iterable[str]] | None = None
    """Gives the names that `--set` takes; asked for only where a word is no option."""
    calls: Mapping[str, str] = {}  # replaced, never changed
    """Usual calls, printed below the options: words behind the tool's name → what they do."""

    def format_help(self) -> str:
        """Return the help text, and the usual calls below it."""
        script = self.prog.partition(" ")[0].endswith(".py")
        typed = f"python {self.prog}" if script else self.prog
        calls = {f"{typed} {words}".rstrip(): purpose for words, purpose in self.calls.items()}
        width = min(_CALL_WIDTH, max(map(len, calls), default=0))
        lines = ["", "usual calls:"] if calls else []
        if width + 4 + max(map(len, calls.values()), default=0) > shutil.get_terminal_size().columns:
            width = 4  # purposes stand below
        for call, purpose in calls.items():
            lines += (
                [f"  {call:{width}}  {purpose}"]
                if len(call) <= width
                else [f"  {call}", f"  {'':{width}}  {purpose}"]
            )
        return super().format_help() + "".join(f"{line}\n" for line in lines)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, after refusing unknown options."""
        words = list(self._split_numbers(sys.argv[1:] if args is None else args))
        if self._subparsers is None:  # else the words behind the command are for another parser
            self._refuse_unknown(words)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """End the process with a one-line error message."""
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            near = get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), 1)
            message += f"; did you mean {near[0]}?" if near else ""
        elif words := message.partition("unrecognized arguments: ")[2].split():
            message += self._hint_on(words)
        elif "did you mean" not in message:
            message += "; --help shows what there is"
        self.exit(EXIT_WRONG_CALL, f"error: {plain(message)}\n")

    @staticmethod
    def _hint_on(words: Sequence[str]) -> str:
        """Return why words stand beside the options, if that can be told."""
        if all(Path(word).exists() for word in words):
            return "; a pattern with * is put in quotes, or the shell replaces it by its files"
        return "; a setting is one word, as --set training.epochs=3; --help shows what there is"

    def _split_numbers(self, words: Sequence[str]) -> Iterator[str]:
        left = 0
        for word in words:
            option, equals, value = word.partition("=")
            action = self._option_string_actions.get(option)
            if action is not None and isinstance(action.nargs, int) and action.nargs > 1:
                left = action.nargs
                yield option
                if not equals:
                    continue
                word = value
            yield from word.split(",") if left and word.count(",") == left - 1 else [word]
            left = 0

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        for place, word in enumerate(words):
            if word == "--":
                return
            option, equals, value = word.partition("=")
            is_option = re.fullmatch(r"--[A-Za-z][\w.-]*", option) is not None
            if not is_option or option in known:
                continue
            if self.allow_abbrev and any(name.startswith(option) for name in known):
                continue
            following = words[place + 1 : place + 2]
            given = value if equals else next((w for w in following if not w.startswith("-")), "…")
            self.error(f"{option}: there is no such option{self._suggestion(option, given)}")

    def _suggestion(self, option: str, value: str) -> str:
        """Return a suggestion: a similarly spelt option, or the recipe setting of that name."""
        name = option.removeprefix("--").replace("-", "_")
        settings = {} if self.settings is None else {s.rpartition(".")[2]: s for s in self.settings()}
        settings |= {s: s for s in settings.values()}
        options = [known for known in self._option_string_actions if len(known) > 2]
        near = get_close_matches(option, options, 1, 0.7) or [o for o in options if o.startswith(option)]
        if near and name not in settings:
            return f"; did you mean {near[0]}?"
        if meant := [name] if name in settings else get_close_matches(name, settings, 1, 0.8):
            return f"; did you mean --set {settings[meant[0]]}={value}?"
        return ""
