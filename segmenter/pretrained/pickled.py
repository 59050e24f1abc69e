"""Content of a pickle without running it: an allow-list of opcodes and of names, on a machine of our own.

A pickle is a program: its `REDUCE` calls whatever its `GLOBAL` names. Here `pickletools` only splits the
bytes into opcodes, and this module carries out those that put plain data together. A name outside the list is
refused where it stands, before anything that follows it. Nothing is ever imported or called by name.
"""

from __future__ import annotations

import io
import pickletools
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MOST_OPCODES = 1 << 22
"""About 300,000 tensors. An opcode makes at most one small object, or is as large as its own bytes; what a
call is given counts as many as it has parts, since a pickle may give the same list again and again."""


class PickleError(ValueError):
    """A pickle is damaged, or wants more than plain data and tensors."""


@dataclass(frozen=True)
class Name:
    """A name that is in the allow-list; a word, and nothing that could be called."""

    name: str


@dataclass(frozen=True)
class Allowed:
    """Everything that a pickle may refer to.

    Attributes:
        names: such as `torch FloatStorage`, which may stand in it as words.
        makers: name → our own function, which `REDUCE` may stand for.
        persistent: what a persistent id stands for.
    """

    names: frozenset[str]
    makers: Mapping[str, Callable[..., Any]]
    persistent: Callable[[Any], Any]


_MARK = object()
_PLAIN = {
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"),
    *("FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
"""Opcodes whose argument, which `pickletools` has read, is the value."""
_SIZED = (tuple, list, dict, str, bytes)
_KEYS = (str, bytes, int, float, bool, type(None))
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def load_plain(file: io.BytesIO, allowed: Allowed) -> Any:
    """The object of the pickle that begins at a file's position, which is then behind it.

    Raises:
        PickleError: naming what it wants and may not have, or that it is damaged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in what is no text
            return _run(file, _Machine(allowed))
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeError) as error:
        raise PickleError(f"damaged pickle ({type(error).__name__})") from None
    except ValueError as error:
        raise error if isinstance(error, PickleError) else PickleError(f"damaged pickle ({error})") from None


def _run(file: io.BytesIO, machine: _Machine) -> Any:
    for opcode, argument, _ in pickletools.genops(file):
        machine.spend(1)
        if opcode.name == "STOP":
            return machine.popped()
        machine.do(opcode.name, argument)
    raise PickleError("damaged pickle (no end)")


class _Machine:
    """Stack and memo of one pickle."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._spent = 0
        self._do: dict[str, Callable[[], object]] = {
            "MARK": lambda: self._stack.append(_MARK),
            "POP": self._stack.pop,
            "POP_MARK": self._to_mark,
            "EMPTY_DICT": lambda: self._stack.append({}),
            "EMPTY_LIST": lambda: self._stack.append([]),
            "EMPTY_TUPLE": lambda: self._stack.append(()),
            "TUPLE": lambda: self._stack.append(tuple(self._to_mark())),
            "TUPLE1": lambda: self._tuple(1),
            "TUPLE2": lambda: self._tuple(2),
            "TUPLE3": lambda: self._tuple(3),
            "LIST": lambda: self._stack.append(self._to_mark()),
            "DICT": lambda: self._stack.append(_pairs(self._to_mark())),
            "APPEND": lambda: self._append([self.popped()]),
            "APPENDS": lambda: self._append(self._to_mark()),
            "SETITEM": lambda: self._set([self.popped(), self.popped()][::-1]),
            "SETITEMS": lambda: self._set(self._to_mark()),
            "STACK_GLOBAL": self._stack_name,
            "BINPERSID": self._persistent,
            "REDUCE": self._reduce,
            "BUILD": self._build,
        }

    def spend(self, steps: int) -> None:
        """Count steps.

        Raises:
            PickleError: there were more than any file of weights takes.
        """
        self._spent += steps
        if self._spent > _MOST_OPCODES:
            raise PickleError(f"more than {_MOST_OPCODES:,} opcodes and parts of what they are given")

    def _spend_on(self, given: Any) -> None:
        """Count the parts of what a function is given: it may look at each."""
        self.spend(sum(len(part) for part in (given, *given) if isinstance(part, _SIZED)))

    def do(self, name: str, argument: Any) -> None:
        """Carry out one opcode."""
        if name in _PLAIN:
            self._stack.append(_CONSTANTS.get(name, argument))
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[argument])
        elif name == "GLOBAL":
            self._name(argument)
        elif name in self._do:
            self._do[name]()
        else:
            raise PickleError(f"the opcode {name}" + (f" with {argument!r}" if argument else ""))

    def popped(self) -> Any:
        """The topmost object."""
        if (value := self._stack.pop()) is _MARK:
            raise PickleError("damaged pickle (a mark where a value is due)")
        return value

    def _to_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _tuple(self, count: int) -> None:
        self._stack.append(tuple([self.popped() for _ in range(count)][::-1]))

    def _append(self, values: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise PickleError("damaged pickle (a list was due)")
        self._stack[-1].extend(values)

    def _set(self, values: list[Any]) -> None:
        if type(self._stack[-1]) is not dict:
            raise PickleError("damaged pickle (a dictionary was due)")
        self._stack[-1].update(_pairs(values))

    def _stack_name(self) -> None:
        words = [self.popped(), self.popped()][::-1]
        if any(type(word) is not str for word in words):  # the text of a nested tuple may have no end
            raise PickleError("damaged pickle (a name was due)")
        self._name(" ".join(words))

    def _name(self, name: str) -> None:
        if name not in self._allowed.names and name not in self._allowed.makers:
            raise PickleError(f"the name {name.replace(' ', '.')}")
        self._stack.append(Name(name))

    def _reduce(self) -> None:
        arguments, function = self.popped(), self.popped()
        if not isinstance(function, Name) or function.name not in self._allowed.makers:
            raise PickleError(f"a call of {function.name if isinstance(function, Name) else 'no function'}")
        if type(arguments) is not tuple:
            raise PickleError("damaged pickle (arguments were due)")
        self._spend_on(arguments)
        self._stack.append(self._allowed.makers[function.name](*arguments))

    def _persistent(self) -> None:
        if type(identity := self.popped()) is not tuple:
            raise PickleError("damaged pickle (an identity was due)")
        self._spend_on(identity)
        self._stack.append(self._allowed.persistent(identity))

    def _build(self) -> None:
        """State that is set on an object: on a dictionary, module versions that nobody needs."""
        self.popped()
        if type(self._stack[-1]) is not dict:
            raise PickleError("state set on what is no dictionary")


def dictionary(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dictionary whose keys are plain: hashing a nested tuple may take for ever, or all of the stack.

    Raises:
        PickleError: a key is no text, number or None.
    """
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if type(key) not in _KEYS:
            raise PickleError(f"a {type(key).__name__} as a key")
        found[key] = value
    return found


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dictionary(zip(values[::2], values[1::2], strict=True))
