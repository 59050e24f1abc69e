"""Texts of the command line as values of `predict.py`'s options; each raises what argparse says to people."""

from __future__ import annotations

import argparse
from pathlib import Path

from segmenter.errors import ConfigError


def runs(text: str) -> Path | tuple[Path, ...]:
    """One run directory, or several between commas; a directory may have a comma in its name."""
    if "," not in text or Path(text).is_dir():
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
