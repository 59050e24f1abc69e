"""Parts of section `augmentation`: transforms by name, copy-paste.

`segmenter.tiles.probing` checks that a transform exists and fits the data's bands and type, when tiles are
made: importing the library takes a second.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, setting

SHORTHANDS = ("d4", "scale", "rotation", "brightness", "contrast", "hue", "saturation", "blur", "noise")
"""Settings of section `augmentation` that stand for transforms."""
_APPLIED = {
    "d4": ("d4",),
    "affine": ("scale", "rotation"),
    "brightness_contrast": ("brightness", "contrast"),
    "hue_saturation": ("hue", "saturation"),
    "noise": ("noise",),
}
"""Probability → the settings whose transform it is of."""


_MIRRORS = frozenset({"HorizontalFlip", "VerticalFlip"})
_WAYS = (
    ("all", ({"D4"}, {"SquareSymmetry"}, *({mirror, "RandomRotate90"} for mirror in _MIRRORS))),
    ("flips", (_MIRRORS,)),
    ("mirror", ({"HorizontalFlip"},)),
)
"""Symmetries, the most first, and the sets of transforms by which tiles are shown in all of them."""


class TransformConfig(Section):
    """One transform of albumentations; all other keys are parameters of the transform."""

    model_config = ConfigDict(extra="allow")

    name: str = setting(
        ..., "", "name of the transform in albumentations, such as RandomGamma", min_length=1, max_length=100
    )
    p: float = setting(
        0.5,
        "probability",
        "probability that this transform is applied to a tile; the default is albumentations' own",
        gt=0,
        le=1,
    )

    @model_validator(mode="after")
    def _finite(self) -> TransformConfig:
        try:
            json.dumps(self.model_extra, allow_nan=False)
        except ValueError:
            raise PydanticCustomError("transform", "expected finite numbers, got one that is not") from None
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the transform, as written in the recipe."""
        return dict(self.model_extra or {})


class ProbabilityConfig(Section):
    """Probability of applying a shorthand's transform to a tile; each is drawn independently.

    `blur` is itself a probability; listed transforms have `p`.
    """

    d4: float = setting(
        1.0,
        "probability",
        "probability that a random one of the eight flips and quarter turns is applied to a tile",
        gt=0,
        le=1,
    )
    affine: float = setting(
        1.0,
        "probability",
        "probability that scale and rotation, together one transform, are applied to a tile",
        gt=0,
        le=1,
    )
    brightness_contrast: float = setting(
        1.0,
        "probability",
        "probability that the changes of brightness and contrast are applied to a tile",
        gt=0,
        le=1,
    )
    hue_saturation: float = setting(
        1.0,
        "probability",
        "probability that the changes of hue and saturation are applied to a tile",
        gt=0,
        le=1,
    )
    noise: float = setting(1.0, "probability", "probability that noise is added to a tile", gt=0, le=1)

    @property
    def colours_apart(self) -> bool:
        """True if colour changes are drawn independently, each from its own seed.

        Without probabilities they share one seed, so that older recipes give the same bits as before.
        """
        return min(self.brightness_contrast, self.hue_saturation, self.noise) < 1

    def unused_setting(self, asked: Any) -> tuple[str, str] | None:
        """Return a probability whose transform is off, and the settings that turn it on; else None."""
        for name, settings in _APPLIED.items():
            if getattr(self, name) < 1 and not any(getattr(asked, one) for one in settings):
                return name, " or ".join(settings)
        return None


class CopyPasteConfig(Section):
    """Copy-paste: regions of rare classes pasted from other tiles (Ghiasi et al. 2021, arXiv:2012.07177)."""

    p: float = setting(
        0.3, "probability", "probability that a tile gets regions pasted from another tile", gt=0, le=1
    )
    classes: Literal["rare"] | tuple[str, ...] = Field(
        "rare",
        min_length=1,
        description="names of the classes to paste; rare: classes with less than half the pixels that an "
        "equal share for each class would give them",
        json_schema_extra={"unit": ""},
    )


def symmetries_of(section: Any) -> str:
    """Return the name, as in `--tta`, of the most symmetries in which section `augmentation` shows tiles."""
    if section.d4:
        return "all"
    shown = {transform.name for transform in section.transforms}
    return next((name for name, ways in _WAYS if any(way <= shown for way in ways)), "none")


def as_mapping(data: Any) -> Any:
    """Return a list of transforms as a mapping for section `augmentation`, with all else turned off."""
    if not isinstance(data, (list, tuple)):
        return data
    return {**dict.fromkeys(SHORTHANDS, 0), "d4": False, "transforms": data}


def in_words(section: Any) -> str:
    """Describe section `augmentation` in a line; `(default)` marks settings that are not in the recipe."""
    on = []
    for name in (*SHORTHANDS, "scale_to", "mosaic"):
        value = getattr(section, name)
        if value:
            figures = value if isinstance(value, tuple) else () if value is True else (value,)
            words = " ".join([name, *(f"{figure:g}" for figure in figures)])
            on.append(words if name in section.model_fields_set else f"{words} (default)")
    on += [transform.name for transform in section.transforms]
    on += ["copy_paste"] if section.copy_paste else []
    return ", ".join(on) or "none"
