"""Figures: prediction beside image and label, class maps, confusion matrices, learning curves.

matplotlib is imported inside the functions (it takes a second) and used through its objects: no window, no
global state. Text from users (class names, titles) is drawn literally, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.drawing import (
    figure_pixels,
    hex_colour,
    name_legend,
    new_figure,
    one_line,
    percent,
    save_pixels,
    scale_bar,
)
from segmenter.evaluation.layers import HATCH, colour_ids, confident, errors, stretch_picture
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.grid.geometry import Size
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.stretch import Stretch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN, _CAPTION, _TITLE, _LEGEND_ROW = 16, 26, 34, 24  # pixels
_FONT, _READ_AT = 10.0, 1000
"""Points of a text, and the width in pixels at which a figure is read; wider ones have larger texts."""
_NO_CLASS = "ignored or no data"
_SMALLEST_PANEL, _NARROWEST_SLOT, _NARROWEST_PICTURE = 320, 100, 520  # pixels, for captions and legend


@dataclass(frozen=True, eq=False)
class Example:
    """A part of a scene with its map, and what is known of it.

    Attributes:
        title: name of the part, and reason for its choice.
        image_HWC: any number type and band count.
        valid_HW: where the image has data.
        label_HW, map_HW: class ids, or `IGNORE`, which is hatched; None: there is no label.
        confidence_HW: the largest probability × 255; None: not computed.
        stretch: of the whole scene; None: from the part.
        metres: of a pixel; None: unknown.
        of: size of what the arrays are thinned out of already, for the caption.
    """

    title: str
    image_HWC: NDArray[Any]
    valid_HW: NDArray[np.bool_]
    label_HW: NDArray[np.uint8] | None
    map_HW: NDArray[np.uint8]
    confidence_HW: NDArray[np.uint8] | None = None
    stretch: Stretch | None = None
    metres: float | None = None
    of: Size | None = None

    def thinned(self, step: int) -> Example:
        """Return each step-th pixel: none is blended, so that no class is invented."""
        thin = (slice(None, None, step), slice(None, None, step))
        label, sure = (None if a is None else a[thin] for a in (self.label_HW, self.confidence_HW))
        arrays = (self.image_HWC[thin], self.valid_HW[thin], label, self.map_HW[thin], sure)
        metres = None if self.metres is None else self.metres * step
        return Example(self.title, *arrays, self.stretch, metres, self.of)

    def layers(self, classes: ClassMap) -> dict[str, NDArray[np.uint8]]:
        """Return the pictures by name: image, label, map, errors and confidence, as far as known."""
        seen = stretch_picture(self.image_HWC, self.valid_HW, self.stretch)
        panels = {"image": seen}
        if self.label_HW is not None:
            panels["label"] = colour_ids(self.label_HW, classes)
        panels["map"] = colour_ids(self.map_HW, classes)
        if self.label_HW is not None:
            panels["errors"] = errors(seen, self.label_HW, self.map_HW)
        if self.confidence_HW is not None:
            panels["confidence"] = confident(self.confidence_HW, self.map_HW)
        return panels


def scene_panels(example: Example, classes: ClassMap, side: int = 2000, width: int = 0) -> Figure:
    """Return image, label, map, errors and confidence of a part, as far as known, with a legend.

    Args:
        side: the longer side of the picture in pixels, about; larger rasters are thinned out.
        width: of the figure above, whose legend is this one's too; all panels are in a row; 0: there is none.
    """
    shape = example.map_HW.shape
    known = {"label": example.label_HW, "image": example.image_HWC, "confidence": example.confidence_HW}
    for name, array in known.items():
        if array is not None and array.shape[:2] != shape:
            raise ValueError(f"{name} is {array.shape[:2]}, the map is {shape}")
    count = 2 + 2 * (example.label_HW is not None) + (example.confidence_HW is not None)
    step = _step(shape, count, side)
    drawn = example.thinned(step)
    panels = drawn.layers(classes)
    ids = [drawn.map_HW, *([] if drawn.label_HW is None else [drawn.label_HW])]
    hatched = any((each == IGNORE).any() for each in ids) or not drawn.valid_HW.all()
    whole = shape if example.of is None else (example.of.height, example.of.width)
    title = _shrunk(example.title, whole, step * max(1, round(whole[0] / shape[0])))
    captioned = {_caption(name, drawn, short=width > 0): panel for name, panel in panels.items()}
    return panels_figure(captioned, classes, hatched, title, width or side, drawn.metres, below=width > 0)


def _caption(name: str, example: Example, *, short: bool) -> str:
    """Return the caption of a layer; of the errors with their share, of confidence with its colours."""
    if name == "confidence" and not short:
        return "confidence: blue 0 %, yellow 100 %"
    if name != "errors" or example.label_HW is None:
        return name
    known = (example.label_HW != IGNORE) & (example.map_HW != IGNORE)
    if not known.any():
        return "errors: no labelled pixel"
    wrong = percent(float((example.label_HW != example.map_HW)[known].mean()))
    return f"errors: {wrong}" if short else f"errors in red: {wrong} wrong"


def confusion_panel(confusion: ConfusionMatrix | Scores, title: str = "") -> Figure:
    """Return the confusion matrix as a heat map, each row in percent of its true class.

    Scores give the classes that their protocol counts, under its text as the title; pixels that were
    predicted as a class that is not counted have a column of their own where there are any. A class that does
    not occur in the truth has an empty row.
    """
    counts = confusion.matrix
    if isinstance(confusion, Scores):
        rows, title = list(confusion.protocol.classes), title or str(confusion.protocol)
    else:
        rows = confusion.classes.names
    columns = list(rows)
    if isinstance(confusion, Scores) and confusion.missed.any():
        counts, columns = np.column_stack([counts, confusion.missed]), [*rows, "no such class"]
    truth = counts.sum(axis=1, keepdims=True)
    hundred = np.divide(100.0 * counts, truth, out=np.full(counts.shape, np.nan), where=truth > 0)
    shares = 100.0 * truth[:, 0] / max(1, truth.sum())
    rows = [f"{name}  ({share:.2g} %)" for name, share in zip(rows, shares, strict=True)]
    return _heat_map(hundred, rows, columns, title)


# ----------------------------------------------------------------------------- panels and legends


def _step(shape: Sequence[int], panels: int, side: int) -> int:
    """Return the step between drawn pixels, so that all panels together stay within `side`."""
    rows, columns = _grid(shape, panels)
    return max(1, math.ceil(max(shape[1] * columns, shape[0] * rows) / side))


def _grid(shape: Sequence[int], panels: int) -> tuple[int, int]:
    """Return rows and columns of panels: wide strips below each other, four and more in two rows."""
    if shape[1] > 2 * shape[0]:
        return panels, 1
    return (1, panels) if panels <= 3 else (2, -(-panels // 2))


def _shrunk(title: str, shape: Sequence[int], step: int) -> str:
    note = f"{shape[1]}×{shape[0]} px" + (f", shown 1:{step}" if step > 1 else "")
    return f"{title}  ({note})" if title else note


@dataclass(frozen=True)
class _Room:
    """Pixels of a figure's texts and gaps; they grow with its width, so that it can be read when shrunk."""

    times: float

    @classmethod
    def of(cls, width: int) -> _Room:
        return cls(max(1.0, width / _READ_AT))

    def __call__(self, pixels: float) -> int:
        return round(pixels * self.times)

    @property
    def font(self) -> float:
        return _FONT * self.times


