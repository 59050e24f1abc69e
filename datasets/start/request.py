"""Request: what a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """Time, cards and name of a planned training.

    Attributes:
        hours: hours that the training may take on this machine; None: as long as the tiles ask for.
        gpus: GiB of each card of the machine to plan for; empty: it has none; None: this machine as it is.
        name: name of the recipe and its run.
    """

    hours: float | None
    gpus: tuple[int, ...] | None
    name: str
