"""Mapping calls, built from the command line of `predict.py` or the keywords of `run.map(…)`.

Both use the options declared by the request and each finisher; `--help` imports no libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.addresses import is_address
from segmenter.base.errors import DatasetError
from segmenter.base.options import build_options, given_by_python, option
from segmenter.extras.dask.options import ClusterOptions
from segmenter.extras.gis.finisher import Styles
from segmenter.extras.vectors.mapped import NoteStalePolygons, PolygonFile
from segmenter.mapping.finisher import Finisher
from segmenter.mapping.outputs.pictures import Pictures, Quicklook, RemoveStalePictures
from segmenter.mapping.request.map_request import MapRequest

if TYPE_CHECKING:
    from segmenter.extras.upload import Uploads
    from segmenter.mapping.request.truth import Images
    from segmenter.mapping.session import MappingResult
    from segmenter.runs.ensemble import AnyRun


@dataclass(frozen=True)
class _Place:
    """Options for the places where maps are computed, and written first."""

    work: Path | None = option(
        None,
        "local folder that holds maps until they are uploaded to s3:// (default: a folder in ~/.cache)",
        "DIR",
    )
    cluster: ClusterOptions | None = None


OPTIONS = (_Place, MapRequest, Quicklook, Styles, Pictures, PolygonFile)
"""Dataclasses that declare the options of a call."""


@dataclass(frozen=True)
class MappingCall:
    """One mapping call with its finishers, cluster and uploads.

    Attributes:
        finishers: finishers that process the maps, in this order; uploads come last.
        cluster: cluster whose workers compute; None: this process.
        uploads: uploads to the bucket for maps; None: they stay in the folder.
    """

    request: MapRequest
    finishers: tuple[Finisher, ...]
    cluster: ClusterOptions | None
    uploads: Uploads | None

    def map(self, run: AnyRun, images: Images | None) -> MappingResult:
        """Make the maps; see `map_rasters`."""
        from segmenter.mapping.session import map_rasters

        windows = None
        if self.cluster is not None:
            from segmenter.extras.dask.windows import ClusterWindows

            windows = ClusterWindows(self.cluster)
        finishers = self.finishers if self.uploads is None else (*self.finishers, self.uploads)
        return map_rasters(
            self.request, run, images, finishers=finishers, windows=windows, store=self.uploads
        )


def images_of(request: MapRequest, run: AnyRun) -> Images:
    """Find the inputs of a request, and their labels if asked for, as the run's recipe lays its data out.

    Raises:
        DatasetError: an input matches nothing, or the pattern of the labels is invalid.
    """
    from segmenter.api.layouts import layout_of
    from segmenter.extras.vectors.mapped import polygon_labels
    from segmenter.mapping.request.truth import images_of_inputs

    section = run.recipe.dataset
    named = request.labels is not None or (section.kind == "folder" and len(section.images) > 1)
    return images_of_inputs(request, run, layout_of(section) if named else None, polygon_labels)


def keyword_call(
    runs: tuple[Path, ...], inputs: Sequence[str], output: str, options: Mapping[str, Any]
) -> MappingCall:
    """Build a call from keywords.

    Args:
        options: options of `predict.py` with underscores in names (`window_size`) and the same defaults.
            Texts are read as on the command line (`memory="8GB"`); numbers, paths, sequences and, for
            `codes`, a dict are accepted too.

    Raises:
        DatasetError: an unknown option or an invalid value.
    """
    return mapping_call(runs, inputs, output, given_by_python(options, *OPTIONS))


def mapping_call(
    runs: Path | tuple[Path, ...], inputs: Sequence[str], output: str, given: Mapping[str, Any]
) -> MappingCall:
    """Build a call from parsed values of `OPTIONS`.

    Raises:
        DatasetError: values are invalid or exclude each other.
    """
    place, pictures, polygons = (
        build_options(_Place, given),
        build_options(Pictures, given),
        build_options(PolygonFile, given),
    )
    quicklook = build_options(Quicklook, given)
    finishers: list[Finisher] = [quicklook] if quicklook.quicklook else []
    finishers.append(build_options(Styles, given))
    finishers.append(pictures if pictures.pictures else RemoveStalePictures())
    finishers += [polygons] if polygons.vectors is not None else []
    finishers.append(NoteStalePolygons(polygons.vectors))
    uploads, folder = _destination(output, place.work)
    request = build_options(MapRequest, given, run=runs, output=folder, inputs=tuple(inputs))
    return MappingCall(request, tuple(finishers), place.cluster, uploads)


def _destination(output: str, work: Path | None) -> tuple[Uploads | None, Path]:
    """Return the uploader if the output is an address, and the folder to write to.

    Raises:
        DatasetError: the address is not writable, or a working folder has no effect.
    """
    if not is_address(output):
        if work is not None:
            raise DatasetError(f"--work {work}", "is for an --output in a bucket (s3://…); leave it out")
        return None, Path(output)
    from segmenter.extras.upload import Uploads  # brings rasterio

    uploads = Uploads(output)
    return uploads, work or uploads.working_folder
