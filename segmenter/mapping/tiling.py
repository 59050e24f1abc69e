"""The tiling that follows from a request, and what of it decides the pixels of a map."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from segmenter.geometry import Size

if TYPE_CHECKING:
    from segmenter.inference.prediction import ExtraOutputs
    from segmenter.inference.reading import Tiling
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.journal import Journal
    from segmenter.mapping.request import MapRequest
    from segmenter.runs.ensemble import AnyRun

_CHOSEN = ("mode", "overlap", "blend_weights", "tta", "memory", "window_size", "batch", "mosaic")
"""Of a request, what a tiling follows from."""


def tiling_for(request: MapRequest, run: AnyRun, jobs: Sequence[MapJob], wanted: ExtraOutputs) -> Tiling:
    """The tiling for rasters; prints what is to be said about it.

    The same call on the same machine gives the same windows, however much of its memory is in use.

    Raises:
        ConfigError: what is asked for is impossible.
    """
    import numpy as np

    from segmenter.inference.blending import Blend
    from segmenter.inference.memory import USUAL, Choice, Needs, plan_tiling
    from segmenter.inference.tta import parse_tta, seen_by
    from segmenter.windows import round_up

    item_bytes = max((np.dtype(job.info.dtype).itemsize for job in jobs), default=1)
    network = seen_by(run.network, parse_tta(request.tta), len(run.classes))
    needs = Needs(
        network,
        len(run.classes),
        run.band_count * item_bytes,
        wanted,
        run.recipe.prediction.window or USUAL,
        weights=_further_bytes(run),
        regridded=any(job.grid is not None for job in jobs),
    )
    edge = 0
    if request.mosaic and network.radius is not None:  # each file is read with what lies around it
        edge = 2 * round_up(network.radius, network.stride)
    sizes = [Size(job.seen.height + edge, job.seen.width + edge) for job in jobs]
    blend = Blend(request.overlap, request.blend_weights)
    choice = Choice(request.mode, blend, request.memory, request.window_size, request.batch)
    tiling, notes = plan_tiling(sizes, needs, choice)
    for note in notes:
        print(note)
    return tiling


def settled_tiling(
    request: MapRequest, run: AnyRun, wanted: ExtraOutputs, jobs: Sequence[MapJob], journal: Journal
) -> Tiling:
    """`tiling_for`, or what it gave an earlier call for the same, though that was on another machine.

    What is chosen, window and batch among it, is noted in the journal.
    """
    what = {name: getattr(request, name) for name in _CHOSEN}
    what |= {
        "run": run.checksum(),
        "wanted": str(wanted),
        "sizes": sorted(f"{job.seen} {job.info.dtype}" for job in jobs),
        **({"grid": True} if any(job.grid is not None for job in jobs) else {}),
    }
    found = None if request.redo else _tiling_from(journal.settings(what), request.mode)
    if found is not None:
        return found
    tiling = tiling_for(request, run, jobs, wanted)
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


def computing_options(request: MapRequest, tiling: Tiling) -> dict[str, Any]:
    """All of it that decides what comes out: of exact windows, their size does not."""
    from segmenter.inference.tta import parse_tta

    found: dict[str, Any] = {"tta": str(parse_tta(request.tta)), "mode": "exact", "stride": tiling.stride}
    blend = tiling.blend
    if blend is None:
        return {**found, "halo": tiling.halo}
    window = [tiling.window.height, tiling.window.width]
    how = {"overlap": blend.overlap, "blend_weights": blend.weights}
    return {**found, "mode": "smooth", "window": window, **how}


def _further_bytes(run: AnyRun) -> int:
    from segmenter.runs.ensemble import Ensemble

    return run.further_bytes if isinstance(run, Ensemble) else 0
