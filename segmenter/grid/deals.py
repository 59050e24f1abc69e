"""Deals: the part of each group of a split, written beside its recipe, so that added data change none.

`mine.yaml` has `mine.deal.json` beside it once a training, or `segmenter start`, has dealt its groups by
their hashes. Groups named there keep their parts; a new one goes to the smallest part
(`datasets.files.parts_of`), and one that is gone leaves a gap. Each run has a copy in its record of scenes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from segmenter.base.errors import ConfigError, SegmenterError, shorten
from segmenter.base.files import read_regular, write_whole

_MOST_BYTES = 1 << 28
_UTF8 = "utf-8", "surrogateescape"
"""Names of files need not be UTF-8."""
_PART = re.compile(r"train|validation|test|fold [1-9]\d{0,2}")
"""Part of a group: a split, or the fold that validates on it."""
_ABOUT = "parts of the groups of the recipe's split; keep this file beside it, and none changes its part"


@dataclass(frozen=True)
class Rule:
    """Settings of a split that its deal depends on; another rule has another deal.

    Attributes:
        blocks: size and unit of the blocks that are dealt; empty: whole groups are.
    """

    folds: int = 0
    validation_share: float = 0.0
    test_share: float = 0.0
    seed: int = 0
    blocks: str = ""


@dataclass(frozen=True)
class Deal:
    """Part of each group under one rule.

    Attributes:
        parts: `train`, `validation`, `test` or `fold 1`, … by group; of blocks by `SCENE/ROW,COL`.
    """

    rule: Rule = Rule()
    parts: Mapping[str, str] = field(default_factory=dict)


Deals = tuple[Deal, ...]
"""Deals of a recipe, each under a rule of its own."""


def deal_file(recipe: Path) -> Path:
    """Return the file beside a recipe that holds its deals."""
    return recipe.with_suffix(".deal.json")


def read_deals(path: Path) -> Deals:
    """Return the deals in a file; none if there is no file.

    Raises:
        ConfigError: the file cannot be read, or holds no deals.
    """
    if not path.exists():
        return ()
    try:
        content = json.loads(read_regular(path, _MOST_BYTES).decode(*_UTF8))
        return deals_from(content["deals"])
    except (SegmenterError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(
            path,
            expected="the parts of a split's groups, as a training writes them",
            got=shorten(f"{type(error).__name__}: {error}"),
            remedy="put the file back as it was, or remove it to deal all groups anew",
        ) from None


def write_deals(path: Path, deals: Sequence[Deal]) -> None:
    """Write deals into a file, completely or not at all; a line for each group.

    Raises:
        SegmenterError: the file cannot be written.
    """
    text = json.dumps({"format": 1, "about": _ABOUT, "deals": as_json(deals)}, ensure_ascii=False, indent=1)
    write_whole(path, f"{text}\n".encode(*_UTF8))


def as_json(deals: Iterable[Deal]) -> list[dict[str, Any]]:
    """Return deals as plain JSON."""
    return [asdict(deal) for deal in deals]


def deals_from(content: Any) -> Deals:
    """Return the deals of plain JSON.

    Raises:
        ValueError, TypeError, KeyError: the content is of another form.
    """
    deals = tuple(Deal(Rule(**each["rule"]), dict(each["parts"])) for each in content)
    for deal in deals:
        wrong = [
            part for part in deal.parts.values() if not (isinstance(part, str) and _PART.fullmatch(part))
        ]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no part")
        for key, default in asdict(Rule()).items():
            if not isinstance(getattr(deal.rule, key), type(default)):
                raise ValueError(f"{key} is {getattr(deal.rule, key)!r}")
    return deals


def parts_dealt(deals: Iterable[Deal], rule: Rule) -> Mapping[str, str]:
    """Return the parts that were dealt under a rule; empty if none were."""
    return next((deal.parts for deal in deals if deal.rule == rule), {})


def with_deal(deals: Deals, new: Deal) -> Deals:
    """Return deals with one more, or with its groups added; groups that are gone keep their parts."""
    whole = Deal(new.rule, {**parts_dealt(deals, new.rule), **new.parts})
    if all(deal.rule != new.rule for deal in deals):
        return (*deals, whole)
    return tuple(whole if deal.rule == new.rule else deal for deal in deals)
