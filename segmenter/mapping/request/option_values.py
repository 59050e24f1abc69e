"""Texts of the command line as values of `predict.py`'s options; each raises what argparse says to people."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from segmenter.base.errors import ConfigError, DatasetError


def runs(text: str) -> Path | tuple[Path, ...]:
    """One run directory, or several between commas; a directory may have a comma in its name."""
    if "," not in text or os.path.isdir(text):  # longer than a file name may be, Path.is_dir raises
        return Path(text)
    return tuple(Path(each) for each in text.split(",") if each)


def positive(text: str) -> int:
    """An argument of at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {value}")
    return value


def gsd(text: str) -> float | str:
    """Metres a pixel, or `auto`."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected metres a pixel, as 0.5, or auto, got {text!r}") from None


def tta(text: str) -> str:
    """Mirror images and scales, in the one way that they are written."""
    from segmenter.inference.tta import parse_tta

    try:
        return str(parse_tta(text))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--tta: ")) from None


def memory(text: str) -> int:
    """Bytes of a size as 8GB, or of a share."""
    from segmenter.inference.memory import parse_memory

    try:
        return parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name for name in text.split(",") if name)


def bands(text: str) -> tuple[int, ...]:
    """Numbers of bands between commas, counted from 1."""
    try:
        return tuple(positive(band) for band in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"expected numbers of bands, counted from 1, as in 1,2,3 (of an RGB image), got {text!r}"
        ) from None


# ------------------------------------------------------------------------------------- from Python


def of_python(action: argparse.Action, value: Any) -> Any:
    """An option's value as the parser would give it, of one that a program gives.

    Args:
        value: a text as on the command line; a number, a path or a sequence where it stands for one; None is
            the default.

    Raises:
        DatasetError: it can be none.
    """
    if hasattr(value, "tolist"):  # NumPy's: a number or an array
        value = value.tolist()
    if isinstance(action.const, bool):
        return _kind(action, value, isinstance(value, bool), "True or False")
    if value is None:
        return action.default
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if action.dest == "codes":
        value = _codes_text(value)
    if isinstance(action.nargs, int):
        return _numbers(action, action.nargs, value)
    if isinstance(action, argparse._AppendAction):
        return _texts(action, [value] if isinstance(value, str) else value)
    if isinstance(value, str):
        return _parsed(action, value)
    if action.type is names:
        return _texts(action, value)
    if action.type is bands and isinstance(value, Sequence):
        return _parsed(action, ",".join(map(str, value)))
    if action.type in (None, Path, tta):
        return _kind(action, value, False, "a text")
    return _number(action, value)


def _parsed(action: argparse.Action, text: str) -> Any:
    if not callable(action.type):
        return text
    try:
        return action.type(text)
    except argparse.ArgumentTypeError as error:
        raise DatasetError(f"{action.dest}: {error}") from None
    except ValueError:
        return _kind(action, text, False, "a whole number" if action.type is int else "a number")


def _number(action: argparse.Action, value: Any) -> Any:
    _kind(action, value, isinstance(value, Real) and not isinstance(value, bool), "a number")
    if action.type in (float, gsd):
        return value
    return _kind(action, int(value) if value == value // 1 else value, value == value // 1, "a whole number")


def _numbers(action: argparse.Action, count: int, value: Any) -> tuple[Any, ...]:
    found = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    shown = " ".join(action.metavar or ())
    _kind(action, value, len(found) == count, f"{count} numbers ({shown})")
    return tuple(_number(action, each) for each in found)


def _texts(action: argparse.Action, value: Any) -> tuple[str, ...]:
    whole = isinstance(value, Sequence) and all(isinstance(each, str) for each in value)
    return tuple(_kind(action, value, whole, "texts"))


def _codes_text(value: Any) -> Any:
    """Codes by name or in order, as the command line has them."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={code}" for name, code in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return value


def _kind(action: argparse.Action, value: Any, right: bool, expected: str) -> Any:
    if not right:
        raise DatasetError(f"{action.dest}: expected {expected}, got {value!r}")
    return value
