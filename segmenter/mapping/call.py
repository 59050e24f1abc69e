"""One mapping call as a value: request and everything derived from it, built once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from segmenter.base.errors import DatasetError
from segmenter.inference.regridding import ON_THE_GRID
from segmenter.mapping.computing import ThisProcess, Windows, settled_precision
from segmenter.mapping.finisher import Finisher, Store
from segmenter.mapping.folder.journal import Journal
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.mapping.request.truth import GsdOf, Images, by_georeference
from segmenter.runs.ensemble import members, uncalibrated

if TYPE_CHECKING:
    from segmenter.inference.prediction import ExtraOutputs
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.runs.ensemble import AnyRun


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
    windows: Windows
    store: Store | None

    @classmethod
    def of(
        cls,
        request: MapRequest,
        run: AnyRun,
        images: Images | None = None,
        finishers: Sequence[Finisher] = (),
        windows: Windows | None = None,
        store: Store | None = None,
    ) -> Call:
        """Build the call of a request.

        Raises:
            DatasetError, RasterError: codes or a nodata value do not fit the classes, or the run's scale is
                unknown.
            CheckpointError: a calibration is damaged.
        """
        run = run if request.calibration else uncalibrated(run)
        gsd = _wanted_gsd(request, run)
        by_default, shown = run.recipe.dataset.maps_hold_codes, "" if gsd is None else f"{gsd:.4g} m"
        style = MapStyle(request, run.classes, run.recipe.name, by_default, shown, describe_calibration(run))
        return cls(request, run, images, gsd, style, tuple(finishers), windows or ThisProcess(), store)

    @cached_property
    def journal(self) -> Journal:
        """Journal of the output folder."""
        return Journal(self.request.output)

    @cached_property
    def precision(self) -> tuple[str, ...]:
        """Keras dtype policy of each member of the run; prints the reason at first use."""
        return settled_precision(self)

    @property
    def scale_of(self) -> GsdOf:
        """Function from an image and its metres a pixel by georeference to the scale (`Truth.scale_of`)."""
        truth = None if self.images is None else self.images.truth
        return by_georeference if truth is None else truth.scale_of

    def wanted(self, jobs: Sequence[MapJob]) -> ExtraOutputs:
        """Return the model outputs needed: on a grid, those from which raster pixels are interpolated."""
        return ON_THE_GRID if any(job.grid is not None for job in jobs) else self.style.wanted


def describe_calibration(run: AnyRun) -> str:
    """Return the temperatures of a run's or ensemble's calibrations as text; empty without any."""
    each = [member.calibration() for member in members(run)]
    texts = ("none" if one is None else f"{one.temperature:.4g}{' with bias' * one.shifts}" for one in each)
    return f"temperature {', '.join(texts)}" if any(each) else ""


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
