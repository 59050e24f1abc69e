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
    save_pixels,
)
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.grid.geometry import Size
from segmenter.grid.labels import IGNORE, ClassMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN, _CAPTION, _TITLE, _LEGEND_ROW = 16, 26, 34, 24  # pixels
_HATCH = ((0xD0, 0xD0, 0xD0), (0x98, 0x98, 0x98))
_NO_CLASS = "ignored or no data"
_SMALLEST_PANEL, _NARROWEST_SLOT, _NARROWEST_PICTURE = 320, 100, 520  # pixels, for captions and legend


def scene_panels(
    image_HWC: NDArray[Any],
    label_HW: NDArray[np.uint8] | None,
    prediction_HW: NDArray[np.uint8],
    classes: ClassMap,
    title: str = "",
    *,
    valid_HW: NDArray[np.bool_] | None = None,
    of: Size | None = None,
    side: int = 2000,
) -> Figure:
    """Return image, label (where there is one) and prediction side by side, with a legend.

    Args:
        image_HWC: any number type and band count; the first three bands (or the first, in grey) are
            stretched from their 2 % to their 98 % quantile over the valid pixels.
        label_HW: class ids; `IGNORE` is hatched.
        prediction_HW: class ids; `IGNORE` (nodata) is hatched.
        valid_HW: where the image has data; by default, where the prediction is not nodata.
        of: the size of what the arrays are thinned out of already, for the caption.
        side: the longer side of the picture in pixels, about; larger rasters are thinned out, not blended,
            so that no class is invented.
    """
    ids = {"label": label_HW, "prediction": prediction_HW}
    given = {name: array for name, array in ids.items() if array is not None}
    for name, array in given.items():
        if array.shape != image_HWC.shape[:2]:
            raise ValueError(f"{name} is {array.shape}, the image is {image_HWC.shape[:2]}")
    valid = prediction_HW != IGNORE if valid_HW is None else valid_HW
    step = _step(image_HWC.shape[:2], len(given) + 1, side)
    thin = (slice(None, None, step), slice(None, None, step))
    panels = {"image": stretched(image_HWC[thin], valid[thin])}
    panels |= {name: coloured(array[thin], classes) for name, array in given.items()}
    hatched = any((array[thin] == IGNORE).any() for array in given.values()) or not valid[thin].all()
    whole = image_HWC.shape[:2] if of is None else (of.height, of.width)
    caption = _shrunk(title, whole, step * max(1, round(whole[0] / image_HWC.shape[0])))
    return panels_figure(panels, classes, hatched, caption, side)


def stretched(
    image_HWC: NDArray[Any],
    valid_HW: NDArray[np.bool_],
    like: tuple[NDArray[Any], NDArray[np.bool_]] | None = None,
) -> NDArray[np.uint8]:
    """Return an (H, W, 3) 8-bit picture, each band stretched from 2 % to 98 %; invalid pixels hatched.

    Args:
        like: image and valid pixels that give these quantiles, if not this image.
    """
    bands, valid = _three_bands(image_HWC, valid_HW)
    if not valid.any():
        return _hatching(valid.shape)
    of, valid_of = (bands, valid) if like is None else _three_bands(*like)
    low, high = np.percentile(of[valid_of] if valid_of.any() else bands[valid], (2, 98), axis=0)
    flat = high <= low  # one value everywhere: mid grey
    share = np.where(flat, 0.5, (bands - low) / np.where(flat, 1, high - low))
    with np.errstate(invalid="ignore"):  # NaN pixels are hatched below
        picture = (np.clip(share, 0, 1) * 255).astype(np.uint8)
    return np.where(valid[..., None], picture, _hatching(valid.shape))


