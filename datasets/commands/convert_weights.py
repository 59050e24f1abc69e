"""Conversion of a PyTorch checkpoint to .safetensors, without PyTorch and without running its pickle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import WeightsError, plain
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option, parse_options
from segmenter.model.pretrained.torch_files import read_torch, write_safetensors

from .frame import tool_parser

_NO_NAMES = ("", "__metadata__")
"""The second is the key of metadata in a .safetensors file."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    file: Path = option(
        ..., "PyTorch checkpoint to read: a .pth, .pt or .ckpt file of torch.save", positional=True
    )
    out: Path = option(..., ".safetensors file to write, which must not exist", positional=True)
    prefix: str = option(
        "", "take only tensors whose names begin with PREFIX, and drop it from the names (default: take all)"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Convert the file and print the result; return the exit code."""
    given = parse_options(_parser(), _Options, words)
    out, prefix = given.out, given.prefix
    if out.suffix != ".safetensors":
        raise WeightsError(out, expected="a name that ends with .safetensors")
    if os.path.lexists(out):
        raise WeightsError(out, "is there already", remedy="name another file")
    content = read_torch(given.file)
    if odd := [n for n in content if not n.isprintable() or n in _NO_NAMES]:
        raise WeightsError(given.file, f"a tensor is called {plain(odd[0])!r}, which no network has")
    tensors = {name.removeprefix(prefix): content[name] for name in content if name.startswith(prefix)}
    if not tensors:
        first = ", ".join(list(content)[:3])
        raise WeightsError(given.file, f"no tensor is called {prefix}…", remedy=f"the first are {first}")
    if odd := [n for n in tensors if n in _NO_NAMES]:
        raise WeightsError(
            f"--prefix {prefix}",
            expected=f"the beginning of names, as in module.encoder., but of {prefix}{odd[0]} it leaves "
            f"{odd[0] or 'nothing'}",
        )
    write_safetensors(out, tensors)
    numbers = sum(array.size for array in tensors.values())
    print(f"{out}: {len(tensors)} tensors, {numbers:,} numbers; the first is {next(iter(tensors))}")
    return 0


_CALLS = {
    "encoder.pth encoder.safetensors": "all tensors of a file",
    "moco.pth encoder.safetensors --prefix module.encoder_q.": "tensors of one of the networks in the file",
}


def _parser() -> ToolParser:
    about = "Tensors of a PyTorch checkpoint as .safetensors; nothing in it is run."
    return tool_parser("convert-weights", about, _Options, calls=_CALLS)
