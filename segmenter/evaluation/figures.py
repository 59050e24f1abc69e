"""Pictures for people: prediction beside image and label, class maps, confusion matrices, learning curves.

matplotlib is imported inside the functions (it takes a second) and used through its objects: no window, no
global state. All text from users (class names, titles) is drawn as it is, never as markup.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.files import write_whole
from segmenter.geometry import Size
from segmenter.labels import IGNORE, ClassMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

_DPI = 100
_MARGIN, _CAPTION, _TITLE, _LEGEND_ROW = 16, 26, 34, 24  # pixels
_HATCH = ((0xD0, 0xD0, 0xD0), (0x98, 0x98, 0x98))
_PALE = 0.7
"""Brightness (Rec. 709, of 1) above which a line on white needs an outline, as yellow, cyan and green do."""
_NO_CLASS = "ignored or no data"
_SMALLEST_PANEL, _NARROWEST_SLOT, _NARROWEST_PICTURE = 320, 100, 520  # pixels, for captions and legend


def side_by_side(
    image_HWC: NDArray[Any],
    label_HW: NDArray[np.uint8] | None,
    prediction_HW: NDArray[np.uint8],
    classes: ClassMap,
    path: Path,
    title: str = "",
    *,
    valid_HW: NDArray[np.bool_] | None = None,
    of: Size | None = None,
    side: int = 2000,
) -> None:
    """Image, label (where there is one) and prediction next to each other, with a legend, as a PNG.

    Args:
        image_HWC: any number type and band count; the first three bands (or the first, in grey) are
            stretched from their 2 % to their 98 % quantile over the valid pixels.
        label_HW: class ids; `IGNORE` is hatched.
        prediction_HW: class ids; `IGNORE` (nodata) is hatched.
        path: of the PNG; it appears whole or not at all.
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
    save_panels(panels, classes, hatched, caption, side, path)


def class_map_picture(
    ids_HW: NDArray[np.uint8], classes: ClassMap, path: Path, title: str = "", *, side: int = 2000
) -> None:
    """One map of class ids in the classes' colours, with a legend, as a PNG."""
    step = _step(ids_HW.shape, 1, side)
    thin = ids_HW[::step, ::step]
    title = _shrunk(title, ids_HW.shape, step)
    panels = {"": coloured(thin, classes)}
    save_panels(panels, classes, bool((thin == IGNORE).any()), title, side, path)


