"""Ensembles: several runs predict as one, averaging probabilities; the raster is read once."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from segmenter.base.errors import CheckpointError
from segmenter.config.recipe import Recipe
from segmenter.grid.labels import ClassMap
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.run import Run

_SAME_MEAN = 0.1
"""Standard deviations by which means of a band may differ and count as one."""
_SAME_SCALE = 0.01
"""Share by which metres a pixel may differ and count as one scale."""
_COPIES, _GRAPH_BYTES = 2, 80_000_000
"""Copies of a further run's weights (read, variables), and bytes of its compiled graph. Measured on a
CPU, as what a process's peak grew by from one run to two and to four, without the two copies: 19 to 33 MB
of a small U-Net, 0 to 64 of ResNet18 and EfficientNet-Lite0, 58 to 80 of EfficientNetV2-S and DenseNet121."""


@dataclass(frozen=True)
class Ensemble:
    """Runs with equal output and input: the same classes in the same order, the same bands.

    Each member keeps its own normalisation. The ensemble has those attributes of a `Run` that prediction
    needs.

    Attributes:
        members: two or more runs, in the given order.

    Raises:
        CheckpointError: two members do not agree; the message names both.
    """

    members: tuple[Run, ...]

    def __post_init__(self) -> None:
        for first, other in itertools.combinations(self.members, 2):
            for what, of in _AGREED.items():
                if of(first) != of(other):
                    raise self._refusal(what, first, other, of)
            names = zip(first.band_names, other.band_names, strict=False)  # none where they are unknown
            if any(one and one != its and one in other.band_names for one, its in names):
                raise self._refusal("order of bands", first, other, lambda run: run.band_names)

    def _refusal(self, what: str, first: Run, other: Run, of: Callable[[Run], Any]) -> CheckpointError:
        return CheckpointError(
            f"{first.path},{other.path}",
            expected=f"runs of the same {what}",
            got=f"{_value_text(of(first))} and {_value_text(of(other))}",
            remedy="predict with each of them by itself",
        )

    @property
    def path(self) -> Path:
        """Directory of the first member."""
        return self.members[0].path

    @property
    def recipe(self) -> Recipe:
        """Recipe of the first member, with the names of all members."""
        name = ", ".join(run.recipe.name for run in self.members)
        return self.members[0].recipe.model_copy(update={"name": name})

    @property
    def classes(self) -> ClassMap:
        """Classes of all members; codes and colours are those of the first."""
        return self.members[0].classes

    @property
    def bands(self) -> tuple[int, ...] | None:
        """1-based bands of all members; None: all bands but alpha."""
        return next((run.bands for run in self.members if run.bands is not None), None)

    @property
    def band_count(self) -> int:
        """Number of input bands."""
        return self.members[0].band_count

    @property
    def mean_C(self) -> tuple[float, ...]:
        """Mean of each band in the first member."""
        return self.members[0].mean_C

    @property
    def remark(self) -> str:
        """Warning that members' means differ, for images with bands without data; empty if they hardly do."""
        scales = ((run.scenes or run.normalisation) for run in self.members)
        each = (zip(one.mean, one.std, self.mean_C, strict=True) for one in scales)
        far = max(abs(mean - seen) / std for bands in each for mean, std, seen in bands)
        if far < _SAME_MEAN:
            return ""
        return (
            f"where only some bands have data, all runs see the means of {self.path} in the others, up to "
            f"{far:.1f} standard deviations from their own; predict with each run by itself"
        )

    @property
    def labels(self) -> Literal["full", "eroded"]:
        """Kind of labels that all members learned from.

        Raises:
            CheckpointError: members learned from different kinds.
        """
        for other in self.members[1:]:
            if other.labels != self.members[0].labels:
                raise CheckpointError(
                    f"{self.path},{other.path}",
                    f"learned from {self.members[0].labels} and {other.labels} labels",
                    remedy="say with --label-kind what the maps are scored with",
                )
        return self.members[0].labels

    @property
    def metres_per_pixel(self) -> float | None:
        """Metres a pixel of the training images of all members; None if unknown for one.

        Raises:
            CheckpointError: members differ by more than 1 %.
        """
        values = [run.metres_per_pixel for run in self.members]
        for run, metres in zip(self.members, values, strict=True):
            first = values[0]
            if first and metres and abs(metres / first - 1) > _SAME_SCALE:
                raise CheckpointError(
                    f"{self.path},{run.path}",
                    f"trained at {first:.3g} and {metres:.3g} m a pixel",
                    remedy="give the scale for all of them with --gsd METRES",
                )
        return None if None in values else values[0]

    @cached_property
    def network(self) -> NetworkGeometry:
        """Window geometry that suits all members: common multiple of strides, largest radius.

        Memory: members compute one after the other, so the largest counts, plus the sum of probabilities and
        the member being added.
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
        """Upper limit in bytes for all models but the first; their files may include optimiser state."""
        return sum(_COPIES * run.weights_file().stat().st_size + _GRAPH_BYTES for run in self.members[1:])

    def checksum(self) -> str:
        """Return the SHA-256 of the members' checksums (`Run.checksum`), in their order.

        Raises:
            CheckpointError: a member has no readable weights.
        """
        return hashlib.sha256(" ".join(run.checksum() for run in self.members).encode()).hexdigest()

    def fingerprint(self) -> str:
        """Return the fingerprints of the members' weights (`Run.fingerprint`), in their order.

        Raises:
            CheckpointError: a member has no readable weights.
        """
        return ", ".join(run.fingerprint() for run in self.members)


AnyRun = Run | Ensemble
"""Run or ensemble that predicts."""


def join_runs(runs: Sequence[Run]) -> AnyRun:
    """Return a single run unchanged, several as an ensemble.

    Raises:
        CheckpointError: the runs cannot predict together.
    """
    return runs[0] if len(runs) == 1 else Ensemble(tuple(runs))


def members(run: AnyRun) -> tuple[Run, ...]:
    """Return the member runs: the run itself or the ensemble's members."""
    return run.members if isinstance(run, Ensemble) else (run,)


def without_calibration(run: AnyRun) -> AnyRun:
    """Return a run or ensemble that predicts without calibrations."""
    return join_runs([replace(member, calibrated=False) for member in members(run)])


def _far(run: Run) -> bool:
    return run.network.radius is None


def _bands(run: Run) -> tuple[int, ...]:
    return run.bands or tuple(range(1, run.band_count + 1))


_AGREED: dict[str, Callable[[Run], Any]] = {
    "classes": lambda run: tuple(run.classes.names),
    "number of bands": lambda run: run.band_count,
    "bands": _bands,
}


def _value_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Iterable) else str(value)
