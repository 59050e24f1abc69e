"""Memory budget of prediction: exact or blended windows, as large as memory allows.

Memory of a prediction, in bytes, for windows of p pixels, b at once, in columns c pixels wide:

    base       1 GiB: Python, TensorFlow, GDAL's block cache
    model      b · p · bytes_per_pixel (`receptive_field.inference_bytes_per_pixel`), plus the weights of all
               models but the first (`Ensemble.further_bytes`)
    batches    b · p · (5 · (bands · bytes of a value + 1) + 3 · o)
    rows       exact: c · (rows of a window + 512) · o; blended: that + K · rows of a window · c · 4. After
               `regridding` the same, plus the grid's rows under one raster row, plus c' · (512 · o' + 1024)
               for a column of c' raster pixels: o' bytes are written for each, 1024 is for the data mask

where o is the output in bytes a pixel: 1 for the class, 1 for the confidence, K or 2K for probabilities;
blending adds 4K. On a GPU the model's part must fit the card's memory, and each GPU has more batches in
progress (`_GPU_READ`, `_GPU_GIVEN`). Wider rasters are mapped column by column (`windows.Columns`), so memory
does not depend on their size. On a grid c covers at least 512 raster pixels, as a file's blocks are written
whole.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import ByteSize, TypeAdapter, ValidationError

from segmenter.base.errors import ConfigError, shorten
from segmenter.base.machine import machine_memory
from segmenter.devices.setup import cards_listed, smallest_card
from segmenter.grid.geometry import Size
from segmenter.grid.windows import COLUMN, least_window, round_up, window_for
from segmenter.inference.blending import Blend
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.reading import Tiling
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster.resampled import HELD_BYTES
from segmenter.raster.write import BLOCK

BASE_BYTES = 1 << 30
SHARE_OF_MACHINE = 0.5
"""Share of all memory, in use or not: the same call is to give the same windows."""
_SHARE_OF_CARD = 0.8
_GOOD_ENOUGH = 1.03
"""Extra computing up to which the smaller of two window sizes is chosen, for its memory."""
_LARGEST = 8192
USUAL, _LARGE = 512, 1024
"""Sides of windows where a recipe names none: blended, and for validation where the memory allows it."""
_LEAST_COLUMN, _WINDOWS_ACROSS = 8 * BLOCK, 8
"""Least width of a column, in pixels and in windows: pixels that columns share are computed twice."""
_MOST_AT_ONCE = 64
_READ, _GIVEN = 5, 3
"""Batches in progress: read as a run, gathered, stacked, waiting, computed; computed, waiting, written."""
_GPU_READ, _GPU_GIVEN = 3, 4
"""More for each GPU: in its reader's hands, two in its own (`dealing`); results that wait for them."""
_HELD_ROWS = 1024
"""Rows of a raster's validity in memory: those of a block, rarely as many, and the rest of the one above."""
_AMOUNT = re.compile(r"\s*\d+(\.\d+)?\s*[a-z]+\s*", re.IGNORECASE)
"""A number and a unit, and nothing else: `ByteSize` takes a number alone as bytes, and any text behind it."""


@dataclass(frozen=True)
class ComputingChoice:
    """A user's choices on computing; None: the program chooses.

    Attributes:
        mode: see `plan_tiling`.
        blend: overlap and weights, if windows are blended.
        memory: limit in bytes.
        window: side of a window in pixels.
        batch: number of windows computed at once.
    """

    mode: Literal["exact", "smooth"] | None = None
    blend: Blend = field(default_factory=Blend)
    memory: int | None = None
    window: int | None = None
    batch: int | None = None


