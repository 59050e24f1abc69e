"""Page of a planned recipe: what looks wrong, tiles with their labels, classes, split, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError, counted, plain, shorten
from segmenter.base.files import is_vector
from segmenter.base.invocation import invocation
from segmenter.config.reading import setting_doc
from segmenter.config.recipe import Recipe, TilesConfig
from segmenter.diagnosis.augmented import tiles_to_show
from segmenter.evaluation.drawing import hex_colour, scale_bar
from segmenter.evaluation.layers import colour_ids, stretch_picture
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, class_pixels
from segmenter.grid.scenes import SPLITS, Dataset
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    BAR,
    FILLER,
    HOVER,
    INK,
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
from segmenter.raster import (
    LabelRaster,
    RasterInfo,
    open_raster,
    outlines,
    raster_info,
    scene_stretch,
)
from segmenter.raster.crs_units import unit_metres
from segmenter.tiles.index import TileIndex, build_index

from ..check import CheckReport, class_rows
from .choice import Choice, value_text

_MOST_PICTURES, _MOST_SCENES, _MOST_LINES, _MOST_GROUPS = 24, 2000, 12, 60
_LONGEST = 160


def start_page(
    recipe: Recipe, choices: Sequence[Choice], dataset: Dataset, report: CheckReport, lasts: str
) -> str:
    """Return the page of a plan as HTML; `lasts` is a line on the time of the training."""
    asked = [choice for choice in choices if choice.question]
    questions = [(each.question, f"if so, in the recipe: {line}") for each in asked for line in each.lines()]
    facts = {
        "Classes": str(len(dataset.classes)),
        "Labelled pixels": number(int(report.pixels_K.sum())),
        "Ignored, or without data": number(report.ignored),
        "Training": lasts,
    }
    wrong = [("left out", choice.left) for choice in choices if choice.left]
    wrong += [(kind, line) for kind, of in report.faults().items() for line in of[:_MOST_LINES]]
    remarks = *report.remarks[:_MOST_LINES], *dataset.notes, *report.left_out_lines()
    seen = [("remark", plain(text)) for text in remarks]
    nothing = Paragraph("Nothing: every file was read, every value is known.")
    doubts = [_doubt(recipe, choice) for choice in choices if choice.other]
    own, rest = (
        [each for each in choices if each.key.startswith("dataset.") is data] for data in (True, False)
    )
    sections = [
        PageSection("wrong", "What looks wrong?", [TermList(wrong) if wrong else nothing]),
        PageSection("questions", "What can the files not tell?", [TermList(questions)] if questions else []),
        PageSection("pictures", "Do the labels lie where they should?", _pictures(recipe.tiles, dataset)),
        PageSection("classes", "Which classes are there?", [_classes(recipe, dataset, report)]),
        PageSection("split", "What trains, and what is held out?", _split(dataset)),
        PageSection("doubts", "What else could it be?", [TermList(doubts)] if doubts else []),
        PageSection("seen", "What else is worth knowing?", [TermList(seen)] if seen else []),
        PageSection("files", "How are the files read, and why?", [_settings("Settings of the data", own)]),
        PageSection("settings", "How does it train, and why?", [_settings("Settings of the training", rest)]),
    ]
    left = " ".join(f"{choice.left}." for choice in choices if choice.left)
    count = len(report.findings) + sum(bool(choice.left) for choice in choices)
    findings = counted(count, "finding") if count else "nothing looks wrong" if not asked else "no finding"
    scenes = ", ".join(f"{len(dataset.of(split))} {split}" for split in SPLITS if dataset.of(split))
    told = f"{counted(len(dataset.scenes), 'scene')} ({scenes}), {findings}, "
    told += f"{counted(len(doubts), 'setting')} with another reading."
    lead = " ".join([*([left] if left else []), *(choice.question for choice in asked)])
    head = Head(
        f"Plan of {recipe.name}",
        lead or told,
        facts,
        f"{invocation('start')} DATA",
        more=told if lead else "",
    )
    return html_page(head, sections)


def _settings(caption: str, choices: Sequence[Choice]) -> Table:
    rows = [[each.key, shorten(value_text(each.value), _LONGEST), each.reason] for each in choices]
    return Table(caption, ["Setting", "Value", "Reason"], rows, words=True)


def _doubt(recipe: Recipe, choice: Choice) -> tuple[str, str]:
    """Return a setting that has another reading, and sentences that say it to who never saw a recipe."""
    what, value = setting_doc(recipe, choice.key), shorten(value_text(choice.value), _LONGEST)
    meaning = f" ({what.partition(';')[0]})" if what else ""
    return choice.key, f"planned is {value}{meaning}, as {choice.reason}. Not sure: {choice.other}."


def _pictures(tiles: TilesConfig, dataset: Dataset) -> list[Block]:
    """Return a tile for each class, the rarest first: image, borders of the label over it, label."""
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
    seen, drawn = stretch_picture(image, valid, stretch), colour_ids(ids, dataset.classes)
    square = np.ones((3, 3), np.uint8)
    border = (cv2.dilate(ids, square) != cv2.erode(ids, square)) & (ids != IGNORE)
    over = np.where(border[..., None], drawn, seen)
    share_K = class_pixels(ids, len(dataset.classes)) / ids.size
    names = [f"{dataset.classes.names[c]} {percent(share_K[c])}" for c in np.argsort(share_K) if share_K[c]]
    place = f"{scene.name}, row {window.row:,}, column {window.col:,}, {window.size} pixels"
    made = (
        picture("image", seen, "jpeg", metres),
        picture("borders", over, "png"),
        picture("label", drawn, "png"),
    )
    return PictureRow(", ".join(names), place, made)


def _classes(recipe: Recipe, dataset: Dataset, report: CheckReport) -> Table:
    header, rows = class_rows(dataset.classes.names, report.pixels_PK, report.scenes_K)
    title, values = _in_files(recipe, dataset)
    named: list[list[str | ClassCell]] = []
    for each, value, row in zip(dataset.classes.classes, values, rows, strict=True):
        named.append([ClassCell(each.name, hex_colour(each.colour)), value, *row[1:]])
    return Table("Classes", [header[0], title, *header[1:]], named)


def _in_files(recipe: Recipe, dataset: Dataset) -> tuple[str, list[str]]:
    """Return the title and the cells of a column that says what stands for each class in the label files."""
    classes, drawn = dataset.classes.classes, getattr(recipe.dataset, "vector", None)
    if drawn is not None and is_vector(getattr(recipe.dataset, "labels", "")):
        meant = {name: value for value, name in drawn.values.items()}
        else_where = {drawn.outside: "outside all polygons"} if drawn.outside else {}
        cells = [meant.get(each.name) or else_where.get(each.name) or each.name for each in classes]
        return f"in polygons ({drawn.attribute})" if drawn.attribute else "in polygons", cells
    if dataset.classes.encoding == "codes":
        return "code in label files", [str(each.code) for each in classes]
    return "colour in label files", [hex_colour(each.colour) for each in classes]


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
    infos = [raster_info(scene.image) for scene in scenes]
    grounds = outlines(infos)
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
    known = [ground for ground in grounds if ground is not None]
    if not known:
        return None
    hidden = {"showticklabels": False, "showgrid": False}
    frame = layout(480, axis("", **hidden), axis("", scaleanchor="x", **hidden), showlegend=True)
    frame |= _scale(np.concatenate(known), [info for info in infos if info.crs is not None])
    note = "North is up. Outlines of the images, in their CRS; in an equal-area projection if CRSs differ."
    return Chart(
        "map", "The scenes on the ground, by split", note, {"": {"data": data, "layout": frame}}, table
    )


def _scale(points_N2: NDArray[np.float64], infos: Sequence[RasterInfo]) -> dict[str, Any]:
    """Return a scale bar below a map of points, as parts of a layout; empty without a CRS."""
    if not infos:
        return {}
    (west, south), (east, north) = points_N2.min(axis=0).tolist(), points_N2.max(axis=0).tolist()
    same = all(info.crs == infos[0].crs for info in infos)
    units = unit_metres(infos[0].crs, (west + east) / 2, (south + north) / 2) if same else np.eye(2)
    if units is None:
        return {}
    text, share = scale_bar(float(np.hypot(*units[:, 0])) * (east - west))
    y = south - 0.06 * (north - south)
    ends = {"x0": west, "x1": west + share * (east - west), "y0": y, "y1": y}
    place = {"x": west, "y": y, "yshift": -18, "xanchor": "left", "showarrow": False}
    return {
        "shapes": [{"type": "line", **ends, "line": {"color": INK, "width": 4}}],
        "annotations": [{"text": text, **place, "font": {"size": 13, "color": INK}}],
    }
