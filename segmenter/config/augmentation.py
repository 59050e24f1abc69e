"""Parts of section `augmentation`: transforms by name, copy-paste.

Whether the library has a transform, and what it does to the data's bands and type, is checked where tiles are
made (`segmenter.tiles.probing`): the library takes a second to import.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, setting

SHORTHANDS = ("d4", "scale", "rotation", "brightness", "contrast", "hue", "saturation", "blur", "noise")
"""Settings of section `augmentation` that stand for transforms."""


class TransformConfig(Section):
    """One transform of albumentations; every further key is a parameter of the transform."""

    model_config = ConfigDict(extra="allow")

    name: str = setting(..., "", "as albumentations calls it", min_length=1, max_length=100)
    p: float = setting(0.5, "probability", "of being applied to a tile; the library's default", gt=0, le=1)

    @model_validator(mode="after")
    def _finite(self) -> TransformConfig:
        try:
            json.dumps(self.model_extra, allow_nan=False)
        except ValueError:
            raise PydanticCustomError("transform", "expected finite numbers, got one that is not") from None
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The transform's own parameters, as they are written in the recipe."""
        return dict(self.model_extra or {})


class CopyPasteConfig(Section):
    """Regions of rare classes, pasted from other tiles (Ghiasi et al. 2021, arXiv:2012.07177)."""

    p: float = setting(0.3, "probability", "that a tile gets regions of another one", gt=0, le=1)
    classes: Literal["rare"] | tuple[str, ...] = Field(
        "rare",
        min_length=1,
        description="names; rare: those with less than half the pixels that an even share would give them",
        json_schema_extra={"unit": ""},
    )


def as_mapping(data: Any) -> Any:
    """Section `augmentation` written as a list: these transforms and nothing else."""
    if not isinstance(data, (list, tuple)):
        return data
    return {**dict.fromkeys(SHORTHANDS, 0), "d4": False, "transforms": data}
