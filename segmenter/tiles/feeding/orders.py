"""Orders of batches, with the part of the plan that they need, and answers to them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.sampling import Plan
from segmenter.sampling.quotas import Quota
from segmenter.sampling.strata import Part
from segmenter.tiles.batches import DrawCounts

_TICKETS = itertools.count()


class FeedClosedError(Exception):
    """A batch was awaited while the feed was closed: the training has ended."""


@dataclass(frozen=True)
class Order:
    """One step of an epoch, as sent to a worker: some hundred bytes, whatever the plan's length.

    Attributes:
        ticket: number of the order.
        row_B, wanted_B, blocks, promised, parts, quotas: the step's part of the plan, as in `Plan`.
    """

    ticket: int
    epoch: int
    step: int
    row_B: NDArray[np.int64]
    wanted_B: NDArray[np.int64] | None
    blocks: int
    promised: tuple[int, ...]
    parts: tuple[Part, ...]
    quotas: tuple[Quota, ...]

    @classmethod
    def of(cls, plan: Plan, epoch: int, step: int) -> Order:
        """Return the order of a plan's step, with a new ticket."""
        wanted_B = None if plan.wanted_SB is None else plan.wanted_SB[step].copy()
        row_B = plan.rows_SB[step].copy()
        promises = (plan.blocks, plan.promised, plan.parts, plan.quotas)
        return cls(next(_TICKETS), epoch, step, row_B, wanted_B, *promises)

    def plan(self) -> Plan:
        """Return a plan for `BatchLoader.load` in which each step, up to this one, has this step's row."""
        rows_SB = np.broadcast_to(self.row_B, (self.step + 1, len(self.row_B)))
        wanted_SB = None if self.wanted_B is None else np.broadcast_to(self.wanted_B, rows_SB.shape)
        return Plan(
            rows_SB=rows_SB,
            coverage_repeats=0,
            repeats_bound=0,
            proven=False,
            fillers=0,
            promised=self.promised,
            best_effort=(),
            blocks=self.blocks,
            parts=self.parts,
            quotas=self.quotas,
            wanted_SB=wanted_SB,
        )

    @property
    def title(self) -> str:
        """Step and epoch for messages, counted from 1."""
        return f"step {self.step + 1} of epoch {self.epoch + 1}"


@dataclass(frozen=True)
class Answer:
    """A worker's answer to an order.

    Attributes:
        drawn: counts of this batch's draws; None if it failed.
        error: the exception; None if the batch was made.
        traceback: text of the traceback if the error is a defect of the program; else empty.
    """

    ticket: int
    drawn: DrawCounts | None = None
    error: BaseException | None = None
    traceback: str = ""
