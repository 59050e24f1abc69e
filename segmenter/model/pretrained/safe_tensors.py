"""Tensors of a .safetensors file as NumPy arrays: a JSON table and raw numbers, no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import WeightsError, shortened
from segmenter.base.files import write_whole
from segmenter.base.invocation import installation
from segmenter.model.pretrained.torch_files import MOST_AXES, MOST_BYTES, read_weights, upper_halves

INSTALL = installation("pretrained")
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U8": "u1", "BOOL": "?",
}  # fmt: skip


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors by name; bfloat16 as float32.

    Raises:
        WeightsError: the file is missing, truncated or damaged, has numbers of another type, or the package
            to read it is not installed.
    """
    safetensors = _library(path)
    content = read_weights(path)
    try:
        tensors = safetensors.deserialize(content)  # the library checks the table against the file
    except safetensors.SafetensorError as error:
        what = shortened(" ".join(str(error).split()))
        raise WeightsError(path, f"no whole .safetensors file ({what})", remedy="get it again") from None
    return {name: _array(path, name, part) for name, part in sorted(tensors, key=lambda each: str(each[0]))}


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write tensors to a file, completely or not at all.

    Raises:
        WeightsError: together they are larger than any network (they may be views of few numbers).
    """
    _library(path)
    if (total := sum(array.nbytes for array in tensors.values())) > MOST_BYTES:
        raise WeightsError(path, expected=f"at most {MOST_BYTES >> 30} GiB of tensors", got=total >> 30)
    from safetensors.numpy import save

    write_whole(path, save({name: np.array(array, order="C") for name, array in tensors.items()}))


def _library(path: Path) -> Any:
    try:
        import safetensors
    except ImportError:
        raise WeightsError(path, f"the package safetensors is not installed: {INSTALL}") from None
    return safetensors


def _array(path: Path, name: str, part: dict[str, Any]) -> NDArray[Any]:
    if part["dtype"] not in _TYPES:
        raise WeightsError(f"{path}: {name}", expected=f"one of {', '.join(_TYPES)}", got=part["dtype"])
    if len(part["shape"]) > MOST_AXES:
        raise WeightsError(f"{path}: {name}", expected=f"at most {MOST_AXES} axes", got=len(part["shape"]))
    values = np.frombuffer(part["data"], _TYPES[part["dtype"]]).reshape(part["shape"])
    return upper_halves(values) if part["dtype"] == "BF16" else values
