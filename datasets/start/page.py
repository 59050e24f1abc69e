"""Page of a planned recipe: tiles with labels over them, classes, split, settings, and what looks wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from segmenter.base.errors import SegmenterError, counted, shortened
from segmenter.base.invocation import invocation
from segmenter.config.recipe import Recipe, TilesConfig
from segmenter.diagnosis.augmented import tiles_to_show
from segmenter.evaluation.drawing import hex_colour
from segmenter.evaluation.layers import coloured, stretched
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, class_pixels
from segmenter.grid.scenes import SPLITS, Dataset
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    BAR,
    FILLER,
    HOVER,
    SHUFFLE,
    Block,
    Chart,
    ClassCell,
    Head,
    PageSection,
    Paragraph,
    PictureRow,
    PictureRows,
    Table,
    TermList,
    axis,
    layout,
    lines,
    number,
    percent,
    side_by_side,
)
from segmenter.pages.pictures import picture
from segmenter.raster import LabelRaster, open_raster, outlines, raster_info, scene_stretch
from segmenter.tiles.index import TileIndex, build_index

from ..check import CheckReport, class_rows
from .choice import Choice, value_text

_MOST_PICTURES, _MOST_SCENES, _MOST_LINES, _MOST_GROUPS = 24, 2000, 12, 60
_LONGEST = 160
_OVER = 0.45
"""Weight of the label's colours over the image."""


def start_page(
    recipe: Recipe, choices: Sequence[Choice], dataset: Dataset, report: CheckReport, lasts: str
) -> str:
    """Return the page of a plan as HTML; `lasts` is a line on the time of the training."""
    scenes = ", ".join(f"{len(dataset.of(split))} {split}" for split in SPLITS if dataset.of(split))
    doubts = [(choice.key, f"{choice.reason}; or: {choice.other}") for choice in choices if choice.other]
    left = [choice.left for choice in choices if choice.left]
    asked = [choice for choice in choices if choice.question]
    count = len(report.findings) + len(left)
    findings = counted(count, "finding") if count else "nothing looks wrong" if not asked else "no finding"
    lead = " ".join([*(f"{text}." for text in left), *(choice.question for choice in asked), ""])
    lead += f"{counted(len(dataset.scenes), 'scene')} ({scenes}), {findings}, "
    lead += f"{counted(len(doubts), 'setting')} with another reading."
    questions = [(each.question, f"if so, in the recipe: {line}") for each in asked for line in each.lines()]
    facts = {
        "Classes": str(len(dataset.classes)),
        "Labelled pixels": number(int(report.pixels_K.sum())),
        "Ignored, or without data": number(report.ignored),
        "Training": lasts,
    }
    settings = [[each.key, shortened(value_text(each.value), _LONGEST), each.reason] for each in choices]
    table = Table("Planned settings", ["Setting", "Value", "Reason"], settings, words=True)
    wrong = [("left out", text) for text in left]
    wrong += [(kind, line) for kind, of in report.faults().items() for line in of[:_MOST_LINES]]
    remarks = *report.remarks[:_MOST_LINES], *dataset.notes, *report.left_out()
    wrong += [("remark", remark) for remark in remarks]
    nothing = Paragraph("Nothing: every file was read, every value is known.")
    sections = [
        PageSection("questions", "What can the files not tell?", [TermList(questions)] if questions else []),
        PageSection("doubts", "What else could it be?", [TermList(doubts)] if doubts else []),
        PageSection("wrong", "What looks wrong?", [TermList(wrong) if wrong else nothing]),
        PageSection("pictures", "Do the labels lie where they should?", _pictures(recipe.tiles, dataset)),
        PageSection("classes", "Which classes are there?", [_classes(dataset, report)]),
        PageSection("split", "What trains, and what is held out?", _split(dataset)),
        PageSection("settings", "Which settings, and why?", [table]),
    ]
    head = Head(f"Plan of {recipe.name}", lead, facts, f"{invocation('start')} DATA")
    return html_page(head, sections)


