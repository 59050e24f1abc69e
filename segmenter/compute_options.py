"""The options of `predict.py` that say how it computes, and the tiling that follows from them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from segmenter.geometry import Size

if TYPE_CHECKING:
    from segmenter.checkpoint import Run
    from segmenter.prediction import Wanted
    from segmenter.reading import Tiling

_BYTES_PER_WIDTH = 41
"""Of a pixel of a window, for each channel of the U-Net's first level: for runs that do not tell."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them as a group."""
    group = parser.add_argument_group("computing")
    group.add_argument(
        "--mode",
        choices=("exact", "smooth"),
        help="exact: as if the model had seen the whole raster at once (default where it is possible and "
        "keeps half of what it computes); smooth: overlapping windows, blended",
    )
    group.add_argument(
        "--overlap", metavar="PERCENT", type=float, default=50, help="of windows, in smooth mode (default 50)"
    )
    group.add_argument(
        "--weights", choices=("hann", "gaussian", "linear"), default="hann", help="in smooth mode"
    )
    group.add_argument(
        "--symmetries",
        choices=("none", "flips", "all"),
        default="none",
        help="average over mirror images: 4 or 8 times the time",
    )
    group.add_argument(
        "--memory",
        metavar="SIZE",
        type=_memory,
        help="what the program may take, as 8GB (half of what is free): decides how large windows are",
    )
    group.add_argument("--tile", metavar="PX", type=positive, help="side of the model's window, not chosen")
    group.add_argument("--batch", metavar="N", type=positive, help="windows computed at once, not chosen")
    group.add_argument(
        "--mosaic",
        action="store_true",
        help="inputs that adjoin are one raster: windows see over their edges",
    )


def positive(text: str) -> int:
    """An argument of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {value}")
    return value


def _memory(text: str) -> int:
    from segmenter.budget import parse_memory

    try:
        return parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tiling_for(
    args: argparse.Namespace, run: Run, sizes: Iterable[Size], wanted: Wanted, item_bytes: int = 1
) -> Tiling:
    """The tiling for parts of these sizes; prints what is to be said about it.

    Args:
        item_bytes: of one value of the rasters.

    Raises:
        ConfigError: what is asked for is impossible.
    """
    from segmenter.blending import Blend
    from segmenter.budget import Choice, Needs, plan_tiling
    from segmenter.tiling import round_up

    needs = Needs(_network(run), len(run.classes), run.band_count * item_bytes, wanted, _usual(run))
    blend = Blend(args.overlap, args.weights)
    choice = Choice(args.mode, blend, args.memory, args.tile, args.batch)
    if args.mosaic and needs.network.radius is not None:  # each file is read with what lies around it
        edge = 2 * round_up(needs.network.radius, needs.network.stride)
        sizes = [Size(size.height + edge, size.width + edge) for size in sizes]
    tiling, notes = plan_tiling(sizes, needs, choice)
    for note in notes:
        print(note)
    return tiling


def _usual(run: Run) -> int:
    return run.recipe.prediction.window


def _network(run: Run) -> Any:
    """The model's geometry; runs of older versions do not tell the memory."""
    network = run.network
    if network.bytes_per_pixel:
        return network
    return replace(network, bytes_per_pixel=_BYTES_PER_WIDTH * run.recipe.model.width)
