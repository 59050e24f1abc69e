"""The tiling that follows from a request, and what of it decides the pixels of a map."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from segmenter.base.terminal import say
from segmenter.grid.geometry import Size

if TYPE_CHECKING:
    from segmenter.inference.memory import Needs, OwnNeeds
    from segmenter.inference.prediction import ExtraOutputs
    from segmenter.inference.reading import Tiling
    from segmenter.mapping.folder.journal import Journal
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.runs.ensemble import AnyRun

_CHOSEN = ("mode", "overlap", "blend_weights", "tta", "memory", "window_size", "batch", "mosaic")
"""Of a request, what a tiling follows from."""
_OVER = 2
"""Pixels of a grid that lie over the edges of some of a raster's pixels, or beside them."""


def tiling_for(request: MapRequest, run: AnyRun, jobs: Sequence[MapJob], wanted: ExtraOutputs) -> Tiling:
    """The tiling for rasters; prints what is to be said about it.

    The same call on the same machine gives the same windows, however much of its memory is in use.

    Raises:
        ConfigError: what is asked for is impossible.
    """
    from segmenter.inference.blending import Blend
    from segmenter.inference.memory import Choice, plan_tiling, refuse_beyond_the_machine

    sizes, needs = _needs(request, run, jobs, wanted)
    blend = Blend(request.overlap, request.blend_weights)
    choice = Choice(request.mode, blend, request.memory, request.window_size, request.batch)
    tiling, notes = plan_tiling(sizes, needs, choice)
    refuse_beyond_the_machine(tiling, sizes, needs, request.memory or 0)
    for note in notes:
        say(note)
    return tiling


def tiling_of_worker(
    request: MapRequest,
    run: AnyRun,
    wanted: ExtraOutputs,
    jobs: Sequence[MapJob],
    tiling: Tiling,
    memory: int,
    of: str,
) -> Tiling:
    """A tiling for each of several processes: the windows of one, if they fit into the `memory` of each.

    Else smaller ones, which is said; but not of blended windows, whose size decides what comes out.

    Args:
        of: option that named the processes.

    Raises:
        ConfigError: blended windows do not fit.
    """
    from segmenter.base.errors import ConfigError
    from segmenter.inference.memory import Choice, plan_tiling, share_of

    sizes, needs = _needs(request, run, jobs, wanted, gpus=1)
    same, least = share_of(tiling, sizes, needs, memory, request.batch)
    if least <= memory or request.window_size is not None:
        return same
    if tiling.blend is not None:
        raise ConfigError(
            f"{of}: expected {least / 1e9:.1f}GB for each, which windows of {tiling.window} pixels take, got "
            f"{memory / 1e9:.1f}GB; take fewer workers, or choose --window-size"
        )
    small, _ = plan_tiling(sizes, needs, Choice("exact", memory=memory, batch=request.batch))
    say(
        f"{of}: windows of {small.window} pixels, one process takes {tiling.window}; --memory gives more room"
    )
    return small


def _needs(
    request: MapRequest, run: AnyRun, jobs: Sequence[MapJob], wanted: ExtraOutputs, gpus: int = 0
) -> tuple[list[Size], Needs]:
    """What the jobs are to the model in size, and what a prediction takes."""
    import numpy as np

    from segmenter.grid.windows import round_up
    from segmenter.inference.memory import USUAL, Needs
    from segmenter.inference.tta import parse_tta, seen_by

    item_bytes = max((np.dtype(job.info.dtype).itemsize for job in jobs), default=1)
    network = seen_by(run.network, parse_tta(request.tta), len(run.classes))
    needs = Needs(
        network,
        len(run.classes),
        run.band_count * item_bytes,
        wanted,
        run.recipe.prediction.window or USUAL,
        weights=_further_bytes(run),
        own=_own_needs(request, jobs),
        gpus=gpus,
    )
    edge = 0
    if request.mosaic and network.radius is not None:  # each file is read with what lies around it
        edge = 2 * round_up(network.radius, network.stride)
    return [Size(job.seen.height + edge, job.seen.width + edge) for job in jobs], needs


def _own_needs(request: MapRequest, jobs: Sequence[MapJob]) -> OwnNeeds | None:
    from segmenter.inference.memory import OwnNeeds
    from segmenter.raster.write import BLOCK

    grids = [(job.grid, min(BLOCK, job.part.width)) for job in jobs if job.grid is not None]
    if not grids:
        return None
    return OwnNeeds(
        max(job.part.width for job in jobs),
        min(1.0, max(float(grid.cols) for grid, _ in grids)),
        _written(request),
        narrowest=max(math.ceil(width / grid.cols) + _OVER for grid, width in grids),
        rows=max(math.ceil(1 / grid.rows) + _OVER for grid, _ in grids),
    )


def _written(request: MapRequest) -> ExtraOutputs:
    """What the files hold beside the map, whatever the model is asked for."""
    from segmenter.inference.prediction import ExtraOutputs

    return ExtraOutputs(confidence=request.confidence, probabilities=request.probabilities)


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
        **({"grid": str(_written(request))} if any(job.grid is not None for job in jobs) else {}),
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
        say("smooth mode, as before")
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
