"""Strategies that a recipe can name: which settings each reads, and what fits it; extras register theirs.

`import segmenter` registers them, so that all are known before the first recipe is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import LiteralString

Problem = tuple[LiteralString, LiteralString]
"""A setting, and what is wrong with it."""


@dataclass(frozen=True)
class OtherSettings:
    """Settings of other sections that a strategy may not fit.

    Attributes:
        planned_per_replica: True if every device gets every class (sampling.per_replica: guarantee).
        xla: True if training.xla asks for it.
        per_call: True if training.steps_per_call is not the default.
    """

    planned_per_replica: bool
    precision: str
    xla: bool
    per_call: bool


def _none(others: OtherSettings) -> Iterable[Problem]:
    return ()


@dataclass(frozen=True)
class StrategyRules:
    """Rules on what a recipe can say with a strategy.

    Attributes:
        unread: settings of `distribution` that it does not read → why; `{got}` stands for the value.
        own: settings of `distribution` that it alone reads.
        misfits: yields a problem for each setting of another section that does not fit.
    """

    unread: Mapping[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    misfits: Callable[[OtherSettings], Iterable[Problem]] = _none


STRATEGIES = {
    "auto": StrategyRules(),
    "one_device": StrategyRules(
        {
            "cross_device": "one device has no other to add to, got {got}",
            "shares": "one device gets all of a step, got {got}",
        }
    ),
    "mirrored": StrategyRules(),
    "multi_worker_mirrored": StrategyRules(
        {
            "devices": "TensorFlow uses all that a worker sees; say visible_devices",
            "shares": "several workers get equal parts of a step; expected none",
        }
    ),
    "central_storage": StrategyRules(
        {"cross_device": "strategy: central_storage adds on the host, got {got}"}
    ),
}
"""Name → rules, in the order of the documentation; an extra adds its own by `STRATEGIES[name] = rules`."""