@dataclass(frozen=True)
class OwnNeeds:
    """Memory for predictions that are regridded from the model's grid to the rasters' own pixels.

    Attributes:
        width: width of the widest raster, in its own pixels.
        share: largest ratio of a column's width in raster pixels to that on the grid: `MapJob.set_column`.
        wanted: outputs besides class ids, in raster pixels.
        narrowest: grid pixels over the narrowest column, which is as wide as a file's block.
        rows: grid rows over one raster row.
    """

    width: int
    share: float
    wanted: ExtraOutputs
    narrowest: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Needs:
    """Memory needs and outputs of a prediction.

    Attributes:
        network: stride, radius and memory of the model.
        classes: number of classes K.
        pixel_bytes: bytes of one raster pixel, all bands.
        wanted: outputs besides class ids.
        usual: window of the recipe in pixels, for blending.
        weights: bytes of further models' weights and graphs; the base includes the first.
        own: needs of regridding; None: windows are in the rasters' own pixels.
        gpus: number of GPUs that compute; 0: all of the machine, or the CPU if it has none.
    """

    network: NetworkGeometry
    classes: int
    pixel_bytes: int
    wanted: ExtraOutputs
    usual: int
    weights: int = 0
    own: OwnNeeds | None = None
    gpus: int = 0

    @property
    def out_bytes(self) -> int:
        """Bytes of a pixel's prediction."""
        return self.wanted.pixel_bytes(self.classes)

    def total(self, window: Size, batch: int, column: int, *, blended: bool) -> float:
        """Return the bytes of a prediction without the model's part; see the module's docstring."""
        pixels, out = batch * window.pixels, self.out_bytes
        read, given = _READ + _GPU_READ * self.gpus, _GIVEN + _GPU_GIVEN * self.gpus
        under_way = read * (self.pixel_bytes + 1) + given * (out + 4 * self.classes * blended)
        held = 4 * self.classes
        rows = (window.height + BLOCK) * out + held * window.height * blended
        if self.own is not None:
            rows += held * (window.height + self.own.rows)
        return BASE_BYTES + pixels * under_way + self.column(column) * rows

    def column(self, width: int) -> int:
        """Return the width of a column of requested width; on a grid it may be wider."""
        return width if self.own is None else max(width, self.own.narrowest)

    def own_rows(self, column: int) -> float:
        """Return the bytes of rows in raster pixels that wait to be written, with their masks."""
        if self.own is None:
            return 0.0
        width = min(self.own.width, max(BLOCK, int(column * self.own.share)))
        written = BLOCK * self.own.wanted.pixel_bytes(self.classes)
        return float(width * written + min(HELD_BYTES, width * _HELD_ROWS))

    def model(self, window: Size, batch: int) -> float:
        """Return the bytes that the model takes for a batch."""
        return batch * window.pixels * self.network.bytes_per_pixel + self.weights


