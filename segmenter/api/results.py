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
from segmenter.evaluation.tallies import FURTHER


@dataclass(frozen=True)
class MapScores:
    """Scores of maps against labels, as fractions of 1; NaN if undefined. Prints as a table.

    Attributes:
        miou, mf1, oa, fwiou, kappa: scores over all classes.
        iou: IoU of each class by name.
        completeness: share of the labelled pixels that have image data; only these are scored.
        epoch, step: position of the validation; None for scores of maps.
        miou_interval: lowest and highest mIoU of the 95 % interval; None if there are too few units.
        all: all scores, with the confusion matrix, the protocol and the interval (`all.interval`).
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

    @property
    def miou_interval(self) -> tuple[float, float] | None:
        return None if self.all.interval is None else self.all.interval.bounds

    @classmethod
    def read(cls, path: str | Path) -> MapScores:
        """Read the scores in a `scores.json`.

        Raises:
            ScoreError: the file is unreadable or was not written by this program.
        """
        path = Path(path)
        try:
            data: Any = json.loads(path.read_text(encoding="utf-8"))
            scores = Scores.from_dict(data, FURTHER)
            means = {name: float(getattr(scores, name)) for name in FIGURES}
            iou = dict(zip(scores.protocol.classes, map(float, scores.iou), strict=True))
            return cls(
                **means,
                iou=MappingProxyType(iou),
                all=scores,
                epoch=data.get("epoch"),
                step=data.get("step"),
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ScoreError(path, expected=f"scores as the training writes them: {error!r}") from None

    def __repr__(self) -> str:
        when = "" if self.epoch is None else f"epoch {self.epoch}, step {self.step}\n"
        return when + self.all.table()


@dataclass(frozen=True, repr=False)
class Maps:
    """Maps of a call, made or already finished.

    Attributes:
        paths: paths of all maps.
        kept: maps that an earlier call had finished.
        folder: folder of the maps.
        scores: scores, if labels were given; else None.
        notes, warnings: messages that `predict.py` would print.
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
        if self.scores:
            interval = self.scores.all.interval
            lines.append(
                f"mIoU {100 * self.scores.miou:.2f} %" + ("" if interval is None else f", {interval}")
            )
        return "\n".join(plain(line) for line in (*lines, *self.warnings))


class MapsError(SegmenterError):
    """Some inputs failed; the others are mapped.

    Attributes:
        maps: maps of the other inputs.
        failures: error of each failed input.
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
