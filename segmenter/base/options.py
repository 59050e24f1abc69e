"""Options declared once, as dataclass fields with help texts, for the command line and for Python.

Built on argparse. Measured on a class of eight fields: jsonargparse 4.53 answers `--help` in 0.31 s with 242
modules, tyro 1.0 in 0.46 s with 279, cyclopts 5.5 in 0.43 s with 326; argparse in 0.08 s with 59. None of the
three accepts today's command lines: jsonargparse takes no `--bbox L B R T`, no repeated `--only A` and no
bare flag; tyro keeps the last `--only`, cyclopts wants `--request.bbox`; all report a mistake in five lines
or in a box; `invocation.ToolParser` prints one line with a suggestion.
"""

from __future__ import annotations

import argparse
import os
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from segmenter.base.addresses import mask_secrets
from segmenter.base.errors import DatasetError
from segmenter.base.invocation import ToolParser

Kind = TypeVar("Kind")


_UNBOUNDED = 10**15
"""Limit of a number that needs none: its product with a raster's sides fits in 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option or argument of a command line: a field of a dataclass with its text; see `option`.

    Attributes:
        metavar: name of the value; several names declare a tuple of as many numbers.
        read: converts a text (each text of several) to a value; None: by the field's type.
        spelt: converts a value given in Python to text.
        again: True if it may be given several times, for a tuple of texts.
        several: True if it takes one or more values, for a tuple.
        positional: True if it is known by its position; several may then be none, if they have a default.
        alone: its value if it is given without one; None: it needs one.
        among: allowed values, of a type without `Literal`.
        least, most: limits of a number; by default its product with a raster's sides fits in 64 bits.
        one_of: name of the options of which only one may be given.
        path: True if a text names a file or folder, as values of type Path do: shells complete it.
        meant: gives names that may be meant by an unknown option: settings, of `--set`.
        name, kinds, default: the field's name, the members of its type, its default; set by `options_of`.
    """

    help: str
    metavar: str | tuple[str, ...] | None = None
    group: str | None = None
    read: Callable[[str], Any] | None = None
    spelt: Callable[[Any], Any] | None = None
    again: bool = False
    several: bool = False
    positional: bool = False
    alone: Any = None
    among: Collection[Any] = ()
    least: float = -(10**15)
    most: float = _UNBOUNDED
    one_of: str | None = None
    short: str | None = None
    path: bool = False
    meant: Callable[[], Iterable[str]] | None = None
    name: str = ""
    kinds: tuple[Any, ...] = ()
    default: Any = None

    @property
    def flag(self) -> str:
        """Option in its typed form, `--name`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[Any, ...]:
        """Allowed values; empty if the option has a reader of its own."""
        if self.among or self.read is not None:
            return tuple(self.among)
        return tuple(each for kind in self.kinds if get_origin(kind) is Literal for each in get_args(kind))

    @property
    def _is_flag(self) -> bool:
        return bool in self.kinds

    @property
    def _count(self) -> int | None:
        return len(self.metavar) if isinstance(self.metavar, tuple) else None

    @property
    def _kind(self) -> type:
        members = (*self.kinds, *(each for kind in self.kinds for each in get_args(kind)))
        return next((kind for kind in members if kind in (int, float, Path)), str)

    @property
    def _read(self) -> Callable[[str], Any]:
        own = {int: self._number_in, float: self._number_in, Path: local_path}
        return self.read or own.get(self._kind, self._kind)

    @property
    def limits(self) -> str:
        """Text on the allowed numbers."""
        number = "a whole number" if self._kind is int else "a number"
        if self.most >= _UNBOUNDED:
            return f"{number} above 0" if 0 < self.least < 1 else f"{number} from {self.least:g}"
        return f"{number}, {self.least:g} … {self.most:g}"

    def allows(self, number: float) -> bool:
        """Return True if a number is within the limits."""
        return self.least <= number <= self.most

    def _number_in(self, text: str) -> Any:
        with suppress(ValueError):
            if self.allows(value := self._kind(text)):
                return value
        unit = ", without a unit" if re.fullmatch(r"\s*[\d.]+\s*[A-Za-z]+\s*", text) else ""
        raise argparse.ArgumentTypeError(f"expected {self.limits}{unit}, got {text!r}")

    def add_to(self, group: argparse._ActionsContainer) -> None:
        """Add the option to a parser or a group of it; its value is None if it is not typed."""
        if self._is_flag:
            flag, action = self.flag, "store_true"
            if self.default:
                flag, action = f"--no-{flag[2:]}", "store_false"
            group.add_argument(flag, dest=self.name, action=action, default=None, help=self.help)
            return
        names = [self.name] if self.positional else [self.flag, *([self.short] if self.short else [])]
        more: dict[str, Any] = {"action": "append"} if self.again else {"nargs": self._nargs}
        more |= {"required": True} if self.default is MISSING and not self.positional else {}
        more |= {"const": self.alone} if self.alone is not None else {}
        more |= {"choices": self.choices} if self.choices else {}
        added = group.add_argument(*names, metavar=self.metavar, type=self._read, help=self.help, **more)
        if self.path or self._kind is Path or Path in self.kinds:
            added.complete = "file"  # type: ignore[attr-defined]  # read by shtab

    @property
    def _nargs(self) -> str | int | None:
        optional = self.positional and self.default is not MISSING
        if self.several:
            return "*" if optional else "+"
        return "?" if optional or self.alone is not None else self._count

    def of_python(self, value: Any) -> Any:
        """Convert a value given in Python to the value that the command line would have read.

        Args:
            value: a text as on the command line, or a number, path or sequence in its place; None: the
                default.

        Raises:
            DatasetError: the option cannot have this value.
        """
        if hasattr(value, "tolist"):  # NumPy's: a number or an array
            value = value.tolist()
        if value is None:
            return None
        if self._is_flag:
            return self._expect(value, isinstance(value, bool), "True or False")
        if self.spelt is not None:
            value = self.spelt(value)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if self._count is not None:
            return self._numbers(self._count, value)
        if self.again:
            return self._texts([value] if isinstance(value, str) else value)
        if isinstance(value, str):
            return self._parse(value)
        if tuple[str, ...] in self.kinds:
            return self._texts(value)
        if float in self.kinds or int in self.kinds:
            return self._number(value)
        return self._expect(value, False, "a text")

    def _parse(self, text: str) -> Any:
        if self.choices:
            return text  # `check_values` looks at it
        try:
            return self._read(text)
        except argparse.ArgumentTypeError as error:
            raise DatasetError(self.name, error) from None
        except ValueError:
            return self._expect(text, False, "a number")

    def _number(self, value: Any) -> Any:
        self._expect(value, _is_number(value), "a number")
        if self._kind is int:
            value = int(self._expect(value, value == value // 1, "a whole number"))
        return self._expect(value, self.allows(value), self.limits)

    def _numbers(self, count: int, value: Any) -> list[Any]:
        numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        assert isinstance(self.metavar, tuple)
        self._expect(value, len(numbers) == count, f"{count} numbers ({' '.join(self.metavar)})")
        return [self._number(each) for each in numbers]

    def _texts(self, value: Any) -> tuple[str, ...]:
        right = isinstance(value, Sequence) and all(isinstance(each, str) for each in value)
        return tuple(self._expect(value, right, "texts"))

    def _expect(self, value: Any, right: bool, expected: str) -> Any:
        if not right:
            raise DatasetError(self.name, expected=expected, got=f"{value!r}")
        return value


def local_text(text: str) -> str:
    """Return a path or pattern of local files; refuse an address, which would be a folder called `s3:`."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"expected a path on this machine, got the address {mask_secrets(text)}"
        )
    return text


