"""Options of `predict.py` on how it computes, and the tiling that follows from them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from segmenter.geometry import Size

if TYPE_CHECKING:
    from segmenter.inference.prediction import Wanted
    from segmenter.inference.reading import Tiling
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.journal import Journal
    from segmenter.raster import RasterInfo
    from segmenter.runs.run import Run

_CHOSEN = ("mode", "overlap", "weights", "symmetries", "memory", "tile", "batch", "mosaic")
"""Options that a tiling follows from."""
_BYTES_PER_WIDTH = 41
"""Of a pixel of a window, for each channel of the U-Net's first level: for runs that do not record it."""


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
        help="what the program may take, as 8GB (half of the machine's): decides how large windows are",
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
    from segmenter.inference.memory import parse_memory

    try:
        return parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tiling_for(args: argparse.Namespace, run: Run, infos: Sequence[RasterInfo], wanted: Wanted) -> Tiling:
    """The tiling for rasters; prints what is to be said about it.

    The same call on the same machine gives the same windows, however much of its memory is in use.

    Raises:
        ConfigError: what is asked for is impossible.
    """
    import numpy as np

    from segmenter.inference.blending import Blend
    from segmenter.inference.memory import Choice, Needs, plan_tiling
    from segmenter.windows import round_up

    item_bytes = max((np.dtype(info.dtype).itemsize for info in infos), default=1)
    network = _network(run)
    usual = run.recipe.prediction.window
    needs = Needs(network, len(run.classes), run.band_count * item_bytes, wanted, usual)
    edge = 0
    if args.mosaic and network.radius is not None:  # each file is read with what lies around it
        edge = 2 * round_up(network.radius, network.stride)
    sizes = [Size(info.size.height + edge, info.size.width + edge) for info in infos]
    choice = Choice(args.mode, Blend(args.overlap, args.weights), args.memory, args.tile, args.batch)
    tiling, notes = plan_tiling(sizes, needs, choice)
    for note in notes:
        print(note)
    return tiling


def settled_tiling(
    args: argparse.Namespace, run: Run, wanted: Wanted, jobs: Sequence[MapJob], journal: Journal
) -> Tiling:
    """`tiling_for`, or what it gave an earlier call for the same, though that was on another machine.

    What is chosen, window and batch among it, is noted in the journal.
    """
    infos = [job.info for job in jobs]
    what = {name: getattr(args, name) for name in _CHOSEN}
    what |= {
        "run": run.checksum(),
        "wanted": str(wanted),
        "sizes": sorted(f"{i.size} {i.dtype}" for i in infos),
    }
    found = None if args.redo else _tiling_from(journal.settings(what), args.mode)
    if found is not None:
        return found
    tiling = tiling_for(args, run, infos, wanted)
    journal.settle(what, json.loads(json.dumps(asdict(tiling))))
    return tiling


def _tiling_from(facts: Mapping[str, Any] | None, asked: str | None) -> Tiling | None:
    """A tiling of plain JSON; says where it is smooth without having been asked for."""
    from segmenter.inference.blending import Blend
    from segmenter.inference.reading import Tiling

    try:
        blend = None if facts is None or facts["blend"] is None else Blend(**facts["blend"])
        found = facts and Tiling(**{**facts, "window": Size(**facts["window"]), "blend": blend})
    except (KeyError, TypeError):  # of another version of this program
        return None
    if found and blend is not None and asked is None:
        print("smooth mode, as before")
    return found or None


def computing_options(args: argparse.Namespace, tiling: Tiling) -> dict[str, Any]:
    """All of it that decides what comes out: of exact windows, their size does not."""
    found: dict[str, Any] = {"symmetries": args.symmetries, "mode": "exact", "stride": tiling.stride}
    if tiling.blend is None:
        return {**found, "halo": tiling.halo}
    window = [tiling.window.height, tiling.window.width]
    return {**found, "mode": "smooth", "window": window, **asdict(tiling.blend)}


def _network(run: Run) -> Any:
    """The model's geometry; runs of older versions do not record the memory."""
    network = run.network
    if network.bytes_per_pixel:
        return network
    return replace(network, bytes_per_pixel=_BYTES_PER_WIDTH * run.recipe.model.width)
