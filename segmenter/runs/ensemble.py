"""Several runs that predict as one: their probabilities are averaged over one reading of the raster."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from segmenter.base.errors import CheckpointError
from segmenter.config.recipe import Recipe
from segmenter.grid.labels import ClassMap
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.run import Run

_SAME_SCALE = 0.01
"""Share by which metres a pixel may differ and count as one scale."""
_COPIES, _GRAPH_BYTES = 2, 80_000_000
"""Copies of a further run's weights (read, variables), and bytes of its compiled graph. Measured on a
CPU, as what a process's peak grew by from one run to two and to four, without the two copies: 19 to 33 MB
of a small U-Net, 0 to 64 of ResNet18 and EfficientNet-Lite0, 58 to 80 of EfficientNetV2-S and DenseNet121."""


@dataclass(frozen=True)
class Ensemble:
    """Runs of one output and one input: the same classes in the same order, the same bands.

    Each keeps its own normalisation and scale of values. It has the attributes of a `Run` that prediction
    asks for.

    Attributes:
        members: two or more, in the order in which they were named.

    Raises:
        CheckpointError: two of them do not agree; names both.
    """

    members: tuple[Run, ...]

    def __post_init__(self) -> None:
        first = self.members[0]
        for other in self.members[1:]:
            for what, of in _AGREED.items():
                if of(first) != of(other):
                    raise self._refusal(what, other, of)

    def _refusal(self, what: str, other: Run, of: Callable[[Run], Any]) -> CheckpointError:
        first = self.members[0]
        return CheckpointError(
            f"{first.path},{other.path}: expected runs of the same {what}, got {_shown(of(first))} and "
            f"{_shown(of(other))}; predict with each of them by itself"
        )

    @property
    def path(self) -> Path:
        """Directory of the first."""
        return self.members[0].path

    @property
    def recipe(self) -> Recipe:
        """The first's, under the names of all."""
        name = ", ".join(run.recipe.name for run in self.members)
        return self.members[0].recipe.model_copy(update={"name": name})

    @property
    def classes(self) -> ClassMap:
        """Classes of all; codes and colours are the first's."""
        return self.members[0].classes

    @property
    def bands(self) -> tuple[int, ...] | None:
        """1-based; None: all but alpha, for all of them."""
        return next((run.bands for run in self.members if run.bands is not None), None)

    @property
    def band_count(self) -> int:
        """Number of bands that they see."""
        return self.members[0].band_count

    @property
    def mean_C(self) -> tuple[float, ...]:
        """The first's."""
        return self.members[0].mean_C

    @property
    def labels(self) -> Literal["full", "eroded"]:
        """Kind of labels that they learned from.

        Raises:
            CheckpointError: of both.
        """
        for other in self.members[1:]:
            if other.labels != self.members[0].labels:
                raise CheckpointError(
                    f"{self.path},{other.path}: learned from {self.members[0].labels} and {other.labels} "
                    "labels; say with --label-kind what the maps are scored with"
                )
        return self.members[0].labels

    @property
    def metres_per_pixel(self) -> float | None:
        """Scale of the training images where all have one; None where one is not known.

        Raises:
            CheckpointError: they differ by more than 1 %.
        """
        known = [run.metres_per_pixel for run in self.members]
        for run, metres in zip(self.members, known, strict=True):
            first = known[0]
            if first and metres and abs(metres / first - 1) > _SAME_SCALE:
                raise CheckpointError(
                    f"{self.path},{run.path}: trained at {first:.3g} and {metres:.3g} m a pixel; give the "
                    "scale for all of them with --gsd METRES"
                )
        return None if None in known else known[0]

    @cached_property
    def network(self) -> NetworkGeometry:
        """Windows that suit all: the strides' common multiple, the largest radius.

        Memory: they compute one after the other, so that the largest counts, and a sum of probabilities
        with the share that is being added.
        """
        each = [run.network for run in self.members]
        sums = 8 * len(self.classes)
        unlimited = next((f"{run.path}: {run.network.unlimited}" for run in self.members if _far(run)), "")
        return NetworkGeometry(
            math.lcm(*(one.stride for one in each)),
            None if unlimited else max(one.radius or 0 for one in each),
            max(one.bytes_per_pixel for one in each) + sums if all(o.bytes_per_pixel for o in each) else 0.0,
            unlimited,
        )

    @property
    def further_bytes(self) -> int:
        """Bytes of the models beside the first, at most: their files may hold an optimiser's numbers, too."""
        return sum(_COPIES * run.weights_file().stat().st_size + _GRAPH_BYTES for run in self.members[1:])

    def checksum(self) -> str:
        """Return the SHA-256 of the members' (`Run.checksum`), in their order.

        Raises:
            CheckpointError: one of them has no weights, or they cannot be read.
        """
        return hashlib.sha256(" ".join(run.checksum() for run in self.members).encode()).hexdigest()


AnyRun = Run | Ensemble
"""Run or ensemble that predicts."""


def joined(runs: Sequence[Run]) -> AnyRun:
    """Return one run as it is, several as one.

    Raises:
        CheckpointError: they cannot predict together.
    """
    return runs[0] if len(runs) == 1 else Ensemble(tuple(runs))


def members(run: AnyRun) -> tuple[Run, ...]:
    """Return the member runs: the run itself or the ensemble's members."""
    return run.members if isinstance(run, Ensemble) else (run,)


def _far(run: Run) -> bool:
    return run.network.radius is None


def _bands(run: Run) -> tuple[int, ...]:
    return run.bands or tuple(range(1, run.band_count + 1))


_AGREED: dict[str, Callable[[Run], Any]] = {
    "classes": lambda run: tuple(run.classes.names),
    "number of bands": lambda run: run.band_count,
    "bands": _bands,
}


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Iterable) else str(value)