def local_path(text: str) -> Path:
    """Return a local path; refuse an address."""
    return Path(local_text(text))


def option(default: Any, help: str, metavar: str | tuple[str, ...] | None = None, **how: Any) -> Any:
    """Declare a field that is an option of the same name, with dashes on the command line.

    Args:
        default: `...`: required; a flag that is True by default is `--no-NAME` there.
    """
    default = MISSING if default is ... else default
    return field(default=default, metadata={Option: Option(help=help, metavar=metavar, **how)})


def _parts(kind: type) -> dict[str, Option | type]:
    """Return, by field, the options of a dataclass and the dataclasses of options within it."""
    hints, found = get_type_hints(kind), dict[str, Option | type]()
    for each in fields(kind):
        hint = hints[each.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if Option in each.metadata:
            declared = each.metadata[Option]
            found[each.name] = replace(declared, name=each.name, kinds=kinds, default=each.default)
        elif isinstance(kinds[0], type) and is_dataclass(kinds[0]):
            found[each.name] = kinds[0]
    return found


def options_of(kind: type) -> tuple[Option, ...]:
    """Return the options of a dataclass, and of dataclasses within it, in the order of the fields."""
    parts = _parts(kind).values()
    return tuple(o for part in parts for o in ([part] if isinstance(part, Option) else options_of(part)))


def add_options(parser: ToolParser, *kinds: type, titles: Iterable[str] = ()) -> ToolParser:
    """Add the options of dataclasses to a parser, and return it.

    Args:
        titles: groups in the order of `--help`; others follow.
    """
    groups: dict[str | None, argparse._ActionsContainer] = {None: parser}
    groups |= {title: parser.add_argument_group(title) for title in titles}
    for each in (each for kind in kinds for each in options_of(kind)):
        title = each.one_of or each.group
        if title not in groups:
            groups[title] = (
                parser.add_mutually_exclusive_group() if each.one_of else parser.add_argument_group(title)
            )
        parser.settings = each.meant or parser.settings
        each.add_to(groups[title])
    return parser


def build_options(kind: type[Kind], given: Mapping[str, Any], **more: Any) -> Kind:
    """Build a dataclass from parsed options; missing values get the default.

    A dataclass within it has its default if none of its options is given.
    """
    for name, part in _parts(kind).items():
        if not isinstance(part, Option):
            if any(given[each.name] is not None for each in options_of(part)):
                more[name] = build_options(part, given)
        elif (value := given[name]) is not None:
            more[name] = tuple(value) if isinstance(value, list) else value
    return kind(**more)


def parse_options(parser: ToolParser, kind: type[Kind], arguments: Sequence[str] | None) -> Kind:
    """Parse a command line whose options a dataclass declares; end the process with code 2 on an error."""
    return build_options(kind, vars(parser.parse_args(arguments)))


@dataclass(frozen=True, kw_only=True)
class OverwriteOptions:
    """Option of tools that write a file."""

    overwrite: bool = option(
        False, "replace the output file if it exists (default: an existing file is an error)"
    )

    def exclusive_outputs(self, output: Path, *earlier: Path) -> AbstractContextManager[None]:
        """Return a block that alone writes a file, and `earlier` ones before it; see `base.files`.

        Raises:
            SegmenterError: a file exists, another process is at work, or the folder is not writable.
        """
        from segmenter.base.files import exclusive_outputs

        remedy = "name another file, or add --overwrite"
        return exclusive_outputs(output, *earlier, overwrite=self.overwrite, remedy=remedy)


class Command(NamedTuple):
    """Command of a tool: purpose, dataclass of options, and what runs with them and returns the exit code."""

    about: str
    options: type
    run: Callable[[Any], int]


def add_commands(parser: ToolParser, commands: Mapping[str, Command]) -> ToolParser:
    """Add the commands of a tool to its parser, and return it."""
    below = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, options, _) in commands.items():
        command = add_options(below.add_parser(name, help=about, description=about), options)
        own = {call: what for call, what in parser.calls.items() if call.split()[0] == name}
        command.calls = {call.partition(" ")[2]: what for call, what in own.items()}
    return parser


