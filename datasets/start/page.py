"""Page of a planned recipe: tiles with labels over them, classes, split, settings, and what looks wrong."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError, counted, grouped
from segmenter.base.invocation import invocation
from segmenter.config.recipe import Recipe
from segmenter.evaluation.drawing import encoded, hex_colour
from segmenter.evaluation.figures import coloured, stretched
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import SPLITS, Dataset, Scene
from segmenter.grid.geometry import Window
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
    label,
    lines,
    number,
    percent,
    side_by_side,
)
from segmenter.raster import LabelRaster, RasterInfo, open_raster, outlines, raster_info
from segmenter.tiles.index import TileIndex, build_index

from ..check import CheckReport
from ..files import few
from .choice import Choice

_MOST_CLASSES, _MOST_SCENES, _MOST_FINDINGS = 24, 2000, 12
_SIDE = 320
"""Pixels of a picture's side; smaller windows are enlarged, each pixel to a square."""
_OVER = 0.45
"""Weight of the label's colours over the image."""
_OF_SPLIT = dict(zip(SPLITS, (BAR, FILLER, SHUFFLE), strict=True))


def start_page(recipe: Recipe, choices: Sequence[Choice], dataset: Dataset, report: CheckReport) -> str:
    """Return the page of a plan as HTML.

    Raises:
        SegmenterError: a package of the extra `report` is not installed.
    """
    scenes = ", ".join(f"{len(dataset.of(split))} {split}" for split in SPLITS if dataset.of(split))
    doubts = sum(bool(choice.other) for choice in choices)
    findings = counted(len(report.findings), "finding") if report.findings else "the check finds no fault"
    lead = (
        f"{counted(len(dataset.scenes), 'scene')} ({scenes}), {counted(len(dataset.classes), 'class', 'classes')}: "
        f"{findings}; {counted(doubts, 'setting')} with another reading."
    )
    facts = {
        "Scenes": number(len(dataset.scenes)),
        "Classes": str(len(dataset.classes)),
        "Labelled pixels": number(int(report.pixels_K.sum())),
        "Tile": f"{recipe.tiles.size} px",
    }
    head = Head(f"Plan of {recipe.name}", lead, facts, f"{invocation('start')} DATA")
    return html_page(head, list(_sections(recipe, choices, dataset, report)))


def _sections(
    recipe: Recipe, choices: Sequence[Choice], dataset: Dataset, report: CheckReport
) -> Iterator[Section]:
    doubtful = [(choice.key, f"{choice.reason}; or: {choice.other}") for choice in choices if choice.other]
    yield Section("doubts", "What else could it be?", [Points(doubtful)] if doubtful else [])
    yield Section("wrong", "What looks wrong?", _wrong(report))
    yield Section("pictures", "Do the labels lie where they should?", _pictures(recipe, dataset))
    yield Section("classes", "Which classes are there?", [_class_table(dataset, report)])
    yield Section("split", "What trains, and what is held out?", _split(dataset))
    rows = [[choice.key, _short(choice.value), choice.reason] for choice in choices]
    header = ["Setting", "Value", "Reason"]
    yield Section(
        "settings", "Which settings, and why?", [Table("Planned settings", header, rows, words=True)]
    )


def _short(value: Any, most: int = 160) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = ", ".join(str(each.get("name", each)) for each in value)
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= most else f"{text[:most]} …"


def _wrong(report: CheckReport) -> list[Block]:
    texts: dict[str, list[str]] = {}
    for finding in report.findings:
        text = (
            finding.text if finding.kind != "unknown value" else f"{finding.text} ({finding.pixels:,} pixels)"
        )
        texts.setdefault(finding.kind, []).append(text)
    items = [
        (f"{kind}, {counted(len(of), 'finding')}", line)
        for kind, of in texts.items()
        for line in grouped(of)[:_MOST_FINDINGS]
    ]
    items += [("remark", remark) for remark in report.remarks[:_MOST_FINDINGS]]
    items += [("note", note) for note in report.dataset.notes]
    reasons = Counter(reason for _, reason in report.dataset.unused)
    for reason, count in reasons.items():
        files = few([path.name for path, why in report.dataset.unused if why == reason])
        items.append((f"left out, {counted(count, 'file')}", f"{reason}: {files}"))
    return [Points(items)] if items else [Paragraph("Nothing: every file was read, every value is known.")]


# ----------------------------------------------------------------------------------------------- pictures


def _pictures(recipe: Recipe, dataset: Dataset) -> list[Block]:
    """Return for each class, the rarest first, the window with most of it: image, label over it, label."""
    try:
        index = build_index(dataset, "train", recipe.tiles)
        rows = [row for c, i in _samples(index) if (row := _row(dataset, index, c, i)) is not None]
    except SegmenterError as error:
        return [Paragraph(f"No picture could be made: {error}", "notice")]
    legend = [Named(each.name, hex_colour(each.colour)) for each in dataset.classes.classes]
    return [Pictures(rows, legend)] if rows else []


