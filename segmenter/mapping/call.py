"""One mapping call as a value: request and everything derived from it, built once; place, windows, precision.

The program's choices are written to the journal of the output folder: the same call makes the same choices,
even on another machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from segmenter.base.errors import CheckpointError, DatasetError
from segmenter.base.terminal import say, warn
from segmenter.grid.geometry import Size
from segmenter.grid.windows import round_up
from segmenter.inference.blending import Blend
from segmenter.inference.events import Event
from segmenter.inference.loading import smallest_card
from segmenter.inference.memory import (
    USUAL,
    ComputingChoice,
    Needs,
    OwnNeeds,
    plan_tiling,
    refuse_beyond_the_machine,
)
from segmenter.inference.predictor import classify_all
from segmenter.inference.reading import Tiling
from segmenter.inference.regridding import ON_THE_GRID
from segmenter.inference.tta import AUTO, parse_tta, seen_by, settled_tta
from segmenter.mapping.calibrated import describe_calibration
from segmenter.mapping.finisher import Finisher, OutputStore
from segmenter.mapping.folder.journal import Journal
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.sets import sets_of
from segmenter.mapping.request.truth import GsdOf, Images, by_georeference
from segmenter.mapping.style import MapStyle
from segmenter.raster.write import BLOCK
from segmenter.runs.ensemble import Ensemble, members, without_calibration

if TYPE_CHECKING:
    from segmenter.inference.prediction import ExtraOutputs
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.runs.ensemble import AnyRun

_CHOSEN = ("mode", "overlap", "blend_weights", "tta", "memory", "window_size", "batch", "mosaic")
"""Fields of a request that a tiling follows from."""
_OVER = 2
"""Grid pixels over the edges of a range of raster pixels, or next to them."""
_PLAIN = "float32"

Compute = Callable[[Iterable[MapJob]], Generator[Event[MapJob], None, None]]
"""Jobs, which it asks for as it gets on → their windows, as `predictor.classify_all` gives them."""


# --------------------------------------------------------------------------------------------- where


class Backend(Protocol):
    """Place where the windows of rasters are computed."""

    def ready(self) -> contextlib.AbstractContextManager[object]:
        """Return a block in which the workers run; plan inside it, as only then their devices are known."""

    def tiling(self, call: Call, jobs: Sequence[MapJob], tiling: Tiling) -> Tiling:
        """Return the tiling for each computing process, given that for one process."""

    def compute(self, call: Call, jobs: Sequence[MapJob], tiling: Tiling) -> Compute:
        """Return the function that computes jobs, all in their own pixels or all on grids."""


class ThisProcess:
    """Computing in this process, with the model loaded at first use."""

    def ready(self) -> contextlib.AbstractContextManager[object]:
        """Do nothing: see `Backend`."""
        return contextlib.nullcontext()

    def tiling(self, call: Call, jobs: Sequence[MapJob], tiling: Tiling) -> Tiling:
        """Return the tiling unchanged."""
        return tiling

    def compute(self, call: Call, jobs: Sequence[MapJob], tiling: Tiling) -> Compute:
        """Load the model; see `Backend`."""
        from segmenter.inference.loading import load_predictor, overlooked_gpus

        model = call.model
        predict = load_predictor(call.run, call.extra_outputs(jobs), call.request.tta, call.precision)
        if call.run.checksum() != model:
            raise replaced_weights(call.run.path)
        if line := overlooked_gpus():
            warn(line)
        return functools.partial(classify_all, tiling=tiling, predict=predict)


def replaced_weights(run: Path) -> CheckpointError:
    """Return the error of a run whose weights are not those that a call began with."""
    return CheckpointError(
        run,
        "a training has replaced its weights since this call began",
        remedy="the same call again takes the new ones",
    )


# -------------------------------------------------------------------------------------------- tiling


def tiling_for(call: Call, jobs: Sequence[MapJob]) -> Tiling:
    """Return the tiling for rasters; print notes about it.

    The same call on the same machine gives the same windows, however much memory is in use.

    Raises:
        ConfigError: the requested settings are impossible.
    """
    request = call.request
    sizes, needs = needs_of(call, jobs)
    blend = Blend(request.overlap, request.blend_weights)
    choice = ComputingChoice(request.mode, blend, request.memory, request.window_size, request.batch)
    tiling, notes = plan_tiling(sizes, needs, choice)
    refuse_beyond_the_machine(tiling, sizes, needs, request.memory or 0)
    for note in notes:
        say(note)
    return tiling


def needs_of(call: Call, jobs: Sequence[MapJob], gpus: int = 0) -> tuple[list[Size], Needs]:
    """Return the jobs' sizes as the model sees them, and the needs of a prediction.

    Args:
        gpus: number of GPUs that compute; 0: all of this machine.
    """
    run = call.run
    item_bytes = max((np.dtype(job.info.dtype).itemsize for job in jobs), default=1)
    network = seen_by(run.network, parse_tta(call.request.tta), len(run.classes))
    needs = Needs(
        network,
        len(run.classes),
        run.band_count * item_bytes,
        call.extra_outputs(jobs),
        run.recipe.prediction.window or USUAL,
        weights=run.further_bytes if isinstance(run, Ensemble) else 0,
        own=_own_needs(call, jobs),
        gpus=gpus,
    )
    edge = 0
    if call.request.mosaic and network.radius is not None:  # each file is read with what lies around it
        edge = 2 * round_up(network.radius, network.stride)
    return [Size(job.seen.height + edge, job.seen.width + edge) for job in jobs], needs


def _own_needs(call: Call, jobs: Sequence[MapJob]) -> OwnNeeds | None:
    grids = [(job.grid, min(BLOCK, job.part.width)) for job in jobs if job.grid is not None]
    if not grids:
        return None
    return OwnNeeds(
        max(job.part.width for job in jobs),
        min(1.0, max(float(grid.cols) for grid, _ in grids)),
        call.style.wanted,
        narrowest=max(math.ceil(width / grid.cols) + _OVER for grid, width in grids),
        rows=max(math.ceil(1 / grid.rows) + _OVER for grid, _ in grids),
    )


def settled_tiling(call: Call, jobs: Sequence[MapJob]) -> Tiling:
    """Return the tiling of an earlier equal call, else `tiling_for`; record it in the journal."""
    what: dict[str, Any] = {name: getattr(call.request, name) for name in _CHOSEN}
    what |= {
        "run": call.model,
        "wanted": str(call.extra_outputs(jobs)),
        "sizes": sorted(f"{job.seen} {job.info.dtype}" for job in jobs),
        **({"grid": str(call.style.wanted)} if any(job.grid is not None for job in jobs) else {}),
    }
    earlier = None if call.request.redo else _tiling_from(call.journal.settings(what), call.request.mode)
    if earlier is not None:
        return earlier
    tiling = tiling_for(call, jobs)
    call.journal.settle(what, json.loads(json.dumps(asdict(tiling))))
    return tiling


def _tiling_from(facts: Mapping[str, Any] | None, asked: str | None) -> Tiling | None:
    """Return a tiling from plain JSON; print a note if it is smooth without having been requested."""
    if not facts:
        return None
    try:
        blend = None if facts["blend"] is None else Blend(**facts["blend"])
        tiling = Tiling(**{**facts, "window": Size(**facts["window"]), "blend": blend})
    except (KeyError, TypeError):  # of another version of this program
        return None
    if blend is not None and asked is None:
        say("smooth mode, as before")
    return tiling


def computing_options(call: Call, tiling: Tiling) -> dict[str, Any]:
    """Return all options that determine the pixels, for the journal; the size of exact windows does not."""
    request, blend = call.request, tiling.blend
    options: dict[str, Any] = {"bands": request.bands and list(request.bands)}
    options |= {"tta": str(parse_tta(request.tta)), "mode": "exact", "stride": tiling.stride}
    if blend is None:
        options["halo"] = tiling.halo
    else:
        window = [tiling.window.height, tiling.window.width]
        options |= {"mode": "smooth", "window": window}
        options |= {"overlap": blend.overlap, "blend_weights": blend.weights}
    return {**options, "precision": _precision_entry(call.precision)}


# ----------------------------------------------------------------------------------------- precision


def settled_precision(call: Call) -> tuple[str, ...]:
    """Return the Keras dtype policy of each member of the run; print it, unless all are float32.

    The program's choice depends on a GPU, and is recorded in the journal for the same call.
    """
    run, asked = call.run, call.request.precision
    trained: tuple[str, ...] = tuple(member.recipe.training.precision for member in members(run))
    chosen = precision_of(run, asked)
    if asked is not None:
        _tell(chosen, trained, "")
        return chosen
    plain = (_PLAIN,) * len(trained)
    if trained == plain:
        return plain
    what = {"precision of": call.model}
    noted = None if call.request.redo else call.journal.settings(what)
    before = None if noted is None else tuple(map(str, noted.get("precision", ())))
    on_gpu = chosen == trained
    if before in (trained, plain):
        slow = "" if on_gpu or before == plain else "; slow on a CPU, --precision float32 makes them anew"
        _tell(before, trained, f", as the maps before{slow}")
        return before
    _tell(chosen, trained, "" if on_gpu else ", which a CPU computes faster; --precision run takes the other")
    call.journal.settle(what, {"precision": list(chosen)})
    return chosen


def precision_of(run: AnyRun, asked: str | None = None) -> tuple[str, ...]:
    """Return the Keras dtype policy of each member of the run, if no maps were begun in another.

    That of the run's validation, which chose the best model in it, but float32 on a CPU, where mixed_float16
    is slower (docs/prediction.md).

    Args:
        asked: `run`, or a policy for all; None: the program chooses.
    """
    trained: tuple[str, ...] = tuple(member.recipe.training.precision for member in members(run))
    as_trained = asked == "run" or (asked is None and smallest_card() is not None)
    return trained if as_trained else (asked or _PLAIN,) * len(trained)


def _precision_entry(precision: tuple[str, ...]) -> str | None:
    """Return the precision as stored in the journal; None for float32, which older journals omit."""
    if set(precision) == {_PLAIN}:
        return None
    return ", ".join(precision if len(set(precision)) > 1 else precision[:1])


def _tell(chosen: tuple[str, ...], trained: tuple[str, ...], why: str) -> None:
    if {*chosen, *trained} == {_PLAIN}:
        return
    shown, theirs = (_precision_entry(each) or _PLAIN for each in (chosen, trained))
    if chosen == trained:
        say(f"precision: {shown}, as in training and validation{why}")
    else:
        say(f"precision: {shown}{why} (trained and validated in {theirs}: some pixels differ)")


def _choose_symmetries(asked: str, run: AnyRun) -> str:
    """Return `--tta` with the symmetries that the training of the run showed in place of `auto`; print it."""
    tta = settled_tta(parse_tta(asked), (member.recipe.augmentation.symmetries for member in members(run)))
    if parse_tta(asked).symmetries == AUTO:
        cost = f"; takes {tta.count} times as long as one prediction" if tta.count > 1 else ""
        say(f"--tta {asked}: {tta}, as the recipe trains{cost}")
    return str(tta)


@dataclass(frozen=True)
class Call:
    """A request with everything that it needs.

    Attributes:
        images: images to map, with their labels; None: arrays are mapped.
        gsd: metres a pixel at which the model sees the inputs; None: their own.
        style: files of a map, and their contents.
        finishers: finishers that process the maps, in this order.
        windows: place where windows are computed.
        store: store for finished outputs; None: they stay in the folder.
    """

    request: MapRequest
    run: AnyRun
    images: Images | None
    gsd: float | None
    style: MapStyle
    finishers: tuple[Finisher, ...]
    windows: Backend
    store: OutputStore | None

    @classmethod
    def of(
        cls,
        request: MapRequest,
        run: AnyRun,
        images: Images | None = None,
        finishers: Sequence[Finisher] = (),
        windows: Backend | None = None,
        store: OutputStore | None = None,
    ) -> Call:
        """Build the call of a request.

        Raises:
            DatasetError, RasterError: codes or a nodata value do not fit the classes, or the run's scale is
                unknown.
            CheckpointError: the weights or a calibration are damaged, or do not belong together.
        """
        run = run if request.calibration else without_calibration(run)
        request = replace(request, tta=_choose_symmetries(request.tta, run))
        gsd = _wanted_gsd(request, run)
        by_default, shown = run.recipe.dataset.maps_hold_codes, "" if gsd is None else f"{gsd:.4g} m"
        style = MapStyle(
            *(request, run.classes, run.recipe.name, run.fingerprint(), by_default, shown),
            describe_calibration(run),
            sets_of(request, run),
        )
        return cls(request, run, images, gsd, style, tuple(finishers), windows or ThisProcess(), store)

    @cached_property
    def journal(self) -> Journal:
        """Journal of the output folder."""
        return Journal(self.request.output)

    @cached_property
    def model(self) -> str:
        """Checksum of the run at first use: the one of the maps, whatever a training does meanwhile."""
        model = self.run.checksum()
        if self.run.fingerprint() != self.style.weights:
            raise replaced_weights(self.run.path)
        return model

    @cached_property
    def precision(self) -> tuple[str, ...]:
        """Keras dtype policy of each member of the run; prints the reason at first use."""
        return settled_precision(self)

    @property
    def scale_of(self) -> GsdOf:
        """Function from an image and its metres a pixel by georeference to the scale (`Truth.scale_of`)."""
        truth = None if self.images is None else self.images.truth
        return by_georeference if truth is None else truth.scale_of

    def extra_outputs(self, jobs: Sequence[MapJob]) -> ExtraOutputs:
        """Return the model outputs needed: on a grid, those from which raster pixels are interpolated."""
        return ON_THE_GRID if any(job.grid is not None for job in jobs) else self.style.wanted


def _wanted_gsd(request: MapRequest, run: AnyRun) -> float | None:
    if request.gsd != "auto":
        return request.gsd
    if (metres := run.metres_per_pixel) is None:
        paths = ",".join(map(str, request.runs))
        raise DatasetError(
            "--gsd auto",
            f"{paths} does not say at how many metres a pixel it was trained: its images had no georeference",
            remedy="give --gsd METRES",
        )
    return metres
