"""Report section on a run's maps: their scores against labels, and their accuracy from labelled points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segmenter.base.errors import CheckpointError
from segmenter.base.files import read_regular
from segmenter.base.sealed import json_object
from segmenter.evaluation.scores import MODEL, Scores
from segmenter.evaluation.scores import percent as in_percent
from segmenter.pages.parts import Block, Paragraph, Table, number, plain
from segmenter.runs.accuracy_file import AccuracyFile
from segmenter.runs.run import Run


def scores_of_maps(run: Run, maps: Path) -> Scores:
    """Read the scores that predict.py wrote beside maps of this run.

    Raises:
        CheckpointError: there are none, they are damaged, or the maps are of another model.
    """
    path = maps / "scores.json"
    try:
        record = json_object(read_regular(path)) or {}
        scores = Scores.from_dict(record)
        _table(scores)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise CheckpointError(
            f"{path}: expected scores of predict.py, got something else; score the maps anew"
        ) from None
    if record.get(MODEL) != run.checksum():
        raise CheckpointError(
            f"{path}: expected scores of maps of {run.path}, these are of another model; score anew"
        )
    return scores


def map_blocks(scores: Scores | None, accuracy: AccuracyFile | None) -> list[Block]:
    """Return what is known of the maps."""
    blocks: list[Block] = []
    if scores is not None:
        blocks += [
            Paragraph(plain(f"Against labels: {scores.protocol}, {number(scores.pixels)} pixels.")),
            _table(scores),
        ]
        if scores.more:
            width = scores.more["boundary"]["within_pixels"]
            blocks.append(
                Paragraph(
                    f"Boundary IoU: of pixels at most {width} px from another class. Objects: connected by "
                    "sides, matched at IoU above 0.5."
                )
            )
    if accuracy is not None:
        blocks.append(Paragraph(plain(f"From labelled points, {accuracy.source}: {accuracy.head}.")))
        blocks += [Paragraph(plain(f"{line}."), "notice") for line in accuracy.remarks]
        blocks.append(Table("Accuracy and area of each class", accuracy.titles, accuracy.rows))
    return blocks


def _table(scores: Scores) -> Table:
    columns: dict[str, Mapping[str, Any]] = {
        "IoU %": dict(zip(scores.protocol.classes, scores.iou.tolist(), strict=True)),
        "F1 %": dict(zip(scores.protocol.classes, scores.f1.tolist(), strict=True)),
    }
    means = [scores.miou, scores.mf1]
    if scores.more:
        boundary, objects = scores.more["boundary"], scores.more["objects"]
        columns |= {"Boundary IoU %": boundary["iou"], "Object F1 %": objects["f1"]}
        means += [boundary["miou"], objects["mf1"]]
    rows = [[name, *(_cell(values[name]) for values in columns.values())] for name in scores.protocol.classes]
    return Table("Scores of the maps", ["Class", *columns], [*rows, ["mean", *map(_cell, means)]])


def _cell(value: float | None) -> str:
    return in_percent(math.nan if value is None else value)