def parsed_command(
    parser: ToolParser, commands: Mapping[str, Command], arguments: Sequence[str] | None
) -> Callable[[], int]:
    """Parse a command line; return what runs its command and returns the exit code."""
    given = vars(parser.parse_args(arguments))
    command = commands[given["command"]]
    return partial(command.run, build_options(command.options, given))


def given_by_python(options: Mapping[str, Any], *kinds: type) -> dict[str, Any]:
    """Return options given by name in Python, converted as a parser would have read them.

    Raises:
        DatasetError: an unknown option or an impossible value.
    """
    known = {each.name: each for kind in kinds for each in options_of(kind)}
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
            raise DatasetError(name, expected=f"an option of predict.py{hint}")
    return {name: each.of_python(options.get(name)) for name, each in known.items()}


def check_values(request: Any) -> None:
    """Refuse numbers beyond their limits, and values outside the choices of their type (`Literal["a", "b"]`).

    Raises:
        DatasetError: an option cannot have this value.
    """
    for each in options_of(type(request)):
        value = getattr(request, each.name)
        if _is_number(value) and not each.allows(value):
            raise DatasetError(each.flag, expected=each.limits, got=value)
        allowed = (*each.choices, *([None] if types.NoneType in each.kinds else []))
        if each.choices and value not in allowed:
            raise DatasetError(each.flag, expected=", ".join(each.choices), got=value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