def _three_bands(
    image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    bands = image_HWC[..., :3] if image_HWC.shape[2] >= 3 else image_HWC[..., :1].repeat(3, axis=2)
    return bands.astype(np.float32), valid_HW & np.isfinite(bands).all(axis=2)


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
    percent = np.divide(100.0 * counts, truth, out=np.full(counts.shape, np.nan), where=truth > 0)
    shares = 100.0 * truth[:, 0] / max(1, truth.sum())
    rows = [f"{name}  ({share:.2g} %)" for name, share in zip(rows, shares, strict=True)]
    return _heat_map(percent, rows, columns, title)


# ----------------------------------------------------------------------------- panels and legends


def _step(shape: Sequence[int], panels: int, side: int) -> int:
    """Return the step between drawn pixels, so that all panels together stay within `side`."""
    height, width = shape[:2]
    across, down = (width, height * panels) if _stacked(height, width) else (width * panels, height)
    return max(1, math.ceil(max(across, down) / side))


def _stacked(height: int, width: int) -> bool:
    """Return whether the panels are stacked vertically, as for wide strips."""
    return width > 2 * height


def _shrunk(title: str, shape: Sequence[int], step: int) -> str:
    note = f"{shape[1]}×{shape[0]} px" + (f", shown 1:{step}" if step > 1 else "")
    return f"{title}  ({note})" if title else note


def coloured(ids_HW: NDArray[np.uint8], classes: ClassMap) -> NDArray[np.uint8]:
    """Return (H, W, 3) colours of class ids, `IGNORE` hatched."""
    picture: NDArray[np.uint8] = classes.palette()[ids_HW]
    return np.where((ids_HW == IGNORE)[..., None], _hatching(ids_HW.shape), picture)


def _hatching(shape: Sequence[int]) -> NDArray[np.uint8]:
    """Return (H, W, 3) grey diagonal stripes, unlike the colour of any class."""
    rows, cols = np.ogrid[: shape[0], : shape[1]]
    return np.array(_HATCH, np.uint8)[((rows + cols) // 4) % 2]


def panels_figure(
    panels: Mapping[str, NDArray[np.uint8]], classes: ClassMap, hatched: bool, title: str, side: int
) -> Figure:
    """Return panels at whole multiples of their pixels, with captions above and a class legend below."""
    height, width = next(iter(panels.values())).shape[:2]
    stacked = _stacked(height, width)
    # Small rasters are enlarged, each pixel to a square, until captions and legend have room.
    room = side // (width * (1 if stacked else len(panels)))
    zoom = max(1, min(room, side // height, -(-_SMALLEST_PANEL // min(max(height, width), 4000))))
    height, width = height * zoom, width * zoom
    rows, columns = (len(panels), 1) if stacked else (1, len(panels))
    slot = max(width, _NARROWEST_SLOT) + _MARGIN
    inner = max(columns * slot - _MARGIN, _NARROWEST_PICTURE)
    entries = len(classes) + hatched
    per_row = max(1, min(entries, inner // (8 * max(map(len, [*classes.names, _NO_CLASS])) + 46)))
    legend = -(-entries // per_row) * _LEGEND_ROW + _MARGIN
    caption = _CAPTION if any(panels) else 0
    total = (_TITLE + rows * (height + caption + _MARGIN) + legend + _MARGIN, inner + 2 * _MARGIN)
    figure = new_figure(total[1], total[0])
    figure.text(
        _MARGIN / total[1], 1 - 24 / total[0], one_line(title), fontsize=10, parse_math=False, wrap=False
    )
    for i, (name, picture) in enumerate(panels.items()):
        left = _MARGIN + (0 if stacked else i * slot)
        top = _TITLE + caption + (i * (height + caption + _MARGIN) if stacked else 0)
        box = (left / total[1], 1 - (top + height) / total[0], width / total[1], height / total[0])
        axes = figure.add_axes(box)
        axes.imshow(picture, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        axes.set_title(name, fontsize=10, loc="left", pad=4)
    _class_legend(figure, classes, hatched, per_row, legend / total[0])
    return figure


def _class_legend(figure: Figure, classes: ClassMap, hatched: bool, columns: int, top: float) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=hex_colour(c.colour), edgecolor="0.3", linewidth=0.5) for c in classes.classes]
    names = list(classes.names)
    if hatched:
        patches.append(Patch(facecolor=hex_colour(_HATCH[0]), edgecolor=hex_colour(_HATCH[1]), hatch="/////"))
        names.append(_NO_CLASS)
    legend = figure.legend(
        patches, [""] * len(names), ncols=columns, loc="upper center", bbox_to_anchor=(0.5, top + 0.001),
        frameon=False, fontsize=10, handlelength=1.6, handleheight=1.1, borderpad=0, borderaxespad=0,
    )  # fmt: skip
    name_legend(legend, names)


# ------------------------------------------------------------------------- matrices and curves


_WIDEST_TITLE = 1200
"""Pixels that a title may widen a figure to."""


def _heat_map(
    percent: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], title: str
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
    image = axes.imshow(np.ma.masked_invalid(percent), cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for i, j in np.ndindex(percent.shape):
        text, colour = _cell(float(percent[i, j]))
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


def _cell(percent: float) -> tuple[str, str]:
    """Return a cell's text and colour; zeros are pale, so that confusions stand out."""
    if math.isnan(percent):
        return "–", "0.4"
    if percent == 0:
        return "0", "0.75"
    text = "<0.1" if percent < 0.05 else f"{percent:.1f}" if percent < 99.95 else f"{percent:.0f}"
    return text, "white" if percent > 55 else "black"


# ----------------------------------------------------------------------------------- summary of a validation


_SIDE = 1600
"""Pixels of the longer side of an example's row."""


@dataclass(frozen=True, eq=False)
class Example:
    """A part of a scene.

    Attributes:
        title: name of the part, and reason for its choice.
        image_HWC, valid_HW: its pixels, and the mask of valid ones.
        label_HW, prediction_HW: class ids, or `IGNORE`.
    """

    title: str
    image_HWC: NDArray[Any]
    valid_HW: NDArray[np.bool_]
    label_HW: NDArray[np.uint8]
    prediction_HW: NDArray[np.uint8]


def summary_figure(
    confusion: ConfusionMatrix, examples: Sequence[Example], classes: ClassMap, path: Path, title: str = ""
) -> None:
    """Draw confusion matrix and examples into one PNG."""
    figures = [confusion_panel(confusion, title)]
    figures += [
        scene_panels(
            *(e.image_HWC, e.label_HW, e.prediction_HW, classes, e.title), valid_HW=e.valid_HW, side=_SIDE
        )
        for e in examples
    ]
    save_pixels(_below_each_other([figure_pixels(figure) for figure in figures]), path)


def _below_each_other(pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    width = max(picture.shape[1] for picture in pictures)
    rooms = [((0, 0), (0, width - picture.shape[1]), (0, 0)) for picture in pictures]
    padded = [np.pad(p, room, constant_values=255) for p, room in zip(pictures, rooms, strict=True)]
    return np.concatenate(padded)
