"""QGIS project of a call: its maps, what was written with them, their images and pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segmenter.errors import DatasetError, SegmenterError, plain
from segmenter.gis.project import Box, Group, Layer, ProjectCrs, is_our_project, write_project
from segmenter.gis.styles import Stretch, class_style, image_style, share_style
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs import MapStyle
from segmenter.mapping.request import MapRequest
from segmenter.raster import box_in
from segmenter.raster.remote import RemotePath
from segmenter.runs.ensemble import members
from segmenter.terminal import say, warn

if TYPE_CHECKING:
    from segmenter.runs.ensemble import AnyRun

_DEVIATIONS = 2.0
"""Around the mean of the training scenes, between which values are drawn from black to white."""


def check_project(path: Path | None) -> None:
    """Refuse a project that cannot be written, or that somebody works with, before anything is computed.

    Raises:
        DatasetError: QGIS has saved it since it was written, or its folder is not there.
    """
    if path is None:
        return
    if path.exists() and not is_our_project(path):
        raise DatasetError(
            f"--project {path}: exists, and is not as predict.py wrote it (QGIS has saved it since?); name "
            "another file, or remove it"
        )
    if not path.parent.is_dir():
        raise DatasetError(f"--project {path}: there is no folder {path.parent}; make it, or name another")


def project_of(
    request: MapRequest, run: AnyRun, style: MapStyle, jobs: Iterable[MapJob]
) -> list[SegmenterError]:
    """Write the project that a request asks for; gives what went wrong.

    Args:
        jobs: whose maps are finished.
    """
    if request.project is None:
        return []
    shown = sorted(jobs, key=lambda job: job.name)
    if not shown:  # a project of an earlier call stays
        return []
    crs = next((found for job in shown if (found := _crs_of(job)) is not None), None)
    try:
        write_project(
            request.project, _Layers(request, run, style).groups(shown), _named(crs), _view(shown, crs)
        )
    except SegmenterError as error:
        return [error]
    say(f"{plain(str(request.project))}: a QGIS project of {len(shown)} map{'s' * (len(shown) != 1)}")
    return []


class _Layers:
    """The layers of jobs, with paths as they are seen from the project."""

    def __init__(self, request: MapRequest, run: AnyRun, style: MapStyle) -> None:
        assert request.project is not None
        self._request, self._run, self._style = request, run, style
        self._from = os.path.realpath(request.project.parent)
        self._covered: set[str] = set()

    def groups(self, jobs: Sequence[MapJob]) -> list[Group]:
        """The groups, the upper one first; of rasters that lie nowhere, and so in one place, one is shown."""
        self._covered = {job.name for job in [job for job in jobs if not job.info.georeferenced][1:]}
        wanted = self._style.wanted
        secret = [job for job in jobs if self._image(job) is None]
        if secret:
            left_out = f"{secret[0].info.path}: is not in the project: its address has a signature or a key"
            warn(f"{plain(left_out)} ({len(secret)} such inputs)")
        sure = [self._shares(job, "confidence") for job in jobs if wanted.confidence]
        shares = [self._shares(job, "probabilities") for job in jobs if wanted.probabilities]
        pictures = [self._picture(job) for job in jobs if self._request.pictures]
        return [
            Group("maps", [self._map(job) for job in jobs], expanded=True),
            *(Group("confidence", sure, shown=False), Group("probabilities", shares, shown=False)),
            Group("pictures", pictures, shown=False),
            Group("images", [image for job in jobs if (image := self._image(job)) is not None]),
        ]

    def _map(self, job: MapJob) -> Layer:
        pipe = class_style(self._style.legend(job))
        placed = job.output.suffix != ".png"  # which loses its georeference
        crs = _named(_crs_of(job)) if placed else None
        return Layer(job.name, self._output(job.output), pipe, crs, job.name not in self._covered)

    def _shares(self, job: MapJob, what: str) -> Layer:
        path = self._style.folder / f"{job.name}.{what}.tif"
        crs, shown = _named(_crs_of(job)), job.name not in self._covered
        return Layer(f"{job.name}.{what}", self._output(path), share_style(), crs, shown)

    def _picture(self, job: MapJob) -> Layer:
        return Layer(job.view.stem, self._output(job.view), image_style((1, 2, 3)), shown=False)

    def _image(self, job: MapJob) -> Layer | None:
        info = job.info
        if isinstance(info.path, RemotePath):
            if str(info.path) != info.path.address:
                return None
            source = info.path.address
        else:
            source = self._relative(info.path)
        alpha = set(info.alpha)
        bands = self._request.bands or self._run.bands
        bands = bands or tuple(band for band in range(1, info.count + 1) if band not in alpha)
        pipe = None if info.has_palette else image_style(bands, self._stretch(info.dtype))
        return Layer(info.path.stem, source, pipe, _named(_crs_of(job)), job.name not in self._covered)

    def _stretch(self, dtype: str) -> list[Stretch] | None:
        if dtype == "uint8":
            return None
        run = members(self._run)[0]
        seen = run.scenes or run.normalisation
        reach = [_DEVIATIONS * std for std in seen.std]
        return [(mean - by, mean + by) for mean, by in zip(seen.mean, reach, strict=True)]

    def _output(self, path: Path) -> str:
        if self._request.upload is None:
            return self._relative(path)
        return RemotePath.of(f"{self._request.upload.rstrip('/')}/{path.name}").address

    def _relative(self, path: Path) -> str:
        found = os.path.relpath(os.path.realpath(path), self._from)
        return found if found.startswith(os.pardir) else os.path.join(os.curdir, found)


def _crs_of(job: MapJob) -> Any:
    return job.info.gcp_crs if job.info.gcps else job.info.crs


@lru_cache(maxsize=64)
def _named(crs: Any) -> ProjectCrs | None:
    if crs is None:
        return None
    name = crs.to_authority()
    return ProjectCrs(crs.to_wkt(), None if name is None else ":".join(name))


def _view(jobs: Iterable[MapJob], crs: Any) -> Box | None:
    """The box of all maps."""
    boxes = [box for job in jobs if (box := box_in(job.info, job.part, crs)) is not None]
    if not boxes:
        return None
    lows, highs = np.min(boxes, axis=0), np.max(boxes, axis=0)
    return float(lows[0]), float(lows[1]), float(highs[2]), float(highs[3])
