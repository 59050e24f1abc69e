"""Results of calls: scores, and the maps of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from segmenter.base.errors import EXIT_SOME_FAILED, ScoreError, SegmenterError, plain
from segmenter.evaluation.scores import FIGURES, Scores


@dataclass(frozen=True)
class MapScores:
    """Scores of maps against labels, each a fraction of 1; NaN where undefined. Printed as a table.

    Attributes:
        miou, mf1, oa, fwiou, kappa: over all classes.
        iou: of each class, by name.
        completeness: share of the labelled pixels that have image data; the scores are of these alone.
        epoch, step: of the validation that they are of; None: of maps.
        all: these and more, with the confusion matrix and the protocol.
    """

    miou: float
    mf1: float
    oa: float
    fwiou: float
    kappa: float
    iou: Mapping[str, float]
    completeness: float
    all: Scores = field(compare=False)
    epoch: int | None = None
    step: int | None = None

    @classmethod
    def read(cls, path: Path) -> MapScores:
        """Read the scores in a `scores.json`.

        Raises:
            ScoreError: it cannot be read, or is not what this program writes.
        """
        try:
            data: Any = json.loads(path.read_text(encoding="utf-8"))
            scores = Scores.from_dict(data)
            means = {name: float(getattr(scores, name)) for name in FIGURES}
            iou = dict(zip(scores.protocol.classes, map(float, scores.iou), strict=True))
            return cls(
                **means,
                iou=MappingProxyType(iou),
                all=scores,
                epoch=data.get("epoch"),
                step=data.get("step"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ScoreError(f"{path}: expected scores as the training writes them: {error!r}") from None

    def __repr__(self) -> str:
        when = "" if self.epoch is None else f"epoch {self.epoch}, step {self.step}\n"
        return when + self.all.table()


@dataclass(frozen=True, repr=False)
class Maps:
    """Maps that a call made or found finished.

    Attributes:
        paths: of all of them.
        kept: those that an earlier call had finished.
        folder: that they lie in.
        scores: where labels were given; None: nothing was scored.
        notes, warnings: what `predict.py` prints.
    """

    paths: tuple[Path, ...]
    kept: tuple[Path, ...]
    folder: Path
    scores: MapScores | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        count = len(self.paths)
        kept = f", {len(self.kept)} of them finished before" if self.kept else ""
        names = ", ".join(path.name for path in self.paths[:3]) + (", …" if count > 3 else "")
        lines = [f"{count} map{'s' * (count != 1)} in {self.folder}{kept}: {names}"]
        lines += [f"mIoU {100 * self.scores.miou:.2f} %"] if self.scores else []
        return "\n".join(plain(line) for line in (*lines, *self.warnings))


class MapsError(SegmenterError):
    """Some inputs failed; the others are mapped.

    Attributes:
        maps: of the others.
        failures: the error of each input that failed.
    """

    exit_code = EXIT_SOME_FAILED

    def __init__(self, maps: Maps, failures: tuple[SegmenterError, ...]) -> None:
        count = len(failures)
        rest = "" if count == 1 else f" (and {count - 1} more, see .failures)"
        super().__init__(
            f"{count} input{'s' * (count > 1)} failed, {len(maps.paths)} maps are finished: "
            f"{failures[0]}{rest}"
        )
        self.maps, self.failures = maps, failures
