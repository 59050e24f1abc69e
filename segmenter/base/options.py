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
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from segmenter.base.errors import DatasetError

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Option:
    """One option: a field of a dataclass with its text; see `option`.

    Attributes:
        name, kinds, default: the field's name, the members of its type, its default; set by `options_of`.
    """

    help: str
    metavar: str | tuple[str, ...] | None
    group: str | None
    read: Callable[[str], Any] | None
    spelt: Callable[[Any], Any] | None
    again: bool
    several: bool
    name: str = ""
    kinds: tuple[Any, ...] = ()
    default: Any = None

    @property
    def flag(self) -> str:
        """Option in its typed form, `--name`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed texts; empty if the option has a reader of its own."""
        if self.read is not None:
            return ()
        return tuple(each for kind in self.kinds if get_origin(kind) is Literal for each in get_args(kind))

    def allows(self, value: Any) -> bool:
        """Return whether a value is among the choices; True if the option has none."""
        known = self.choices
        return not known or value in known or (value is None and types.NoneType in self.kinds)

    @property
    def _is_flag(self) -> bool:
        return bool in self.kinds

    @property
    def _count(self) -> int | None:
        return len(self.metavar) if isinstance(self.metavar, tuple) else None

    @property
    def _read(self) -> Callable[[str], Any]:
        plain: dict[Any, Callable[[str], Any]] = {int: whole_number, float: float, Path: Path}
        return self.read or next((plain[kind] for kind in self.kinds if kind in plain), str)

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to its group of a parser; its value is None if it is not typed."""
        titled = (group for group in parser._action_groups if group.title == self.group)
        group = parser if self.group is None else next(titled, None) or parser.add_argument_group(self.group)
        if self._is_flag:
            flag, action = self.flag, "store_true"
            if self.default:
                flag, action = f"--no-{flag[2:]}", "store_false"
            group.add_argument(flag, dest=self.name, action=action, default=None, help=self.help)
            return
        more: dict[str, Any] = (
            {"action": "append"} if self.again else {"nargs": "+" if self.several else self._count}
        )
        more |= {"required": True} if self.default is MISSING else {}
        more |= {"choices": self.choices} if self.choices else {"type": self._read}
        group.add_argument(self.flag, metavar=self.metavar, help=self.help, **more)

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
            return self._parsed(value)
        if tuple[str, ...] in self.kinds:
            return self._texts(value)
        if float in self.kinds or int in self.kinds:
            return self._number(value)
        return self._expect(value, False, "a text")

    def _parsed(self, text: str) -> Any:
        if self.choices:
            return text  # `check_choices` looks at it
        try:
            return self._read(text)
        except argparse.ArgumentTypeError as error:
            raise DatasetError(f"{self.name}: {error}") from None
        except ValueError:
            return self._expect(text, False, "a number")

    def _number(self, value: Any) -> Any:
        self._expect(value, isinstance(value, Real) and not isinstance(value, bool), "a number")
        if float in self.kinds or self._read is float:
            return value
        is_whole = value == value // 1
        return self._expect(int(value) if is_whole else value, is_whole, "a whole number")

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
            raise DatasetError(f"{self.name}: expected {expected}, got {value!r}")
        return value


def option(
    default: Any,
    help: str,
    metavar: str | tuple[str, ...] | None = None,
    *,
    group: str | None = None,
    read: Callable[[str], Any] | None = None,
    spelt: Callable[[Any], Any] | None = None,
    again: bool = False,
    several: bool = False,
) -> Any:
    """Declare a field that is an option of the same name, with dashes on the command line.

    Args:
        default: `...`: required; a flag that is True by default is `--no-NAME` there.
        metavar: name of the value; several names declare a tuple of as many numbers.
        group: title in `--help`.
        read: converts a text (each text of several) to a value; None: by the field's type.
        spelt: converts a value given in Python to text.
        again: True if it may be given several times, for a tuple of texts.
        several: True if it takes one or more values, for a tuple.
    """
    default = MISSING if default is ... else default
    return field(
        default=default, metadata={Option: Option(help, metavar, group, read, spelt, again, several)}
    )


def options_of(kind: type) -> tuple[Option, ...]:
    """Return the options of a dataclass, in the order of its fields."""
    hints, found = get_type_hints(kind), []
    for each in fields(kind):
        if Option in each.metadata:
            hint = hints[each.name]
            kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
            found.append(replace(each.metadata[Option], name=each.name, kinds=kinds, default=each.default))
    return tuple(found)


def add_options(parser: argparse.ArgumentParser, *kinds: type) -> None:
    """Add the options of dataclasses to a parser."""
    for kind in kinds:
        for each in options_of(kind):
            each.add_to(parser)


def taken(kind: type[Kind], given: dict[str, Any], **more: Any) -> Kind:
    """Build a dataclass from its options, removing them from `given`; missing values get the default.

    Args:
        more: fields that are no options.
    """
    values = {each.name: given.pop(each.name) for each in options_of(kind)}
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**{name: value for name, value in lists.items() if value is not None}, **more)


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
            raise DatasetError(f"{name}: expected an option of predict.py{hint}")
    return {name: each.of_python(options.get(name)) for name, each in known.items()}


def check_choices(request: Any) -> None:
    """Refuse field values outside the choices of their type, as in `Literal["a", "b"] | None`.

    Raises:
        DatasetError: a value is not among its choices.
    """
    for each in options_of(type(request)):
        if not each.allows(value := getattr(request, each.name)):
            raise DatasetError(f"{each.flag}: expected {', '.join(each.choices)}, got {value}")


def positive(kind: type) -> Callable[[str], Any]:
    """Return a parser of numbers above 0, for argparse."""

    def number(text: str) -> Any:
        try:
            if 0 < (value := kind(text)) < float("inf"):
                return value
        except ValueError:
            pass
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"expected {what} above 0, got {text!r}")

    return number


def whole_number(text: str) -> int:
    """Return the whole number in a text; raise argparse's error with a readable message."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