def stretched(image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """(H, W, 3) 8-bit picture of an image: 2 % to 98 % of its valid pixels, band by band; invalid hatched."""
    bands = image_HWC[..., :3] if image_HWC.shape[2] >= 3 else image_HWC[..., :1].repeat(3, axis=2)
    bands = bands.astype(np.float32)
    valid = valid_HW & np.isfinite(bands).all(axis=2)
    if not valid.any():
        return _hatching(valid.shape)
    low, high = np.percentile(bands[valid], (2, 98), axis=0)
    flat = high <= low  # one value everywhere: mid grey
    share = np.where(flat, 0.5, (bands - low) / np.where(flat, 1, high - low))
    with np.errstate(invalid="ignore"):  # NaN pixels are hatched below
        picture = (np.clip(share, 0, 1) * 255).astype(np.uint8)
    return np.where(valid[..., None], picture, _hatching(valid.shape))


def confusion_figure(confusion: ConfusionMatrix | Scores, path: Path, title: str = "") -> None:
    """The confusion matrix as a heat map, each row in percent of its true class, as a PNG.

    Scores give the classes that their protocol counts, under its text as the title. Pixels that were
    predicted as nodata (for scores: or as a class that is not counted) have a column of their own where
    there are any. A class that does not occur in the truth has an empty row.
    """
    if isinstance(confusion, Scores):
        rows, missed, title = (
            list(confusion.protocol.classes),
            "no such class",
            title or str(confusion.protocol),
        )
    else:
        rows, missed = confusion.classes.names, "no prediction"
    counts = confusion.matrix
    columns = list(rows)
    if confusion.missed.any():
        counts, columns = np.column_stack([counts, confusion.missed]), [*rows, missed]
    truth = counts.sum(axis=1, keepdims=True)
    percent = np.divide(100.0 * counts, truth, out=np.full(counts.shape, np.nan), where=truth > 0)
    shares = 100.0 * truth[:, 0] / max(1, truth.sum())
    rows = [f"{name}  ({share:.2g} %)" for name, share in zip(rows, shares, strict=True)]
    _save(_heat_map(percent, rows, columns, title), path)


def learning_curves(
    records: Iterable[Mapping[str, Any]], path: Path, title: str = "", *, classes: ClassMap | None = None
) -> None:
    """Loss, scores and learning rate over the steps, as a PNG.

    A class is drawn in its colour of the class map, a pale one with a dark outline.

    Args:
        records: of a training log, in any order; each may have `step` and any of `loss`, `learning_rate`,
            `miou` and `iou` (by class name). What is missing, null or not finite leaves a gap.
        path: of the PNG; it appears whole or not at all.
        classes: whose colours are taken; a name that is not among them gets one of matplotlib's.
    """
    ordered = sorted((r for r in records if "step" in r), key=lambda r: int(r["step"]))
    figure = _figure(1000, 1020)
    loss, scores, rate = figure.subplots(3, 1, sharex=True, height_ratios=(3, 4, 2))
    _draw_loss(loss, ordered)
    _draw_scores(scores, ordered, {c.name: _hex(c.colour) for c in classes.classes} if classes else {})
    steps, rates = _series(ordered, "learning_rate")
    if steps.size:
        rate.plot(steps, rates, color="tab:blue", linewidth=1.4, marker=_marker(steps))
    for axes, name in ((loss, "loss"), (scores, "IoU"), (rate, "learning rate")):
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if not axes.lines:
            axes.text(0.5, 0.5, "nothing logged yet", transform=axes.transAxes, ha="center", color="0.5")
            axes.set_yticks([])
    rate.set_xlabel("step")
    figure.suptitle(_line(title or "Training"), parse_math=False)
    # Room on the right for the legend of classes.
    figure.subplots_adjust(left=0.09, right=0.76, top=0.94, bottom=0.06, hspace=0.1)
    _save(figure, path)


# ----------------------------------------------------------------------------- panels and legends


def _step(shape: Sequence[int], panels: int, side: int) -> int:
    """Every how many pixels to draw, so that all panels together stay within `side`."""
    height, width = shape[:2]
    across, down = (width, height * panels) if _stacked(height, width) else (width * panels, height)
    return max(1, math.ceil(max(across, down) / side))


def _stacked(height: int, width: int) -> bool:
    """Wide strips go below each other."""
    return width > 2 * height


def _shrunk(title: str, shape: Sequence[int], step: int) -> str:
    note = f"{shape[1]}×{shape[0]} px" + (f", shown 1:{step}" if step > 1 else "")
    return f"{title}  ({note})" if title else note


def coloured(ids_HW: NDArray[np.uint8], classes: ClassMap) -> NDArray[np.uint8]:
    """(H, W, 3) colours of class ids, `IGNORE` hatched."""
    picture: NDArray[np.uint8] = classes.palette()[ids_HW]
    return np.where((ids_HW == IGNORE)[..., None], _hatching(ids_HW.shape), picture)


def _hatching(shape: Sequence[int]) -> NDArray[np.uint8]:
    """(H, W, 3) grey diagonal stripes: no class map has a colour that looks like it."""
    rows, cols = np.ogrid[: shape[0], : shape[1]]
    return np.array(_HATCH, np.uint8)[((rows + cols) // 4) % 2]


def save_panels(
    panels: Mapping[str, NDArray[np.uint8]],
    classes: ClassMap,
    hatched: bool,
    title: str,
    side: int,
    path: Path,
) -> None:
    """Panels at whole multiples of their pixels, captions above, a legend of the classes below, as a PNG."""
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
    figure = _figure(total[1], total[0])
    figure.text(
        _MARGIN / total[1], 1 - 24 / total[0], _line(title), fontsize=10, parse_math=False, wrap=False
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
    _save(figure, path)


def _class_legend(figure: Figure, classes: ClassMap, hatched: bool, columns: int, top: float) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=_hex(c.colour), edgecolor="0.3", linewidth=0.5) for c in classes.classes]
    names = list(classes.names)
    if hatched:
        patches.append(Patch(facecolor=_hex(_HATCH[0]), edgecolor=_hex(_HATCH[1]), hatch="/////"))
        names.append(_NO_CLASS)
    legend = figure.legend(
        patches, [""] * len(names), ncols=columns, loc="upper center", bbox_to_anchor=(0.5, top + 0.001),
        frameon=False, fontsize=10, handlelength=1.6, handleheight=1.1, borderpad=0, borderaxespad=0,
    )  # fmt: skip
    _name_legend(legend, names)


def _name_legend(legend: Legend, names: Sequence[str]) -> None:
    """Set the texts afterwards: matplotlib leaves out entries whose name starts with an underscore."""
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(_line(name))


# ------------------------------------------------------------------------- matrices and curves


def _heat_map(
    percent: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], title: str
) -> Figure:
    """Cells of one size whatever the number of classes; names get the room they need."""
    cell, letter = 46, 7.2
    left, top = int(letter * max(map(len, rows))) + 60, int(0.72 * letter * max(map(len, columns))) + 66
    body_h, body_w = cell * len(rows), cell * len(columns)
    width, height = max(left + body_w + 110, 480), top + body_h + 50
    figure = _figure(width, height)
    axes = figure.add_axes((left / width, 1 - (top + body_h) / height, body_w / width, body_h / height))
    axes.set_facecolor("0.9")
    image = axes.imshow(np.ma.masked_invalid(percent), cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for i, j in np.ndindex(percent.shape):
        text, colour = _cell(float(percent[i, j]))
        axes.text(j, i, text, ha="center", va="center", fontsize=8.5, color=colour)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(columns)), map(_line, columns), rotation=45, ha="left", parse_math=False)
    axes.set_yticks(range(len(rows)), map(_line, rows), parse_math=False)
    axes.tick_params(length=0, labelsize=9)
    axes.set_xlabel("predicted class", fontsize=9)
    axes.set_ylabel("true class (share)", fontsize=9)
    bar_h = min(body_h, 300)
    box = ((left + body_w + 22) / width, 1 - (top + bar_h) / height, 12 / width, bar_h / height)
    bar = figure.colorbar(image, cax=figure.add_axes(box))
    bar.set_label("% of the true class", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    figure.text(12 / width, 1 - 24 / height, _line(title or "Confusion matrix"), parse_math=False)
    return figure


def _cell(percent: float) -> tuple[str, str]:
    """Text and its colour; a class that is never confused is easier seen when its zeros stay quiet."""
    if math.isnan(percent):
        return "–", "0.4"
    if percent == 0:
        return "0", "0.75"
    text = "<0.1" if percent < 0.05 else f"{percent:.1f}" if percent < 99.95 else f"{percent:.0f}"
    return text, "white" if percent > 55 else "black"


def _draw_loss(axes: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """Every logged loss, pale, and its running mean over a twentieth of the curve."""
    steps, losses = _series(records, "loss")
    if not steps.size:
        return
    axes.plot(
        steps, losses, color="tab:blue", linewidth=0.8, alpha=0.4, label="logged", marker=_marker(steps)
    )
    finite = np.flatnonzero(np.isfinite(losses))
    span = finite.size // 20
    if span >= 2:
        mean = np.convolve(losses[finite], np.full(span, 1 / span), mode="valid")
        middle = steps[finite][(span - 1) // 2 :][: mean.size]
        axes.plot(middle, mean, color="tab:blue", linewidth=1.6, label=f"mean of {span}")
        axes.legend(frameon=False, fontsize=9)


def _draw_scores(axes: Axes, records: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> None:
    """mIoU in bold black and dashed, each class a thin line; the legend stands outside, best class first."""
    names = list(dict.fromkeys(name for r in records for name in (r.get("iou") or {})))
    curves = {name: _series([{**r, **(r.get("iou") or {})} for r in records], name) for name in names}
    final = {name: values[np.isfinite(values)][-1:].sum() for name, (_, values) in curves.items()}
    names.sort(key=lambda name: -final[name])
    if not any("miou" in r or r.get("iou") for r in records):
        return
    lines = axes.plot(
        *_series(records, "miou"), color="black", linestyle="--", linewidth=2.2, marker=".", zorder=3
    )
    for i, name in enumerate(names):
        colour = colours.get(name, f"C{i % 10}")
        lines += axes.plot(
            *curves[name], color=colour, linewidth=1.6, marker=".", path_effects=_outline(colour)
        )
    axes.set_ylim(0, 1)
    legend = axes.legend(
        lines, [""] * len(lines), loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=9
    )
    scored = {name for name, (_, values) in curves.items() if np.isfinite(values).any()}
    _name_legend(legend, ["mIoU", *(name if name in scored else f"{name} (no score)" for name in names)])


def _outline(colour: str) -> list[Any]:
    """Darker outline that makes a pale line visible on white paper; none for other colours."""
    from matplotlib.colors import to_rgb
    from matplotlib.patheffects import withStroke

    red, green, blue = to_rgb(colour)
    pale = 0.2126 * red + 0.7152 * green + 0.0722 * blue > _PALE
    return [withStroke(linewidth=3.2, foreground="0.35")] if pale else []


def _marker(steps: NDArray[Any]) -> str:
    """Dots while there are too few points for a line to be seen."""
    return "." if steps.size < 20 else ""


def _series(records: Sequence[Mapping[str, Any]], key: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Steps and values of the records that have `key`; null and infinite become NaN, a gap."""
    there = [r for r in records if key in r]
    values = np.array([math.nan if r[key] is None else float(r[key]) for r in there], np.float64)
    values[~np.isfinite(values)] = np.nan
    return np.array([int(r["step"]) for r in there], np.int64), values


# --------------------------------------------------------------------------------- files and text


def _figure(width: int, height: int) -> Figure:
    """An empty figure of so many pixels, drawn without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A class name in a script that the font lacks is drawn as boxes; that is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())


def _line(text: str) -> str:
    """One line without control characters."""
    return " ".join(str(text).split())


def _hex(colour: Sequence[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
