"""Request of a plan: time, cards and name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """Limits that a plan keeps.

    Attributes:
        hours: of training; None: no limit.
        gpus: GiB of each card; None: the machine at hand.
        name: name of the recipe.
    """

    hours: float | None
    gpus: tuple[int, ...] | None
    name: str