def _pictures(tiles: TilesConfig, dataset: Dataset) -> list[Block]:
    """Return a tile for each class, the rarest first: image, label over it, label."""
    index = build_index(dataset, "train", tiles)
    count = min(int(index.counts_NK.any(axis=0).sum()), _MOST_PICTURES)
    try:
        rows = [_row(dataset, index, tile) for tile in tiles_to_show(index, count)]
    except SegmenterError as error:  # a damaged image, which the check has found
        return [Paragraph(f"No picture could be made: {error}", "notice")]
    legend = [ClassCell(each.name, hex_colour(each.colour)) for each in dataset.classes.classes]
    return [PictureRows(rows, legend)]


def _row(dataset: Dataset, index: TileIndex, tile: int) -> PictureRow:
    scene = index.scenes[int(index.scene_N[tile])]
    assert scene.label is not None, "indexed scenes have one"
    with open_raster(scene.image, dataset.bands) as raster:
        window = index.window(tile).intersection(Window.of(raster.info.size))
        image, valid = raster.read(window)
        stretch, metres = scene_stretch(raster), dataset.scale_of(scene, raster.info.metres_per_pixel)
    with LabelRaster(scene.label, dataset.classes) as label:
        ids = np.where(valid, label.ids(window), IGNORE).astype(np.uint8)
    seen, drawn = stretched(image, valid, stretch), coloured(ids, dataset.classes)
    over = np.where((ids == IGNORE)[..., None], seen, seen * (1 - _OVER) + drawn * _OVER)
    share_K = class_pixels(ids, len(dataset.classes)) / ids.size
    names = [f"{dataset.classes.names[c]} {percent(share_K[c])}" for c in np.argsort(share_K) if share_K[c]]
    place = f"{scene.name}, row {window.row:,}, column {window.col:,}, {window.size} pixels"
    made = (
        picture("image", seen, "jpeg", metres),
        picture("label over it", over, "jpeg"),
        picture("label", drawn, "png"),
    )
    return PictureRow(", ".join(names), place, made)


def _classes(dataset: Dataset, report: CheckReport) -> Table:
    header, rows = class_rows(dataset.classes.names, report.pixels_PK, report.scenes_K)
    coded = dataset.classes.encoding == "codes"
    named: list[list[str | ClassCell]] = []
    for each, row in zip(dataset.classes.classes, rows, strict=True):
        own = hex_colour(each.colour)
        named.append([ClassCell(each.name, own), str(each.code) if coded else own, *row[1:]])
    return Table("Classes", [header[0], "in label files", *header[1:]], named)


def _split(dataset: Dataset) -> list[Block]:
    """Return a map of the scenes by split where they are georeferenced, and a table of the groups."""
    groups: dict[str, Counter[str]] = {}
    for scene in dataset.scenes:
        groups.setdefault(scene.group, Counter())[scene.split] += 1
    held = [group for group in groups if len(groups) <= _MOST_GROUPS or not groups[group]["train"]]
    rows = [[group, *(number(groups[group][split]) for split in SPLITS)] for group in sorted(held)]
    table = Table("Scenes of each group", ["Group", *SPLITS], rows[:_MOST_SCENES])
    return [*side_by_side(_map(dataset, table)), table]


def _map(dataset: Dataset, table: Table) -> Chart | None:
    """Return a map of the scenes' outlines, coloured by split; None without georeference."""
    scenes = dataset.scenes[:_MOST_SCENES]
    grounds = outlines([raster_info(scene.image) for scene in scenes])
    data: list[dict[str, Any]] = []
    for split, colour in zip(SPLITS, (BAR, FILLER, SHUFFLE), strict=True):
        points, hovers = list[tuple[float | None, float | None]](), list[str]()
        for scene, ground in zip(scenes, grounds, strict=True):
            if scene.split == split and ground is not None:
                points += [*map(tuple, ground.tolist()), tuple(ground[0].tolist()), (None, None)]
                hovers += [lines(scene.name, split)] * (len(ground) + 2)
        if points:
            xy = {"x": [x for x, _ in points], "y": [y for _, y in points], "customdata": hovers}
            look = {"fill": "toself", "line": {"color": colour, "width": 1}, "name": split, "mode": "lines"}
            data.append({"type": "scatter", **xy, **look, "hovertemplate": HOVER})
    if not data:
        return None
    frame = layout(480, axis("east"), axis("north", scaleanchor="x"), showlegend=True)
    note = "Outlines of the images, in their CRS or in metres of an equal-area projection."
    return Chart(
        "map", "The scenes on the ground, by split", note, {"": {"data": data, "layout": frame}}, table
    )
