"""Changes to files: flipped bits, cuts, repeats, splices, values that programs forget; by a number."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

_MOST_CHANGES = 4
_MOST_REPEATED = 2000
_TEXT_TOKENS = (
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-1",
        b"0",
        b"-0.0",
        b"1e-320",
        b"0.5",
        b"3",
        b'"3"',
        b"true",
    ),
    *(b"null", b"[]", b"{}", b'""', b"[1, 2]", b'{"a": 1}', b"9" * 400, b"9" * 5000, b"18446744073709551616"),
    *(
        b"1" + b"0" * 400 + b".0",
        b"\x1b]0;x\x07",
        b"\xff\xfe",
        b"\\ud800",
        b"\xed\xa0\x80",
        b"\x00",
        b"\r",
        b"\xe2\x80\xae",
    ),
    *(b"[" * 3000, b'{"a":' * 3000, b"../../../x", b"/dev/zero", b"~nosuchuser/x", b"</Item>", b"*" * 60),
)
_VALUE = re.compile(rb'-?\d[\d.eE+-]*|"[^"\n]*"|\btrue\b|\bfalse\b|\bnull\b|(?<=: )[^\n{\[]+')
_INTEGERS = (
    0,
    1,
    2,
    3,
    7,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
)
_FLOATS = (0.0, -0.0, -1.0, 0.5, 1e-320, 1e300, 1e308, float("inf"), float("-inf"), float("nan"))
Change = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def mutant(seed: bytes, others: Sequence[bytes], tokens: Sequence[bytes], number: int) -> bytes:
    """The seed with one to four changes, which follow from the number.

    Args:
        others: of the same kind, for splices.
        tokens: what to put into it beside what is put into all.
    """
    rng = random.Random(number)
    data, changes = bytearray(seed), _OF_TEXT if b"\0" not in seed and rng.random() < 0.7 else _OF_BYTES
    for _ in range(rng.choice((1, 1, 1, 2, _MOST_CHANGES))):
        change = rng.choice(changes)
        if change is _splice:
            _splice(data, rng, others)
        else:
            change(data, rng, (*tokens, *tokens, *_TEXT_TOKENS))
    return bytes(data)


def _slice(data: bytearray, rng: random.Random) -> slice:
    """Some part, rather a short one."""
    start = rng.randrange(len(data) + 1)
    return slice(start, start + int(2 ** rng.uniform(0, 10)))


def _flip(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _delete(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del data[_slice(data, rng)]


def _blank(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    where = _slice(data, rng)
    data[where] = rng.choice((b"\0", b"\xff")) * len(data[where])


def _repeat(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    part = bytes(data[_slice(data, rng)])
    times = rng.choice((1, 2, _MOST_REPEATED // max(1, len(part))))
    data[(where := rng.randrange(len(data) + 1)) : where] = part * times


def _move(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Over what is there, so that nothing else moves."""
    part = bytes(data[_slice(data, rng)])
    where = rng.randrange(len(data) + 1)
    data[where : where + len(part)] = part[: len(data) - where]


def _integer(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A number of two, four or eight bytes where TIFF and others have one: at an even place."""
    kind = rng.choice("HHIIQ")
    value = rng.choice(_INTEGERS) % (1 << 8 * struct.calcsize(kind))
    _put(data, rng, struct.pack(rng.choice("<>") + kind, value))


def _float(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    with_value = struct.pack("<d", rng.choice(_FLOATS))
    _put(data, rng, with_value)


def _put(data: bytearray, rng: random.Random, value: bytes) -> None:
    where = rng.randrange(max(1, len(data) - len(value) + 1)) & ~1
    data[where : where + len(value)] = value


def _insert(data: bytearray, rng: random.Random, tokens: Sequence[bytes]) -> None:
    data[(where := rng.randrange(len(data) + 1)) : where] = rng.choice(tokens)


def _value(data: bytearray, rng: random.Random, tokens: Sequence[bytes]) -> None:
    """A number, string or name of a text becomes another."""
    found = list(_VALUE.finditer(data))
    if found:
        where = rng.choice(found)
        data[where.start() : where.end()] = rng.choice(tokens)


def _line(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A line goes, comes twice, or changes places."""
    lines = bytes(data).splitlines(keepends=True)
    if lines:
        line = lines.pop(rng.randrange(len(lines)))
        for _again in range(rng.choice((0, 1, 2))):
            lines.insert(rng.randrange(len(lines) + 1), line)
        data[:] = b"".join(lines)


def _splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """The end of another file of the kind, or some part of it."""
    other = rng.choice(others)
    if rng.random() < 0.5:
        cut = rng.randrange(len(data) + 1)
        data[cut:] = other[min(cut, len(other)) :]
    else:
        part = other[_slice(bytearray(other), rng)]
        data[(where := rng.randrange(len(data) + 1)) : where + len(part)] = part


_OF_BYTES: tuple[Change, ...] = (
    *(_flip, _flip, _flip, _set, _set, _cut, _delete, _blank, _repeat, _move, _integer, _integer, _float),
    *(_splice, _insert),
)
_OF_TEXT: tuple[Change, ...] = (_value, _value, _value, _line, _insert, _delete, _repeat, _flip, _splice)
