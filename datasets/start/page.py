"""Page of a planned recipe: tiles with labels over them, classes, split, settings, and what looks wrong."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError, counted, grouped, shortened
from segmenter.base.invocation import invocation
from segmenter.config.recipe import Recipe
from segmenter.evaluation.drawing import encoded, hex_colour
from segmenter.evaluation.figures import coloured, stretched
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import SPLITS, Dataset, Scene
from segmenter.pages.layout import BAR, FILLER, HOVER, SHUFFLE, axis, layout
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    Block,
    Chart,
    Head,
    Named,
    Paragraph,
    Picture,
    PictureRow,
    Pictures,
    Points,
    Section,
    Table,
    lines,
    number,
    percent,
    side_by_side,
)
from segmenter.raster import LabelRaster, open_raster, outlines, raster_info
from segmenter.tiles.index import TileIndex, build_index

from ..check import CheckReport
from ..files import few
from .choice import Choice
from .recipe_file import shown

_MOST_CLASSES, _MOST_SCENES, _MOST_LINES, _MOST_GROUPS = 24, 2000, 12, 60
_LONGEST = 160
_SIDE, _OVER = 320, 0.45
"""Pixels of a picture's side: smaller ones are enlarged; weight of the label's colours over the image."""


def start_page(recipe: Recipe, choices: Sequence[Choice], dataset: Dataset, report: CheckReport) -> str:
    """Return the page of a plan as HTML.

    Raises:
        SegmenterError: a package of the extra `report` is not installed.
    """
    scenes = ", ".join(f"{len(dataset.of(split))} {split}" for split in SPLITS if dataset.of(split))
    doubts = [(choice.key, f"{choice.reason}; or: {choice.other}") for choice in choices if choice.other]
    findings = counted(len(report.findings), "finding") if report.findings else "nothing looks wrong"
    lead = f"{counted(len(dataset.scenes), 'scene')} ({scenes}), {findings}, "
    lead += f"{counted(len(doubts), 'setting')} with another reading."
    facts = {"Classes": str(len(dataset.classes)), "Labelled pixels": number(int(report.pixels_K.sum()))}
    settings = [[each.key, shortened(shown(each.value), _LONGEST), each.reason] for each in choices]
    table = Table("Planned settings", ["Setting", "Value", "Reason"], settings, words=True)
    sections = [
        Section("doubts", "What else could it be?", [Points(doubts)] if doubts else []),
        Section("wrong", "What looks wrong?", _wrong(report)),
        Section("pictures", "Do the labels lie where they should?", _pictures(recipe, dataset)),
        Section("classes", "Which classes are there?", [_classes(dataset, report)]),
        Section("split", "What trains, and what is held out?", _split(dataset)),
        Section("settings", "Which settings, and why?", [table]),
    ]
    head = Head(f"Plan of {recipe.name}", lead, facts, f"{invocation('start')} DATA")
    return html_page(head, sections)


def _wrong(report: CheckReport) -> list[Block]:
    """Return the findings of the check, its remarks, and the files left out."""
    texts: dict[str, list[str]] = {}
    for finding in report.findings:
        pixels = f": {finding.pixels:,} pixels" if finding.pixels else ""
        texts.setdefault(finding.kind, []).append(f"{finding.text}{pixels}")
    items = [(kind, line) for kind, of in texts.items() for line in grouped(of)[:_MOST_LINES]]
    items += [("remark", remark) for remark in (*report.remarks[:_MOST_LINES], *report.dataset.notes)]
    for reason in dict.fromkeys(reason for _, reason in report.dataset.unused):
        files = [path.name for path, why in report.dataset.unused if why == reason]
        items.append((f"left out, {counted(len(files), 'file')}", f"{reason}: {few(files)}"))
    return [Points(items) if items else Paragraph("Nothing: every file was read, every value is known.")]


# ------------------------------------------------------------------------------------------------ pictures


def _pictures(recipe: Recipe, dataset: Dataset) -> list[Block]:
    """Return for each class, the rarest first, a window with much of it: image, label over it, label."""
    try:
        index = build_index(dataset, "train", recipe.tiles)
        rows = [_row(dataset, index, c, tile) for c, tile in _samples(index)]
    except SegmenterError as error:
        return [Paragraph(f"No picture could be made: {error}", "notice")]
    legend = [Named(each.name, hex_colour(each.colour)) for each in dataset.classes.classes]
    return [Pictures(rows, legend)]


def _samples(index: TileIndex) -> Iterator[tuple[int, int]]:
    """Yield each class with a tile that shows much of it, up to a half, and other classes; each tile once."""
    free = np.ones(len(index), np.bool_)
    for c in np.argsort(index.shares(), kind="stable")[:_MOST_CLASSES].tolist():
        own = np.minimum(index.counts_NK[:, c], index.labelled_N // 2) * free
        if own.any():
            yield c, (tile := int(own.argmax()))
            free[tile] = False


def _row(dataset: Dataset, index: TileIndex, c: int, tile: int) -> PictureRow:
    scene: Scene = index.scenes[int(index.scene_N[tile])]
    assert scene.label is not None, "indexed scenes have one"
    with open_raster(scene.image, dataset.bands) as raster:
        window = index.window(tile).intersection(Window.of(raster.info.size))
        image, valid = raster.read(window)
    with LabelRaster(scene.label, dataset.classes) as label:
        ids = np.where(valid, label.ids(window), IGNORE).astype(np.uint8)
    picture, shown = stretched(image, valid), coloured(ids, dataset.classes)
    mixed = (picture * (1 - _OVER) + shown * _OVER).astype(np.uint8)
    over = np.where((ids == IGNORE)[..., None], picture, mixed)
    title = f"{dataset.classes.names[c]}: {percent(float((ids == c).mean()))} of these pixels"
    place = (
        f"{scene.name}, row {window.row:,}, column {window.col:,}, {window.width} × {window.height} pixels"
    )
    made = (
        _picture("image", picture, "jpeg"),
        _picture("label over it", over, "jpeg"),
        _picture("label", shown, "png"),
    )
    return PictureRow(title, place, made)


def _picture(name: str, picture_HWC: NDArray[np.uint8], kind: Literal["png", "jpeg"]) -> Picture:
    step = max(1, max(picture_HWC.shape) // (2 * _SIDE))
    small = picture_HWC[::step, ::step]
    times = max(1, _SIDE // max(small.shape))
    data = base64.b64encode(encoded(small, kind)).decode()
    return Picture(name, f"image/{kind}", data, times * small.shape[1], times * small.shape[0])


# ------------------------------------------------------------------------------------------ classes, split


def _classes(dataset: Dataset, report: CheckReport) -> Table:
    used = [i for i, split in enumerate(SPLITS) if dataset.of(split)]
    share_PK = report.pixels_PK / np.maximum(1, report.pixels_PK.sum(axis=1, keepdims=True))
    rows: list[list[str | Named]] = []
    for k, each in enumerate(dataset.classes.classes):
        own = hex_colour(each.colour)
        value = str(each.code) if dataset.classes.encoding == "codes" else own
        shares = [percent(float(share)) for share in (report.shares()[k], *share_PK[used, k])]
        counts = number(int(report.pixels_K[k])), number(int(report.scenes_K[k]))
        rows.append([Named(each.name, own), value, *counts, *shares])
    rows.append(["ignored, or without data", "", number(report.ignored), *[""] * (len(used) + 2)])
    header = ["Class", "In label files", "Pixels", "Scenes", "Share", *(f"Of {SPLITS[i]}" for i in used)]
    return Table("Classes", header, rows)


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
    try:
        grounds = outlines([raster_info(scene.image) for scene in scenes])
    except SegmenterError:  # a finding of the check
        return None
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
    figure = {"data": data, "layout": frame}
    return Chart("map", "The scenes on the ground, by split", note, {"": figure}, table)
