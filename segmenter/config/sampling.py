"""Section `sampling` of the recipe."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.datasets import Metres
from segmenter.config.sections import Count, Section, setting

Method = Literal["plan", "shuffle", "repeat_factor", "rare_class", "foreground"]

_USED_BY = {
    "max_repeats_per_tile": "plan",
    "scale_strata": "plan",
    "quota": "plan",
    "lift": "plan",
    "quotas": "plan",
    "repeat_threshold": "repeat_factor",
    "foreground_share": "foreground",
}
"""Settings → the only method that reads them."""


class SamplingConfig(Section):
    """Division of an epoch into global batches."""

    method: Method = setting(
        "plan",
        "",
        "method that puts tiles into batches; plan holds every class in every step, the others promise no "
        "class: docs/coverage.md",
    )
    coverage: Literal["relaxed", "strict", "off"] = setting(
        "relaxed",
        "",
        "promise of the plan that every step holds every class; relaxed repeats tiles where that needs it, "
        "strict refuses there, off shuffles",
    )
    min_pixels: Count = setting(
        32,
        "pixels",
        "number of pixels of a class from which on a tile holds that class; lower it for small objects: a "
        "car at 0.5 m has ten",
        ge=1,
    )
    max_repeats_per_tile: Count = setting(
        4,
        "repeats",
        "largest number of repeats of a tile in an epoch; a class that would need more is best effort: it "
        "is named, and its tiles are not repeated",
        ge=0,
    )
    quota: Literal["presence", "rarity"] = setting(
        "presence",
        "",
        "number of tiles of each class that the plan puts into every step; presence: at least one; rarity: "
        "more, the rarer the class's pixels are",
    )
    lift: float = setting(
        1.0,
        "passes",
        "factor that raises the uses of tiles with rare classes, for quota: rarity; a tile is used max(1, "
        "lift × w) times an epoch, where rare_class sampling would draw it w times",
        ge=1,
        le=100,
    )
    quotas: dict[str, Annotated[int, Field(ge=1, le=10**6, strict=True)]] = setting(
        {},
        "tiles a step",
        "number of tiles of single classes in every step, by class name, as in {car: 4}; replaces what "
        "quota gives for them",
    )
    repeat_threshold: float = setting(
        0.1,
        "share of the tiles",
        "share below which a class is repeated, for method: repeat_factor; tiles of a class that is in a "
        "share f of the tiles come sqrt(repeat_threshold / f) times as often",
        gt=0,
        le=1,
    )
    rare_temperature: float = setting(
        0.1,
        "share of the pixels",
        "temperature of the draw of classes, for method: rare_class and quota: rarity; a class of share f "
        "is drawn in proportion to exp(-f / rare_temperature); the lower, the more often rare classes are "
        "drawn; the paper has 0.01",
        gt=0,
    )
    foreground_share: float = setting(
        0.33,
        "share of the batch",
        "share of each batch whose tiles show a class drawn at random, for method: foreground; the other "
        "tiles are shuffled",
        gt=0,
        le=1,
    )
    per_replica: Literal["best_effort", "off", "guarantee"] = setting(
        "best_effort",
        "",
        "distribution of the tiles of each step over the devices; best_effort: each device sees as many "
        "classes as it can in a step; guarantee: each device sees all classes in each step; off: "
        "in any order",
    )
    scale_strata: tuple[Metres, ...] = setting(
        (),
        "metres",
        "boundaries between pixel sizes on the ground, as in [0.3, 1.0]; every step then holds each class "
        "at each scale; default: scales are not told apart",
    )

    @property
    def plans_classes(self) -> bool:
        """True if classes are promised to every step."""
        return self.method == "plan" and self.coverage != "off"

    @property
    def plans_amounts(self) -> bool:
        """True if more than one tile of some class is promised to every step."""
        return self.plans_classes and (self.quota != "presence" or bool(self.quotas))

    @property
    def planned_per_replica(self) -> bool:
        """True if the plan depends on the number of replicas."""
        return self.per_replica == "guarantee" and self.plans_classes

    @field_validator("coverage", "per_replica", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare `off` as false

    @model_validator(mode="after")
    def _strata_fit(self) -> SamplingConfig:
        if any(b <= a for a, b in pairwise(self.scale_strata)):
            raise PydanticCustomError(
                "sampling.scale_strata",
                "expected rising metres a pixel, as in [0.3, 1.0], got {got}",
                {"got": str(list(self.scale_strata))},
            )
        if self.scale_strata and self.coverage == "off":
            raise PydanticCustomError(
                "sampling.scale_strata",
                "expected coverage: relaxed or strict with it, got off",
            )
        return self

    @model_validator(mode="after")
    def _nothing_unused(self) -> SamplingConfig:
        """Refuse settings without effect under the method: promises of classes, or another method's."""
        if self.method != "plan" and self.coverage == "strict":
            raise _refusal("coverage", "relaxed or off (no class is promised)", self, "strict")
        if not self.plans_classes and self.per_replica == "guarantee":
            raise _refusal("per_replica", "best_effort or off", self, "guarantee")
        for key, method in _USED_BY.items():
            if self.method != method and self._is_set(key):
                raise _unused_error(key, f"method: {method}", self.method)
        return self

    @model_validator(mode="after")
    def _quotas_fit(self) -> SamplingConfig:
        by_rarity = self.quota == "rarity"
        if self.coverage != "relaxed" and (by_rarity or self.quotas):
            raise PydanticCustomError(
                f"sampling.{'quota' if by_rarity else 'quotas'}",
                "expected sampling.coverage: relaxed with it (amounts of tiles may need repeats), got {got}",
                {"got": self.coverage},
            )
        if self._is_set("lift") and not by_rarity:
            raise _unused_error("lift", "quota: rarity", self.quota)
        if self._is_set("rare_temperature") and not by_rarity and self.method != "rare_class":
            raise _unused_error(
                "rare_temperature", "method: rare_class or sampling.quota: rarity", self.method
            )
        return self

    def _is_set(self, key: str) -> bool:
        return bool(getattr(self, key) != type(self).model_fields[key].default)


def _unused_error(key: str, expected: str, got: str) -> PydanticCustomError:
    return PydanticCustomError(
        f"sampling.{key}",
        "expected sampling.{expected} with it, got {got}: it would change nothing",
        {"expected": expected, "got": got},
    )


def _refusal(key: str, expected: str, asked: SamplingConfig, got: str) -> PydanticCustomError:
    """Return the refusal of a promise of classes under a method, or a coverage, that makes none."""
    given, other = ("coverage: off", "coverage: relaxed")
    if asked.method != "plan":
        given, other = f"method: {asked.method}", "method: plan"
    return PydanticCustomError(
        f"sampling.{key}",
        "expected {expected} with sampling.{given}, got {got}; sampling.{other} holds every class in every "
        "step",
        {"expected": expected, "given": given, "other": other, "got": got},
    )
