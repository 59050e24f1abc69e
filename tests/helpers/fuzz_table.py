"""A table of targets for the fuzzer that go wrong in every way."""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fuzz.target import Facts, Target
from segmenter.base.errors import SegmenterError


def _make(folder: Path) -> None:
    (folder / "a.txt").write_text("whole")


def _reading(act: Callable[[bytes], object]) -> Callable[[Path], Facts]:
    """Reads a file, and acts where it is not as it was made."""

    def read(path: Path) -> Facts:
        content = path.read_bytes()
        if content != b"whole":
            act(content)
        return ["whole"]

    return read


def _refuse(said: str) -> Callable[[bytes], object]:
    def act(_: bytes) -> None:
        raise SegmenterError(said)

    return act


def _raise(_: bytes) -> None:
    raise KeyError("outputs")


def _loop(_: bytes) -> None:
    while True:
        pass


def _target(act: Callable[[bytes], object]) -> Target:
    return Target(_make, ["*.txt"], _reading(act))


TARGETS = {
    "refused": _target(_refuse("a.txt: expected whole, got another; make it anew")),
    "long": _target(_refuse("x" * 3000)),
    "printed": _target(lambda _: print("\x1b]0;title", file=sys.stderr)),
    "raises": _target(_raise),
    "sleeps": _target(lambda _: time.sleep(1000)),
    "loops": _target(_loop),
    "crashes": _target(lambda _: ctypes.string_at(0)),
    "ends": _target(lambda _: os._exit(0)),
    "memory": _target(lambda _: np.ones(10**10)),
    "accepts": Target(_make, ["*.txt"], lambda path: [path.read_bytes().hex()]),
    "should-tell": Target(_make, ["*.txt"], lambda path: [path.read_bytes().hex()], checksum=True),
}
