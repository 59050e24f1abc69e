"""Values in a map's files: the value of each class, and the value for no data.

Class ids are 0 … K−1 everywhere in this program; a file may contain codes of 8 or 16 bits instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.grid.labels import IGNORE, ClassMap

OF_THE_RECIPE = "recipe"
"""In place of codes: those of the recipe's classes."""
VALUES, CODES = "VALUES", "codes"
"""The item of a map's metadata, and its value, where pixels hold the classes' codes in place of their ids."""
_MOST = 0xFFFF
_NAMED = re.compile(r"(.*\S)\s*=\s*(\d+)\s*$", re.DOTALL)
_NUMBER = re.compile(r"\s*(\d+)\s*$")


@dataclass(frozen=True)
class FileValues:
    """Values of a file: one for each class id, and one for no data.

    Attributes:
        codes: unique codes by class id.
        nodata: value for no data, none of the codes.

    Raises:
        DatasetError: values repeat, or do not fit into 16 bits.
    """

    codes: tuple[int, ...]
    nodata: int

    def __post_init__(self) -> None:
        if twice := sorted({code for code in self.codes if self.codes.count(code) > 1}):
            raise DatasetError(
                "--codes",
                expected="another code for each class",
                got=f"{twice[0]} twice",
                remedy="they cannot be told apart then",
            )
        if wrong := [value for value in (*self.codes, self.nodata) if not 0 <= value <= _MOST]:
            raise DatasetError("--codes and --nodata", expected=f"values in 0 … {_MOST}", got=wrong[0])
        if self.nodata in self.codes:
            raise DatasetError(
                "--nodata",
                expected="a value that is no class's code",
                got=self.nodata,
                remedy=f"the codes are {', '.join(map(str, self.codes))}",
            )

    @property
    def dtype(self) -> str:
        """Pixel type of the file: the smaller one that fits all values."""
        return "uint8" if max(*self.codes, self.nodata) <= 255 else "uint16"

    @property
    def _plain(self) -> bool:
        """True if the file contains the ids themselves."""
        return self.nodata == IGNORE and self.codes == tuple(range(len(self.codes)))

    @cached_property
    def _values(self) -> NDArray[Any]:
        table = np.full(256, self.nodata, self.dtype)
        table[: len(self.codes)] = self.codes
        return table

    @cached_property
    def _ids(self) -> NDArray[np.uint8]:
        table = np.full(_MOST + 1, IGNORE, np.uint8)
        table[list(self.codes)] = np.arange(len(self.codes))
        return table

    def of(self, ids: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the file's values for class ids."""
        return ids if self._plain else self._values[ids]

    def ids(self, raw: NDArray[Any]) -> NDArray[np.uint8]:
        """Return class ids for a file's values; `IGNORE` for other values."""
        return self._ids[raw]


def free_value(codes: Sequence[int]) -> int:
    """Return the value for no data: the codes' type's largest, else 0, else the largest unused one."""
    largest = 255 if max(codes) <= 255 else _MOST
    return next(value for value in (largest, 0, *range(largest, 0, -1)) if value not in codes)


def codes_of(text: str, classes: ClassMap) -> tuple[int, ...]:
    """Return the codes in `--codes`, by class id."""
    codes = parse_codes(text)
    if codes is None:
        return tuple(each.code for each in classes.classes)
    if isinstance(codes, dict):
        if unknown := [name for name in codes if name not in classes.names]:
            raise DatasetError("--codes", f"the run has no class {unknown[0]}", remedy=_list_codes(classes))
        if missing := [name for name in classes.names if name not in codes]:
            raise DatasetError("--codes", f"no code for {', '.join(missing)}", remedy=_list_codes(classes))
        return tuple(codes[name] for name in classes.names)
    if len(codes) != len(classes):
        raise DatasetError(
            "--codes", f"got {len(codes)} codes for {len(classes)} classes", remedy=_list_codes(classes)
        )
    return tuple(codes)


def _list_codes(classes: ClassMap) -> str:
    return f"expected a code for each of {', '.join(classes.names)}"


def parse_codes(text: str) -> list[int] | dict[str, int] | None:
    """Return codes in order, or by name; None if they are the recipe's."""
    if text == OF_THE_RECIPE:
        return None
    parts = text.split(",")
    if all(_NUMBER.match(part) for part in parts):
        return [int(part) for part in parts]
    named: dict[str, int] = {}
    name = ""
    for part in parts:  # a name may hold commas
        match = _NAMED.match(name := f"{name},{part}" if name else part)
        if match is None:
            continue
        if match[1].strip() in named:
            raise DatasetError("--codes", f"{match[1].strip()} has two codes")
        named[match[1].strip()] = int(match[2])
        name = ""
    if name or not named:
        raise DatasetError(
            "--codes",
            expected="whole numbers in the order of the classes, as 10,20,30, or names, as "
            f"building=10,road=20, or {OF_THE_RECIPE}",
            got=f"{text!r}",
        )
    return named