def usual_tiling(network: NetworkGeometry, window: int | None, batch: int | None, devices: int = 1) -> Tiling:
    """Return a recipe's windows, as used in validation.

    By default they are large, since the model's radius around each is discarded: for a radius of 107 pixels,
    windows of 512 compute 3.2 pixels for each one kept, windows of 1024 1.6. A batch has as many pixels as
    one window of 1024 (16 training tiles of 256), or fewer if memory is short.

    Args:
        window, batch: settings of the recipe; None: chosen here.
        devices: number of devices that compute at once, each with a batch.
    """
    pixels = _LARGE**2
    if network.bytes_per_pixel:
        pixels = min(pixels, int(_model_room(devices) / network.bytes_per_pixel))
    if network.radius is None:
        blend, side = Blend(), window or USUAL
        size = Size(side, side).round_up(network.stride)
    else:
        blend, side = None, window or (_LARGE if pixels >= _LARGE**2 else USUAL)
        size = window_for(side, network.radius, network.stride)
    if batch is not None:
        pixels = 0  # small rasters, too, by the user's number
    at_once = batch or max(1, pixels // size.pixels)
    return Tiling(size, network.radius or 0, network.stride, at_once, blend, pixels)


def _model_room(devices: int) -> float:
    """Return the bytes that a model may take on each of `devices` devices."""
    card = smallest_card()
    if card is not None:
        return card * _SHARE_OF_CARD
    return max(0.0, machine_memory() * SHARE_OF_MACHINE - BASE_BYTES) / devices


def plan_tiling(sizes: Iterable[Size], needs: Needs, choice: ComputingChoice) -> tuple[Tiling, list[str]]:
    """Return the tiling for rasters of these sizes, and notes to print.

    Exact is the default. Windows are blended if the model uses the whole image, or if exact windows that fit
    the memory would discard more than half of their pixels.

    Raises:
        ConfigError: exact mode is requested but impossible, or no window fits.
    """
    if smallest_card() is not None:
        needs = replace(needs, gpus=needs.gpus or max(1, cards_listed()))
    network, counts = needs.network, Counter(sizes)
    if network.radius is None:
        if choice.mode == "exact":
            raise ConfigError("--mode exact", expected="a model of limited reach", remedy=network.unlimited)
        return _smooth(counts, needs, choice, f"smooth mode: {network.unlimited}")
    if choice.mode == "smooth":
        return _smooth(counts, needs, choice)
    tiling = _exact(counts, needs, choice)
    share = useful_share(tiling, counts)
    if choice.mode is None and choice.window is None and share < 0.5:
        why = f"exact windows of {tiling.window} pixels would discard {1 - share:.0%} of what they compute"
        return _smooth(counts, needs, choice, f"smooth mode: {why}; --mode exact or more --memory")
    unused = "exact windows: --overlap and --blend-weights change nothing without --mode smooth"
    return tiling, [] if choice.blend == Blend() else [unused]


def share_of(
    tiling: Tiling, sizes: Iterable[Size], needs: Needs, memory: int, batch: int | None
) -> tuple[Tiling, int]:
    """Return a tiling for a process with less memory: same windows, smaller batches and columns.

    Args:
        batch: windows computed at once, if the tiling does not set them.

    Returns:
        The tiling, and its least memory in bytes, which may exceed `memory`.
    """
    counts, blended, side = Counter(sizes), tiling.blend is not None, tiling.window.height
    choice = ComputingChoice(memory=memory, window=side, batch=batch)
    model, whole = _needed_bytes(side, batch or 1, counts, needs, blended=blended)
    return _tiling(tiling.window, tiling.halo, needs, choice, counts, tiling.blend), int(max(model, whole))


def useful_share(tiling: Tiling, counts: Counter[Size]) -> float:
    """Return kept pixels divided by computed ones; padding to the stride is not counted as waste."""
    kept = sum(size.round_up(tiling.stride).pixels * count for size, count in counts.items())
    return kept / max(1, _computed_pixels(tiling.window.height, tiling, counts))


def _computed_pixels(side: int, tiling: Tiling, counts: Counter[Size]) -> int:
    halo = round_up(tiling.halo, tiling.stride)

    def along(length: int) -> int:
        length = round_up(length, tiling.stride)
        if length <= side:
            return length
        window = least_window(length, side, halo, tiling.stride)
        return window * -(-(length - 2 * halo) // (window - 2 * halo))

    return sum(along(size.height) * along(size.width) * count for size, count in counts.items())


def _exact(counts: Counter[Size], needs: Needs, choice: ComputingChoice) -> Tiling:
    network = needs.network
    assert network.radius is not None
    stride, halo = network.stride, round_up(network.radius, network.stride)
    if choice.window is not None:
        window = Size(choice.window, choice.window).round_up(stride)
        return _tiling(window, network.radius, needs, choice, counts)
    # No raster needs more than its own sides.
    most = min(_LARGEST, max((round_up(max(s.height, s.width), stride) for s in counts), default=stride))
    least = 2 * halo + stride
    sides = [s for s in range(least, max(most, least) + 1, stride) if _fits(s, 1, counts, needs, choice)]
    if not sides:
        # The smallest that keeps as much as it discards; what is discarded then decides the mode.
        sides = [min(max(most, least), round_up(4 * halo, stride) or stride)]
        _refuse_to_exceed(sides[0], counts, needs, choice)
    tiling = Tiling(Size(sides[-1], sides[-1]), network.radius, stride, 1)
    computed = {side: _computed_pixels(side, tiling, counts) for side in sides}
    best = min(computed.values())
    side = next(side for side in sides if computed[side] <= best * _GOOD_ENOUGH)
    return _tiling(Size(side, side), network.radius, needs, choice, counts)


def _smooth(
    counts: Counter[Size], needs: Needs, choice: ComputingChoice, *notes: str
) -> tuple[Tiling, list[str]]:
    """Return windows of the recipe's size, down to half of it if memory is short.

    They get no smaller: a model that sees only a few pixels of a scene maps it wrongly.
    """
    stride, remarks = needs.network.stride, list(notes)
    side = usual = round_up(choice.window or needs.usual, stride)
    if choice.window is None and not _fits(side, 1, counts, needs, choice, blended=True):
        side = round_up(usual // 2, stride)
        if not _fits(side, 1, counts, needs, choice, blended=True):
            _refuse_to_exceed(side, counts, needs, choice, blended=True)
        remarks.append(f"windows of {side} pixels, the recipe has {usual}: more --memory would allow them")
    return _tiling(Size(side, side), 0, needs, choice, counts, choice.blend), remarks


def _refuse_to_exceed(
    side: int, counts: Counter[Size], needs: Needs, choice: ComputingChoice, *, blended: bool = False
) -> None:
    """Refuse windows beyond a requested limit; without one, a small machine does its best."""
    if choice.memory is None:
        return
    needed = _needed_bytes(side, 1, counts, needs, blended=blended)[1]
    raise ConfigError(
        "--memory",
        expected=f"at least {math.ceil(needed / 1e8) / 10:.1f}GB for windows of {side} pixels, the smallest "
        "that are of use",
        got=f"{choice.memory / 1e9:.1f}GB" if choice.memory >= 1e8 else f"{choice.memory / 1e6:.3g}MB",
        remedy="give more, or choose --window-size and --batch",
    )


def refuse_beyond_the_machine(tiling: Tiling, sizes: Iterable[Size], needs: Needs, memory: int) -> None:
    """Refuse windows too large for any memory; scales (`tta`) can make them that large."""
    padded = [size.round_up(tiling.stride) for size in sizes] or [tiling.window]
    height, width = max(size.height for size in padded), max(size.width for size in padded)
    window = Size(min(tiling.window.height, height), min(tiling.window.width, width))
    needed = window.pixels * (needs.pixel_bytes + 1.0) + (
        needs.model(window, 1) if not smallest_card() else 0
    )
    if needed > (there := max(memory, machine_memory())):
        raise ConfigError(
            f"windows of {window} pixels: one takes {needed / 1e9:,.1f}GB, there are {there / 1e9:.1f}GB; "
            f"choose a smaller --window-size (a multiple of {tiling.stride:,} pixels), or --tta scales that "
            "have a denominator in common, as 0.75,1,1.25"
        )


def _tiling(
    window: Size,
    halo: int,
    needs: Needs,
    choice: ComputingChoice,
    counts: Counter[Size],
    blend: Blend | None = None,
) -> Tiling:
    """Return a tiling with columns as wide as fit, then with as many windows at once as fit."""
    blended, side = blend is not None, window.height
    column = _least_column(side)
    while column < COLUMN and _fits(
        side, choice.batch or 1, counts, needs, choice, blended=blended, column=2 * column
    ):
        column *= 2
    stride = needs.network.stride
    if choice.batch is not None:
        return Tiling(window, halo, stride, choice.batch, blend, column=column)
    # A window is at most as large as the largest raster.
    largest = max((s.round_up(stride).pixels for s in counts), default=window.pixels)
    batch = 1
    while batch < _MOST_AT_ONCE and batch * window.pixels < _MOST_AT_ONCE * min(largest, window.pixels):
        if not _fits(side, 2 * batch, counts, needs, choice, blended=blended, column=column):
            break
        batch *= 2
    return Tiling(window, halo, stride, batch, blend, batch * window.pixels, column)


def _least_column(side: int) -> int:
    """Return the narrowest column for windows of a side: a power of two, like blocks."""
    return max(_LEAST_COLUMN, 1 << (_WINDOWS_ACROSS * side - 1).bit_length())


def _fits(
    side: int,
    batch: int,
    counts: Counter[Size],
    needs: Needs,
    choice: ComputingChoice,
    *,
    blended: bool = False,
    column: int = 0,
) -> bool:
    model, whole = _needed_bytes(side, batch, counts, needs, blended=blended, column=column)
    card = smallest_card()
    if card is not None and model > card * _SHARE_OF_CARD:
        return False
    memory = machine_memory() * SHARE_OF_MACHINE if choice.memory is None else choice.memory
    return whole <= memory


def _needed_bytes(
    side: int, batch: int, counts: Counter[Size], needs: Needs, *, blended: bool, column: int = 0
) -> tuple[float, float]:
    """Return the bytes of the model, and the total in host memory, for the narrowest columns."""
    window, widest = Size(side, side), max((size.width for size in counts), default=side)
    column = column or _least_column(side)
    model = needs.model(window, batch)
    rest = needs.total(window, batch, min(widest, column), blended=blended) + needs.own_rows(column)
    return model, rest + (model if smallest_card() is None else 0)


def parse_memory(text: str) -> int:
    """Return bytes from a number with a unit: 8GB, 500M, 2.5GiB."""
    try:
        if _AMOUNT.fullmatch(text):
            return int(TypeAdapter(ByteSize).validate_python(text))
    except (ValidationError, OverflowError):  # another unit; more than any number
        pass
    raise ValueError(f"expected a number with a unit, as 8GB or 500MB, got {shorten(text)}")
