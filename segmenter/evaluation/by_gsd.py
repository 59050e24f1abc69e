"""Scores by the scenes' ground sampling distance, if it differs: a total would hide weak scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from segmenter.base.terminal import fit_table
from segmenter.evaluation.bootstrap import forget_blocks, miou_interval
from segmenter.evaluation.intervals import INTERVAL, LEAST
from segmenter.evaluation.scores import FIGURES, ConfusionMatrix, Protocol, Scores, percent
from segmenter.grid.gsd import OCTAVES, scene_strata
from segmenter.grid.labels import ClassMap

KEY = "per_scale"
"""Key of the block in a file of scores."""


class GsdConfusions:
    """Confusion matrices of scenes, grouped by metres a pixel.

    Attributes:
        each: metres a pixel and matrix of each scene, by name.
    """

    def __init__(self, classes: ClassMap) -> None:
        self._classes = classes
        self.each: dict[str, tuple[float | None, ConfusionMatrix]] = {}
        self._found: dict[float | None, tuple[ConfusionMatrix, list[str]]] = {}

    def add(self, scene: str, metres: float | None, confusion: ConfusionMatrix) -> None:
        """Add a scene's confusion matrix; `metres` is None if its scale is unknown."""
        # Four digits: scenes in degrees or beside each other differ in the last ones.
        key = None if metres is None else float(f"{metres:.4g}")
        total, scenes = self._found.setdefault(key, (ConfusionMatrix(self._classes), []))
        total.merge(confusion)
        scenes.append(scene)
        self.each[scene] = metres, confusion
        forget_blocks([each for _, each in islice(reversed(self.each.values()), LEAST)])

    @property
    def scenes(self) -> list[ConfusionMatrix]:
        """The scenes' own matrices."""
        return [each for _, each in self.each.values()]

    def scores(
        self, protocol: Callable[[Sequence[str]], Protocol], boundaries: Sequence[float] = ()
    ) -> dict[str, Scores]:
        """Return the scores of each stratum by title, finest first; empty if all scenes are in one.

        Args:
            protocol: protocol whose scenes are scored.
            boundaries: boundaries of the strata in metres a pixel; if empty, octaves.
        """
        strata = scene_strata(list(self._found), boundaries or OCTAVES)
        if not strata.differ:
            return {}
        totals = [(ConfusionMatrix(self._classes), list[str]()) for _ in strata.titles]
        for number, (confusion, scenes) in zip(strata.number_S, self._found.values(), strict=True):
            totals[number][0].merge(confusion)
            totals[number][1].extend(scenes)
        forget_blocks(self.scenes)
        found = {}
        for title, (confusion, scenes) in zip(strata.titles, totals, strict=True):
            rule, each = protocol(sorted(scenes)), [self.each[scene][1] for scene in scenes]
            found[title] = replace(confusion.scores(rule), interval=miou_interval(each, rule))
        return found


def gsd_facts(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Return the score file's block by stratum; empty if there is one stratum."""
    if not scores:
        return {}
    return {KEY: {title: _facts(each) for title, each in scores.items()}}


def _facts(scores: Scores) -> dict[str, Any]:
    data = scores.to_dict()
    keys = (*FIGURES, *INTERVAL, "iou", "pixels", "without_data", "confusion", "missed")
    return {"scenes": len(scores.protocol.scenes), **{key: data[key] for key in keys if key in data}}


def gsd_table(scores: Mapping[str, Scores]) -> str:
    """Return a terminal table with a line per stratum, in percent."""
    rows = [
        (
            title,
            *(percent(getattr(each, key)) for key in FIGURES),
            str(len(each.protocol.scenes)),
            f"{each.pixels:,}",
            "–" if each.interval is None else each.interval.span,
        )
        for title, each in scores.items()
    ]
    head = ("metres a pixel", *FIGURES.values(), "scenes", "pixels", "mIoU, 95 %")
    return "\n".join(fit_table(head, rows, gap="   "))