def _samples(index: TileIndex) -> list[tuple[int, int]]:
    """Return (class, tile) with most pixels of the class among tiles that are not yet shown."""
    samples: list[tuple[int, int]] = []
    for c in np.argsort(index.shares(), kind="stable").tolist():
        if not index.counts_NK[:, c].any() or len(samples) == _MOST_CLASSES:
            continue
        # Many classes at a class's border say more than one class alone.
        worth = np.minimum(index.counts_NK[:, c], index.labelled_N // 2) + index.labelled_N // 100
        worth[[i for _, i in samples]] = 0
        samples.append((c, int(worth.argmax())))
    return samples


def _row(dataset: Dataset, index: TileIndex, c: int, tile: int) -> PictureRow | None:
    scene: Scene = index.scenes[int(index.scene_N[tile])]
    assert scene.label is not None, "indexed scenes have one"
    with open_raster(scene.image, dataset.bands) as raster:
        window = index.window(tile).intersection(Window.of(raster.info.size))
        image, valid = raster.read(window)
    with LabelRaster(scene.label, dataset.classes) as opened:
        ids = opened.ids(window)
    ids[~valid] = IGNORE
    picture, shown = stretched(image, valid), coloured(ids, dataset.classes)
    mixed = (picture * (1 - _OVER) + shown * _OVER).astype(np.uint8)
    over = np.where((ids == IGNORE)[..., None], picture, mixed)
    name, share = dataset.classes.names[c], float((ids == c).mean())
    what = f"{name}: {percent(share)} of these pixels"
    place = (
        f"{scene.name}, row {window.row:,}, column {window.col:,}, {window.width} × {window.height} pixels"
    )
    made: tuple[tuple[str, NDArray[np.uint8], Any], ...] = (
        ("image", picture, "jpeg"),
        ("label over it", over, "jpeg"),
        ("label", shown, "png"),
    )
    return PictureRow(what, place, [_picture(*each) for each in made])


def _picture(name: str, picture_HWC: NDArray[np.uint8], kind: Any) -> Picture:
    height, width = picture_HWC.shape[:2]
    step = max(1, max(height, width) // (2 * _SIDE))
    small = picture_HWC[::step, ::step]
    times = max(1, _SIDE // max(small.shape[:2]))
    data = base64.b64encode(encoded(small, kind)).decode()
    return Picture(name, f"image/{kind}", data, times * small.shape[1], times * small.shape[0])


# ----------------------------------------------------------------------------------------- classes and split


def _class_table(dataset: Dataset, report: CheckReport) -> Table:
    classes: ClassMap = dataset.classes
    splits = [i for i, split in enumerate(SPLITS) if dataset.of(split)]
    header = [
        "Class",
        "In label files",
        "Pixels",
        "Share",
        "Scenes",
        *(f"Share of {SPLITS[i]}" for i in splits),
    ]
    rows: list[list[str | Named]] = []
    for k, each in enumerate(classes.classes):
        own = hex_colour(each.colour)
        of_splits = [
            percent(float(report.pixels_PK[i, k]) / max(1, int(report.pixels_PK[i].sum()))) for i in splits
        ]
        rows.append(
            [
                Named(each.name, own),
                str(each.code) if classes.encoding == "codes" else own,
                number(int(report.pixels_K[k])),
                percent(float(report.shares()[k])),
                number(int(report.scenes_K[k])),
                *of_splits,
            ]
        )
    rows.append(["ignored, or without data", "", number(report.ignored), "", "", *("" for _ in splits)])
    return Table("Classes", header, rows)


def _split(dataset: Dataset) -> list[Block]:
    """Return a map of the scenes by split where they are georeferenced, and a table of the groups."""
    groups: dict[str, Counter[str]] = {}
    for scene in dataset.scenes:
        groups.setdefault(scene.group, Counter())[scene.split] += 1
    rows = [[group, *(number(of[split]) for split in SPLITS)] for group, of in sorted(groups.items())]
    held = [row for row in rows if row[2] != "0" or row[3] != "0"]
    shown = rows if len(rows) <= 60 else held[:200]
    table = Table("Scenes of each group", ["Group", *SPLITS], shown)
    return [*side_by_side(_map(dataset, table)), table]


def _map(dataset: Dataset, table: Table) -> Chart | None:
    """Return a map of the scenes' outlines, coloured by split; None without georeference."""
    scenes = dataset.scenes[:_MOST_SCENES]
    known: list[tuple[Scene, RasterInfo]] = []
    for scene in scenes:
        try:
            known.append((scene, raster_info(scene.image)))
        except SegmenterError:  # found by the check
            continue
    grounds = outlines([info for _, info in known])
    data: list[dict[str, Any]] = []
    for split in SPLITS:
        xs, ys, hovers = list[float | None](), list[float | None](), list[str]()
        for (scene, _), ground in zip(known, grounds, strict=True):
            if scene.split == split and ground is not None:
                ring = [*ground.tolist(), ground[0].tolist()]
                xs += [*(x for x, _ in ring), None]
                ys += [*(y for _, y in ring), None]
                hovers += [lines(scene.name, split)] * (len(ring) + 1)
        if xs:
            look = {"fill": "toself", "line": {"color": _OF_SPLIT[split], "width": 1}, "name": label(split)}
            more = {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "customdata": hovers}
            data.append({**more, **look, "hovertemplate": HOVER})
    if not data:
        return None
    frame = layout(480, axis("east"), axis("north", scaleanchor="x"), showlegend=True)
    title = "The scenes on the ground, by split"
    note = "Outlines of the images, in the CRS of the images or in metres of an equal-area projection."
    return Chart("map", title, note, {"": {"data": data, "layout": frame}}, table)
