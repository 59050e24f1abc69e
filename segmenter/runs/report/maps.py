"""Report section on a run's maps: their scores against labels, and their accuracy from labelled points."""

from __future__ import annotations

from pathlib import Path

from segmenter.base.errors import CheckpointError
from segmenter.base.files import read_regular
from segmenter.base.sealed import json_object
from segmenter.evaluation.scores import MODEL, Scores, percent
from segmenter.evaluation.tallies import FURTHER
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
        scores = Scores.from_dict(record, FURTHER)
        _table(scores)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise CheckpointError(path, expected="scores of predict.py", remedy="score the maps anew") from None
    if record.get(MODEL) != run.checksum():
        raise CheckpointError(path, expected=f"scores of maps of {run.path}", got="another model's")
    return scores


def map_blocks(scores: Scores | None, accuracy: AccuracyFile | None) -> list[Block]:
    """Return what is known of the maps."""
    blocks: list[Block] = []
    if scores is not None:
        blocks += [
            Paragraph(plain(f"Against labels: {scores.protocol}, {number(scores.pixels)} pixels.")),
            _table(scores),
        ]
    if scores is not None and scores.interval is not None:
        blocks.append(Paragraph(f"mIoU {scores.interval}."))
    if scores is not None and "boundary" in scores.more:
        width = scores.more["boundary"]["within_pixels"]
        text = f"Boundary IoU is of pixels at most {width} px from another class; objects match at IoU > 0.5."
        blocks.append(Paragraph(text))
    if accuracy is not None:
        blocks.append(Paragraph(plain(f"From labelled points, {accuracy.source}: {accuracy.head}.")))
        blocks += [Paragraph(plain(f"{line}."), "notice") for line in accuracy.remarks]
        blocks.append(Table("Accuracy and area of each class", accuracy.titles, accuracy.rows))
    return blocks


def _table(scores: Scores) -> Table:
    names = scores.protocol.classes
    columns = {"IoU %": [*scores.iou.tolist(), scores.miou], "F1 %": [*scores.f1.tolist(), scores.mf1]}
    for key, facts in scores.more.items():
        title, each, mean = FURTHER[key]
        columns[f"{title} %"] = [*(facts[each][name] for name in names), facts[mean]]
    rows = zip((*names, "mean"), *(map(percent, values) for values in columns.values()), strict=True)
    return Table("Scores of the maps", ["Class", *columns], list(rows))
