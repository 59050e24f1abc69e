"""File `run.json`: the meaning of a model's input and output, with types and ranges checked when read.

The file carries a checksum of itself (`sealed`) and the SHA-256 of `recipe.yaml` beside it: both are records
of a training, not settings.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from segmenter.base.errors import CheckpointError
from segmenter.base.sealed import json_object, other_format, sealed, unsealed_text
from segmenter.grid.labels import MAX_CLASSES

FORMAT = 2
_MOST_BANDS = 65535
_LARGEST = 1e38
"""Of what normalisation computes with, in float32; its smallest normal number is 1.2e-38."""
_MOST_ERRORS = 3

Value = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Value, Value, Value]
Code = Annotated[int, Field(ge=0, lt=0xFFFF)]
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Deviation = Annotated[float, Field(ge=1 / _LARGEST, le=_LARGEST)]
Band = Annotated[int, Field(ge=1, le=_MOST_BANDS)]
DType = Literal[
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"
]  # fmt: skip


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class _Class(_Strict):
    name: str = Field(min_length=1, max_length=1000)
    colour: Colour
    code: Code


class _Classes(_Strict):
    classes: tuple[_Class, ...] = Field(min_length=1, max_length=MAX_CLASSES)
    encoding: Literal["codes", "colours"]
    ignored: tuple[int | Colour, ...] = Field(max_length=1 << 16)
    nodata: Literal["ask", "ignore", "class"] = "ask"


class _Normalisation(_Strict):
    mean: tuple[Number, ...]
    std: tuple[Deviation, ...]


class _Network(_Strict):
    stride: int = Field(ge=1, le=1 << 16)
    radius: int | None = Field(ge=0, le=1 << 24)
    bytes_per_pixel: float = Field(ge=0, le=1e12)
    unlimited: str = Field(max_length=10_000)


class _Shares(_Strict):
    tiles: tuple[Annotated[int, Field(ge=0, le=1 << 20)], ...] = Field(min_length=1, max_length=1 << 12)
    devices: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(min_length=1, max_length=1 << 12)


class _Extension(_Strict):
    step: int = Field(ge=0, le=1 << 53)
    before: int = Field(ge=1, le=1 << 31)
    epochs: int = Field(ge=1, le=1 << 31)


class RunFile(_Strict):
    """The content of run.json; `checkpoint.Run` says what the fields mean.

    Attributes:
        format: of the file.
        recipe: SHA-256 of recipe.yaml; of the old one too, while a new one takes its place.
    """

    format: Literal[2]
    classes: _Classes
    bands: tuple[Band, ...] | None
    band_count: int = Field(ge=1, le=_MOST_BANDS)
    dtype: DType
    normalisation: _Normalisation
    scenes: _Normalisation | None = None
    shares: _Shares | None = None
    band_names: tuple[Annotated[str, Field(max_length=10_000)] | None, ...] = ()
    extensions: tuple[_Extension, ...] = Field((), max_length=10_000)
    metres_per_pixel: float | None = Field(gt=0, le=1e9)
    labels: Literal["full", "eroded"]
    network: _Network
    tiles: str = Field(max_length=1000)
    planned_replicas: int = Field(ge=1, le=1 << 16)
    recipe: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = Field(max_length=2)

    @model_validator(mode="after")
    def _counts_agree(self) -> RunFile:
        counts: dict[str, tuple[Any, ...]] = {
            "normalisation.mean": self.normalisation.mean,
            "normalisation.std": self.normalisation.std,
        }
        if self.scenes is not None:
            counts |= {"scenes.mean": self.scenes.mean, "scenes.std": self.scenes.std}
        if self.bands is not None:
            counts |= {"bands": self.bands}
        if self.shares is not None and len(self.shares.tiles) != len(self.shares.devices):
            raise PydanticCustomError("count", "shares: expected as many tiles as devices")
        if self.band_names:
            counts |= {"band_names": self.band_names}
        for name, values in counts.items():
            if len(values) != self.band_count:
                raise PydanticCustomError(
                    "count",
                    "{name}: expected as many as band_count, {count}, got {got}",
                    {"name": name, "count": self.band_count, "got": len(values)},
                )
        if not self.recipe:
            raise PydanticCustomError("recipe", "recipe: expected the SHA-256 of recipe.yaml, got none")
        return self


def run_file_text(data: Mapping[str, Any]) -> bytes:
    """run.json of plain values; the fields are those of `RunFile` but for the format.

    Raises:
        CheckpointError: one is of another type, or out of range.
    """
    text = json.dumps({"format": FORMAT, **data}, indent=2)
    _validated(text.encode(), "the training data give what no model can be trained with")
    return sealed(text).encode()


def read_run_file(content: bytes, where: str) -> RunFile:
    """Content of a run.json.

    Args:
        where: the file, named in errors.

    Raises:
        CheckpointError: it is damaged or edited, of another format, or has a wrong type or value.
    """
    whole = unsealed_text(content)
    if whole is None:
        raise CheckpointError(f"{where}: damaged or edited: its checksum is another, or missing")
    if (found := json_object(whole)) is not None and found.get("format") != FORMAT:
        raise CheckpointError(f"{where}: {other_format(FORMAT, found.get('format'))}")
    return _validated(whole, f"{where}: damaged or edited")


def _validated(text: bytes, where: str) -> RunFile:
    try:
        return RunFile.model_validate_json(text)
    except ValidationError as error:
        found = error.errors()
        more = f" and {len(found) - _MOST_ERRORS} more" if len(found) > _MOST_ERRORS else ""
        what = "; ".join(_explained(each) for each in found[:_MOST_ERRORS])
        raise CheckpointError(f"{where}: {what}{more}") from None


def _explained(error: Any) -> str:
    at = ".".join(str(part) for part in error["loc"])
    message = error["msg"].replace("Input should be", "expected")
    given = "" if "got" in message or error["type"] == "missing" else f", got {reprlib.repr(error['input'])}"
    return f"{at}: {message}{given}" if at else f"{message}{given}"
