"""The options of `predict.py` that say how it computes, and the tiling that follows from them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from segmenter.geometry import Size

if TYPE_CHECKING:
    from segmenter.checkpoint import Run
    from segmenter.journal import Journal
    from segmenter.map_jobs import MapJob
    from segmenter.prediction import Wanted
    from segmenter.reading import Tiling

_CHOSEN = ("mode", "overlap", "weights", "symmetries", "memory", "tile", "batch", "mosaic")
"""Options that a tiling follows from."""
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


def settled_tiling(
    args: argparse.Namespace, run: Run, wanted: Wanted, jobs: Sequence[MapJob], journal: Journal
) -> Tiling:
    """`tiling_for`, or what it gave an earlier call for the same, though other memory was free then.

    What is chosen is noted in the journal.
    """
    import numpy as np

    sizes = [job.part.size for job in jobs]
    what = {name: getattr(args, name) for name in _CHOSEN}
    what |= {"run": run.checksum(), "wanted": str(wanted), "sizes": sorted(map(str, sizes))}
    found = None if args.redo else _tiling_from(journal.settings(what), args.mode)
    if found is not None:
        return found
    item_bytes = max(np.dtype(job.info.dtype).itemsize for job in jobs)
    tiling = tiling_for(args, run, sizes, wanted, item_bytes)
    journal.settle(what, json.loads(json.dumps(asdict(tiling))))
    return tiling


def _tiling_from(facts: Mapping[str, Any] | None, asked: str | None) -> Tiling | None:
    """A tiling of plain JSON; says where it is smooth without having been asked for."""
    from segmenter.blending import Blend
    from segmenter.reading import Tiling

    try:
        blend = None if facts is None or facts["blend"] is None else Blend(**facts["blend"])
        found = facts and Tiling(**{**facts, "window": Size(**facts["window"]), "blend": blend})
    except (KeyError, TypeError):  # of another version of this program
        return None
    if found and blend is not None and asked is None:
        print("smooth mode, as before")
    return found or None


def result_facts(tiling: Tiling, symmetries: str) -> dict[str, Any]:
    """What of a tiling decides the result, as plain JSON.

    Exact windows give the same wherever they lie and however many are computed at once; blended ones do
    not where they are of another size.
    """
    if tiling.blend is None:
        return {"mode": "exact", "symmetries": symmetries}
    window = [tiling.window.height, tiling.window.width]
    return {"mode": "smooth", "symmetries": symmetries, "windows": window, **asdict(tiling.blend)}


def _usual(run: Run) -> int:
    return run.recipe.prediction.window


def _network(run: Run) -> Any:
    """The model's geometry; runs of older versions do not tell the memory."""
    network = run.network
    if network.bytes_per_pixel:
        return network
    return replace(network, bytes_per_pixel=_BYTES_PER_WIDTH * run.recipe.model.width)