def panels_figure(
    panels: Mapping[str, NDArray[np.uint8]],
    classes: ClassMap,
    hatched: bool,
    title: str,
    side: int,
    metres: float | None = None,
    *,
    below: bool = False,
) -> Figure:
    """Return panels at whole multiples of their pixels, with captions above and a class legend below.

    Args:
        metres: of a pixel of the panels, for a scale bar; None: no bar.
        below: the figure lies below one with a legend: no legend, and all panels in a row as wide as `side`.
    """
    height, width = next(iter(panels.values())).shape[:2]
    rows, columns = (1, len(panels)) if below else _grid((height, width), len(panels))
    # Small rasters are enlarged, each pixel to a square, until captions and legend have room.
    room = min(side // (width * columns), side // (height * rows))
    least = side // columns if below else _SMALLEST_PANEL
    zoom = max(1, min(room, -(-least // min(max(height, width), 4000))))
    across = None if metres is None else metres * width
    height, width = height * zoom, width * zoom
    size = _Room.of(side if below else max(width, _NARROWEST_SLOT) * columns)
    margin, caption = size(_MARGIN), size(_CAPTION) if any(panels) else 0
    slot = max(width, _NARROWEST_SLOT) + margin
    inner = max(columns * slot - margin, _NARROWEST_PICTURE)
    scale = size(_LEGEND_ROW) if across else 0
    per_row, legend = (0, margin) if below else _legend_room(classes, hatched, inner, size)
    total = (size(_TITLE) + rows * (height + caption + margin) + scale + legend + margin, inner + 2 * margin)
    figure = new_figure(total[1], total[0])
    place = (margin / total[1], 1 - size(24) / total[0])
    figure.text(*place, one_line(title), fontsize=size.font, parse_math=False, wrap=False)
    for i, (name, picture) in enumerate(panels.items()):
        left = margin + i % columns * slot
        top = size(_TITLE) + caption + i // columns * (height + caption + margin)
        _panel(figure, picture, name, (left, top, width, height), size)
    if across:
        _scale_bar(figure, across, width, (margin, legend + scale / 2), size)
    if not below:
        _class_legend(figure, classes, hatched, per_row, legend / total[0], size)
    return figure


def legend_strip(classes: ClassMap, width: int, metres: float | None) -> NDArray[np.uint8]:
    """Return (H, W, 3) pixels of a legend for a picture above it, so many pixels wide, with a scale bar.

    Args:
        metres: of a pixel of the picture; None: no bar.
    """
    size = _Room.of(max(width, _NARROWEST_PICTURE))
    inner = max(width, _NARROWEST_PICTURE)
    per_row, legend = _legend_room(classes, False, inner, size)
    scale = size(_LEGEND_ROW) if metres else 0
    figure = new_figure(inner, legend + scale)
    if metres:
        _scale_bar(figure, metres * width, width, (0, legend + scale / 2 - size(4)), size)
    _class_legend(figure, classes, False, per_row, (legend - size(8)) / (legend + scale), size)
    return figure_pixels(figure)


def _legend_room(classes: ClassMap, hatched: bool, width: int, size: _Room) -> tuple[int, int]:
    """Return the entries of a legend in a row, and its height in pixels."""
    entries = len(classes) + hatched
    longest = max(map(len, [*classes.names, *([_NO_CLASS] if hatched else [])]))
    per_row = max(1, min(entries, width // size(8 * longest + 46)))
    return per_row, -(-entries // per_row) * size(_LEGEND_ROW) + size(_MARGIN)


def _panel(
    figure: Figure, picture: NDArray[np.uint8], name: str, box: tuple[int, int, int, int], size: _Room
) -> None:
    """Draw a picture with its caption, and a thin frame around it: a white class ends somewhere."""
    from matplotlib.patches import Rectangle

    total_width, total_height = figure.get_size_inches() * figure.dpi
    left, top, width, height = box
    x, y = left / total_width, 1 - (top + height) / total_height
    thin = (1 / total_width, 1 / total_height)
    place = (x, y, width / total_width, height / total_height)
    framed = (place[2] + 2 * thin[0], place[3] + 2 * thin[1])
    figure.add_artist(Rectangle((x - thin[0], y - thin[1]), *framed, color="0.6", linewidth=0, zorder=-1))
    axes = figure.add_axes(place)
    axes.imshow(picture, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    axes.set_title(one_line(name), fontsize=size.font, loc="left", pad=4 * size.times)


def _scale_bar(figure: Figure, across: float, width: int, at: tuple[float, float], size: _Room) -> None:
    """Draw a bar of a round length and its text; `at` is its left end from the figure's lower left."""
    from matplotlib.lines import Line2D

    total_width, total_height = figure.get_size_inches() * figure.dpi
    text, share = scale_bar(across)
    ends = (at[0] / total_width, (at[0] + share * width) / total_width)
    y = at[1] / total_height
    figure.add_artist(Line2D(ends, (y, y), color="black", linewidth=3 * size.times, solid_capstyle="butt"))
    figure.text(ends[1] + size(8) / total_width, y, text, fontsize=size.font, va="center_baseline")


def _class_legend(
    figure: Figure, classes: ClassMap, hatched: bool, columns: int, top: float, size: _Room
) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=hex_colour(c.colour), edgecolor="0.3", linewidth=0.5) for c in classes.classes]
    names = list(classes.names)
    if hatched:
        patches.append(Patch(facecolor=hex_colour(HATCH[0]), edgecolor=hex_colour(HATCH[1]), hatch="/////"))
        names.append(_NO_CLASS)
    legend = figure.legend(
        patches, [""] * len(names), ncols=columns, loc="upper center", bbox_to_anchor=(0.5, top + 0.001),
        frameon=False, fontsize=size.font, handlelength=1.6, handleheight=1.1, borderpad=0, borderaxespad=0,
    )  # fmt: skip
    name_legend(legend, names)


# ------------------------------------------------------------------------- matrices and curves


_WIDEST_TITLE = 1200
"""Pixels that a title may widen a figure to."""


_MOST_TEXTS = 1600
"""Cells of a matrix that all have a text; of larger ones only those of a percent: each text takes time."""


def _heat_map(
    percent_RC: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], title: str
) -> Figure:
    """Draw cells of one size for any number of classes; names get the space they need."""
    cell, letter = 46, 7.2
    left, top = int(letter * max(map(len, rows))) + 60, int(0.72 * letter * max(map(len, columns))) + 66
    body_h, body_w = cell * len(rows), cell * len(columns)
    title = one_line(title or "Confusion matrix")
    head = min(int(letter * len(title)) + 24, _WIDEST_TITLE)
    width, height = max(left + body_w + 110, 480, head), top + body_h + 50
    figure = new_figure(width, height)
    axes = figure.add_axes((left / width, 1 - (top + body_h) / height, body_w / width, body_h / height))
    axes.set_facecolor("0.9")
    image = axes.imshow(np.ma.masked_invalid(percent_RC), cmap="Blues", vmin=0, vmax=100, aspect="auto")
    few = percent_RC.size <= _MOST_TEXTS
    for i, j in [place for place in np.ndindex(percent_RC.shape) if few or percent_RC[place] >= 1]:
        text, colour = _cell(float(percent_RC[i, j]))
        axes.text(j, i, text, ha="center", va="center", fontsize=8.5, color=colour)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), map(one_line, columns), rotation=45, ha="left", parse_math=False)
    axes.set_yticks(range(len(rows)), map(one_line, rows), parse_math=False)
    axes.tick_params(length=0, labelsize=9)
    axes.set_xlabel("predicted class", fontsize=9)
    axes.set_ylabel("true class (share)", fontsize=9)
    bar_h = min(body_h, 300)
    box = ((left + body_w + 22) / width, 1 - (top + bar_h) / height, 12 / width, bar_h / height)
    bar = figure.colorbar(image, cax=figure.add_axes(box))
    bar.set_label("% of the true class", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    figure.text(12 / width, 1 - 24 / height, title, parse_math=False)
    return figure


def _cell(hundred: float) -> tuple[str, str]:
    """Return a cell's text and colour, in whole percent; zeros are pale, so that confusions stand out."""
    if math.isnan(hundred):
        return "–", "0.3"
    if hundred == 0:
        return "0", "0.45"
    text = "<1" if hundred < 0.5 else ">99" if 99.5 <= hundred < 100 else f"{hundred:.0f}"
    return text, "white" if hundred > 71 else "black"


# ----------------------------------------------------------------------------------- summary of a validation


_SIDE = 1600
"""Pixels of the longer side of an example's row."""


def summary_figure(
    confusion: ConfusionMatrix, examples: Sequence[Example], classes: ClassMap, path: Path, title: str = ""
) -> None:
    """Draw confusion matrix and examples into one PNG."""
    figures = [confusion_panel(confusion, title)]
    figures += [scene_panels(example, classes, _SIDE) for example in examples]
    save_pixels(below_each_other([figure_pixels(figure) for figure in figures]), path)


def below_each_other(pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return pictures in one, the narrower ones with white at their right."""
    width = max(picture.shape[1] for picture in pictures)
    rooms = [((0, 0), (0, width - picture.shape[1]), (0, 0)) for picture in pictures]
    padded = [np.pad(p, room, constant_values=255) for p, room in zip(pictures, rooms, strict=True)]
    return np.concatenate(padded)
