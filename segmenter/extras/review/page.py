"""Page of a review: the costliest findings as pictures, and the pairs of classes that are contradicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.base.files import write_whole
from segmenter.base.invocation import invocation
from segmenter.evaluation.drawing import hex_colour
from segmenter.evaluation.layers import colour_ids, stretch_picture
from segmenter.extras.review.findings import LabelFinding
from segmenter.extras.review.held_out import mapped_parts
from segmenter.grid.colours import far_from
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    Block,
    ClassCell,
    Head,
    KeyFigure,
    PageSection,
    Paragraph,
    PictureRow,
    PictureRows,
    Table,
    number,
    percent,
)
from segmenter.pages.pictures import picture
from segmenter.raster import LabelRaster, open_raster, scene_stretch

_SHOWN = 40
"""Findings with pictures."""
_AROUND, _MOST = 40, 640
"""Pixels that are shown around a finding; pixels of a finding with them that are shown, about its middle."""
_GREYS = (0, 0, 0), (128, 128, 128), (255, 255, 255)
"""Which images have anywhere: the frame has another colour."""


def write_page(found: Sequence[LabelFinding], run: Path, classes: ClassMap, path: Path) -> None:
    """Write the page, completely or not at all.

    Args:
        found: findings, costliest first; the first 40 get pictures.

    Raises:
        SegmenterError: the file cannot be written, or an image cannot be read.
    """
    legend = [ClassCell(each.name, hex_colour(each.colour)) for each in classes.classes]
    blocks: list[Block] = [Paragraph("No label is contradicted more than usual.")]
    if found:
        blocks = [PictureRows(_rows(found[:_SHOWN], classes), legend)]
    scenes = len({finding.of.scene.name for finding in found})
    facts = {
        "Scenes with findings": number(scenes),
        "Pixels expected to be wrong": number(sum(finding.wrong for finding in found)),
    }
    lead = (
        "Labels that models contradict which did not learn from them, costliest first, in a frame. A model "
        "errs too: look at the image."
    )
    sections = [
        PageSection("findings", "Which labels look wrong?", blocks),
        PageSection(
            "pairs", "Which classes are taken for each other?", [_pairs(found, classes)] * bool(found)
        ),
    ]
    figure = KeyFigure(
        number(len(found)), "labels that look wrong" if len(found) != 1 else "label that looks wrong"
    )
    head = Head(f"Labels to review, by {run.name}", lead, facts, f"{invocation('review')} RUN", figure)
    write_whole(path, html_page(head, sections).encode())


def _pairs(found: Sequence[LabelFinding], classes: ClassMap) -> Table:
    names, counts, wrong = classes.names, Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for finding in found:
        counts[finding.label, finding.likely] += 1
        wrong[finding.label, finding.likely] += round(finding.wrong)
    rows = [
        [f"{names[c]}, likely {names[k]}", number(counts[c, k]), number(pixels)]
        for (c, k), pixels in wrong.most_common()
    ]
    return Table("Findings by classes", ["Label", "Findings", "Expected wrong pixels"], rows)


def _rows(found: Sequence[LabelFinding], classes: ClassMap) -> list[PictureRow]:
    """Return image, label and map of each finding, with a line around its cells in a colour of no class."""
    maps = _maps(found)
    rows, frame_colour = [], list(far_from([*(each.colour for each in classes.classes), *_GREYS]))
    for rank, (finding, map_HW) in enumerate(zip(found, maps, strict=True), 1):
        around = _surroundings(finding)
        scene, dataset = finding.of.scene, finding.of.judge.dataset
        with open_raster(scene.image, dataset.bands) as raster:
            image = stretch_picture(*raster.read(around), scene_stretch(raster))
            metres = dataset.scale_of(scene, raster.info.metres_per_pixel)
        assert scene.label is not None, "it has findings"
        with LabelRaster(scene.label, dataset.classes) as label:
            label_HW = label.ids(around)
        frame = _frame(finding, around)
        pictures = (
            picture("image", np.where(frame, frame_colour, image), "jpeg", metres),
            picture("label", np.where(frame, frame_colour, colour_ids(label_HW, classes)), "png"),
            picture("map", np.where(frame, frame_colour, colour_ids(map_HW, classes)), "png"),
        )
        title = f"{rank}. {classes.names[finding.label]}, likely {classes.names[finding.likely]}"
        note = (
            f"{scene.title}, row {finding.window.row:,}, column {finding.window.col:,}: {finding.wrong:,.0f} "
            f"pixels are expected to be wrong; {percent(finding.share)} are another class on the map"
        )
        rows.append(PictureRow(title, note, pictures))
    return rows


def _maps(found: Sequence[LabelFinding]) -> list[NDArray[np.uint8]]:
    """Return the class ids of each finding's surroundings, by the run that did not learn from it."""
    maps = dict(mapped_parts([(each.of.judge, each.of.scene, _surroundings(each)) for each in found]))
    return [maps[number] for number in range(len(found))]


def _surroundings(finding: LabelFinding) -> Window:
    def frame(start: int, length: int) -> tuple[int, int]:
        wanted = min(length + 2 * _AROUND, _MOST)
        return start + (length - wanted) // 2, wanted

    own = finding.window
    (row, height), (col, width) = frame(own.row, own.height), frame(own.col, own.width)
    return Window(row, col, height, width).intersection(Window.of(finding.of.info.size))


def _frame(finding: LabelFinding, around: Window) -> NDArray[np.bool_]:
    """Return (H, W, 1): a line of two pixels around a finding's cells, which a JPEG keeps in its colour."""
    inside = np.zeros((around.height, around.width), np.uint8)
    for cell in finding.cells:
        if (shown := cell.intersection(around)).size.pixels:
            inside[shown.relative_to(around).slices()] = 1
    return (cv2.dilate(inside, np.ones((5, 5), np.uint8)) > inside)[..., None]
