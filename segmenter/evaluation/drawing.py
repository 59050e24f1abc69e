"""Shared functions of all figures: an empty figure, PNG output, texts and colours.

matplotlib is imported inside the functions (it takes a second) and used through its objects: no window, no
global state. Text from users (class names, titles) is drawn literally, never as markup.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

_DPI = 100


def new_figure(width: int, height: int) -> Figure:
    """Return an empty figure of `width` × `height` pixels, drawn without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, completely or not at all."""
    buffer = io.BytesIO()
    with _any_script():
        figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())


def figure_pixels(figure: Figure) -> NDArray[np.uint8]:
    """Return (H, W, 3) pixels of a figure made by `new_figure`."""
    canvas: Any = figure.canvas
    with _any_script():
        canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def save_pixels(picture_HWC: NDArray[np.uint8], path: Path) -> None:
    """Write an 8-bit RGB picture as a PNG, completely or not at all."""
    write_whole(path, encode_picture(picture_HWC, "png"))


def encode_picture(picture_HWC: NDArray[np.uint8], kind: Literal["png", "jpeg"]) -> bytes:
    """Return an 8-bit RGB picture as the bytes of an image file."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, picture_HWC, format=kind)
    return buffer.getvalue()


@contextmanager
def _any_script() -> Iterator[None]:
    """Ignore warnings about characters missing in the font, which are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def one_line(text: str) -> str:
    """Return one line without control characters."""
    return " ".join(str(text).split())


def hex_colour(colour: Sequence[int]) -> str:
    """Return a colour as matplotlib's `#rrggbb`."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def scale_bar(across: float) -> tuple[str, float]:
    """Return text and share of the width of a scale bar, for a picture so many metres wide.

    Its length is 1, 2 or 5 times a power of ten, at most four tenths of the width.
    """
    power = 10.0 ** math.floor(math.log10(0.4 * across))
    length = next(times * power for times in (5, 2, 1) if times * power <= 0.4 * across * (1 + 1e-9))
    text = f"{length / 1000:g} km" if length >= 1000 else f"{length:g} m"
    return text, length / across


def percent(share: float | None) -> str:
    """Return a share as text such as `74 %`; 0 % and 100 % only if it is exactly that."""
    if share is None:
        return "–"
    hundred = 100 * share
    if hundred <= 0 or hundred >= 100:
        return f"{hundred:.0f} %"
    if hundred < 0.001:
        return "< 0.001 %"
    if hundred > 99.99:
        return "> 99.99 %"
    if hundred > 99:
        digits = 1 if hundred < 99.9 else 2
        return f"{math.floor(hundred * 10**digits) / 10**digits:.{digits}f} %"
    digits = 0 if hundred >= 9.95 else 1 - math.floor(math.log10(hundred))
    text = f"{hundred:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} %"


def name_legend(legend: Legend, names: Sequence[str]) -> None:
    """Set a legend's texts afterwards: matplotlib drops entries whose name begins with an underscore."""
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(one_line(name))
