"""Splits of a dataset: scenes by name, groups by name or hash, or blocks within scenes."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, setting
from segmenter.grid.deals import Rule


def one_group(value: str) -> str:
    """Check that a text is a regular expression with one group.

    Raises:
        PydanticCustomError: the text is no such expression.
    """
    try:
        groups = re.compile(value).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise PydanticCustomError("regex", "expected a regular expression ({e})", {"e": str(error)}) from None
    if groups != 1:
        raise PydanticCustomError("regex", "expected a regular expression with one (group)")
    return value


class SplitByNames(Section):
    """Scenes listed by name; unlisted scenes are used for training."""

    validation: tuple[str, ...] = setting(
        (), "", "scenes or groups that validate the training, and do not train, by name; default: none"
    )
    test: tuple[str, ...] = setting(
        (), "", "scenes or groups that training never sees, for the test, by name"
    )
    train: tuple[str, ...] | None = setting(
        None,
        "",
        "scenes or groups that train, by name; if given, scenes listed nowhere are left out and counted; "
        "default: all that are listed nowhere",
    )


class BlocksConfig(Section):
    """Blocks inside each scene, in place of whole scenes: for one large raster, or few."""

    size: float = setting(
        ...,
        "",
        "length of a block's side, in blocks.unit; longer than the distance over which labels are alike, "
        "and than three buffers",
        gt=0,
    )
    unit: Literal["pixels", "metres"] = setting("pixels", "", "unit of the block's side")
    buffer: int = setting(
        ...,
        "pixels",
        "width of the margin around blocks of another part whose pixels are ignored; at least the model's "
        "receptive-field radius, times what augmentation.scale, rotation and scale_to bring nearer",
        ge=0,
        le=100_000,
    )


class FolderSplit(Section):
    """Split of a folder's scenes; scenes of one group are never separated."""

    group: str | None = setting(
        None,
        "",
        "regular expression that is searched in the image's relative path; its one group names the group; "
        "scenes of one group stay in one part of the split",
    )
    validation: tuple[str, ...] = setting(
        (),
        "",
        "scenes that validate the training, and do not train, by group, name or glob pattern; default: none",
    )
    test: tuple[str, ...] = setting(
        (), "", "scenes that training never sees, for the test, by group, name or glob pattern"
    )
    leave_out: tuple[str, ...] = setting(
        (), "", "scenes that are not used, by group, name or glob pattern; they are counted and printed"
    )
    validation_share: float = setting(
        0.0,
        "share of the groups",
        "share of the groups held out for validation, chosen by a hash of the group instead of by name",
        ge=0,
        lt=1,
    )
    test_share: float = setting(
        0.0,
        "share of the groups",
        "share of the groups held out for the test, chosen by the same hash, from the other end of its order",
        ge=0,
        lt=1,
    )
    seed: int = setting(
        0, "seed", "seed of the hash that chooses groups; another seed holds out other groups", ge=0, lt=2**32
    )
    folds: int = setting(
        0,
        "folds",
        "number of folds that the groups are dealt into by hash, one of which validates; 0: no folds",
        ge=0,
        le=100,
    )
    fold: int = setting(1, "fold", "number of the fold that validates, counted from 1", ge=1)
    blocks: BlocksConfig | None = setting(
        None,
        "",
        "blocks within each scene that are dealt into the parts instead of whole groups, for one or few "
        "large scenes: docs/data.md",
    )

    @field_validator("group")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        return value if value is None else one_group(value)

    @property
    def by_hash(self) -> bool:
        """True if a hash chooses what is held out."""
        return bool(self.validation_share or self.test_share or self.folds)

    @property
    def rule(self) -> Rule:
        """Settings that the deal of the groups, or of blocks, depends on."""
        blocks = "" if self.blocks is None else f"{self.blocks.size:g} {self.blocks.unit}"
        return Rule(self.folds, float(self.validation_share), float(self.test_share), self.seed, blocks)

    @model_validator(mode="after")
    def _one_way(self) -> FolderSplit:
        """Refuse two ways to hold out the same part, and settings without effect."""
        for key, other in _WAYS:
            if getattr(self, key) and getattr(self, other):
                raise _misfit(f"expected {key} or {other}, got both; take one of them out")
        if self.validation_share + self.test_share >= 1:
            raise _misfit("expected shares whose sum is below 1, so that some groups train")
        if self.folds == 1 or (self.folds and self.fold > self.folds) or (not self.folds and self.fold > 1):
            raise _misfit(
                f"expected two folds or more, and one of them, got fold {self.fold} of {self.folds}"
            )
        if self.blocks is not None and not (self.validation_share or self.folds):
            raise _misfit("expected validation_share or folds with blocks, got none: nothing is held out")
        if self.seed and not self.by_hash:
            raise _misfit("expected validation_share, test_share or folds with seed, got none")
        return self


_WAYS = (
    *(("validation", "validation_share"), ("test", "test_share"), ("folds", "validation_share")),
    *(("folds", "validation"), ("blocks", "group"), ("blocks", "validation"), ("blocks", "test")),
)
"""Pairs of settings of which a split has one."""


def _misfit(message: str) -> PydanticCustomError:
    return PydanticCustomError("dataset.split", "{message}", {"message": message})
