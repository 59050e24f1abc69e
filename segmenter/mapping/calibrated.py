"""Calibrations of a run or ensemble, as its maps and their scores name them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from segmenter.base.errors import DatasetError
from segmenter.base.invocation import invocation, quote_path
from segmenter.evaluation.protocol import FittedOn
from segmenter.raster.stamps import file_digest
from segmenter.runs.ensemble import AnyRun, members
from segmenter.runs.records import CALIBRATION, FittedScene, load_calibration


def describe_calibration(run: AnyRun) -> str:
    """Return the temperatures of a run's or ensemble's calibrations as text; empty without any."""
    each = [member.calibration() for member in members(run)]
    texts = ("none" if one is None else f"{one.temperature:.4g}{' with bias' * one.shifts}" for one in each)
    return f"temperature {', '.join(texts)}" if any(each) else ""


def kind_of_calibration(run: AnyRun) -> str:
    """Return the calibration of a protocol; of runs that differ, each one's with commas."""
    each = [member.calibration() for member in members(run)]
    texts = ["none" if one is None else f"temperature{' and bias' * one.shifts}" for one in each]
    return ", ".join(texts if len(set(texts)) > 1 else texts[:1])


def remarks(run: AnyRun) -> Iterator[str]:
    """Yield lines on calibrations of earlier versions, which do not name their weights."""
    for member in members(run):
        found = load_calibration(member.path) if member.calibrated else None
        if found is not None and not found.weights:
            how = "is of another step than these weights, so not used"
            if member.calibration() is not None:
                how = "names no weights and is taken by their step"
            anew = f"{invocation('calibrate')} {quote_path(member.path)}"
            yield f"{member.path / CALIBRATION}: of an earlier version, {how}; to make it anew: {anew}"


class FittedScenes:
    """Scenes that the calibrations of a run or ensemble were fitted on, known by their files' content."""

    def __init__(self, run: AnyRun) -> None:
        """Read the records of the calibrations."""
        used = [member for member in members(run) if member.calibration() is not None]
        found = [record.fitted_on for member in used if (record := member.calibration_file()) is not None]
        self._unknown = not all(found)
        self._by_image: dict[str, list[FittedScene]] = {}
        for scene in (scene for scenes in found for scene in scenes):
            self._by_image.setdefault(scene.image, []).append(scene)

    def holds(self, image: Path, label: Path | None, *, blocks: bool) -> bool | None:
        """Return whether a calibration was fitted on a scene, or on a part of it; None: unknown.

        Args:
            blocks: True if the label is of some blocks of the image alone; other blocks are other scenes.
        """
        if not self._by_image:
            return None if self._unknown else False
        try:
            same = self._by_image.get(file_digest(image), [])
            if blocks and same and all(scene.blocks for scene in same) and label is not None:
                same = [scene for scene in same if scene.label == file_digest(label)]
        except DatasetError:  # of several files, in a folder
            return None
        return True if same else None if self._unknown else False


def relate_to_fit(each: Collection[bool | None]) -> FittedOn:
    """Return how scored scenes and those of the fit relate, from `FittedScenes.holds` of each."""
    if None in each:
        return "unknown scenes"
    if not any(each):
        return "other scenes"
    return "these scenes" if all(each) else "some of these scenes"
