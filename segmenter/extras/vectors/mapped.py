"""Polygons of the maps of one call: `predict.py --vectors FILE`, kept while the maps stay the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import DatasetError, SegmenterError, plain
from segmenter.base.files import caches, real
from segmenter.base.invocation import installation
from segmenter.base.terminal import no_bar, say

if TYPE_CHECKING:
    from segmenter.extras.vectors.vectorise import Wanted
    from segmenter.grid.labels import ClassMap
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.mapping.scoring import Outcome


def add_polygon_options(group: Any) -> None:
    """Options that say what is made of maps, for `predict.py` and for `vectorise`."""
    metres = {"type": float, "default": 0.0}
    group.add_argument(
        "--min-area",
        metavar="M2",
        help="smaller areas go to the neighbour with the longest shared border (pixels without georeference)",
        **metres,
    )
    group.add_argument(
        "--simplify",
        metavar="METRES",
        help="straighten borders, shared ones together: no gaps, no overlaps (pixels without georeference)",
        **metres,
    )
    group.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CLASS",
        help="polygons of this class; may be given again",
    )


class PolygonFile:
    """The file of polygons that a call asks for.

    The journal of the output folder says what it was made of, and its checksum, so that the same call again
    keeps it, and replaces no file that is another's or that a person has worked on.
    """

    def __init__(self, request: MapRequest, classes: ClassMap, jobs: Sequence[MapJob]) -> None:
        """Refuse what would fail after hours of computing.

        Raises:
            SegmenterError: the extra is missing, the file is another's or cannot be written, or maps cannot
                be in one file.
        """
        from segmenter.mapping.folder.journal import Journal

        assert request.vectors is not None, "it is asked for"
        self._path, self._wanted = request.vectors, _wanted(request)
        # A folder on the way to a bucket is removed once it is empty.
        self._journal = Journal(request.output if request.upload is None else caches() / "polygons")
        self._what = {"polygons": str(real(self._path))}
        self._settings = {name: getattr(self._wanted, name) for name in ("min_area", "simplify")}
        self._settings["only"] = list(self._wanted.only)
        if unknown := [name for name in self._wanted.only if name not in classes.names]:
            raise DatasetError(f"--only: no class {unknown[0]}; there are {', '.join(classes.names)}")
        _check_maps(jobs)
        self._check_file()

    def _check_file(self) -> None:
        from segmenter.extras.vectors.writing import check_name

        check_name(self._path)
        if self._path.exists() and self._noted() is None:
            raise DatasetError(
                f"--vectors {self._path}: exists already, and is not as an earlier call with this "
                "--output left it; name another file, or remove it"
            )

    def _noted(self) -> dict[str, Any] | None:
        """What the file was made of (`file` is None where a call was killed at it); None: it is not ours."""
        from segmenter.mapping.folder.journal import file_facts

        noted = self._journal.settings(self._what)
        try:
            known = noted is not None and noted["file"] in (None, file_facts(self._path))
        except (OSError, KeyError):
            return None
        return noted if known else None

    def write(self, outcome: Outcome) -> list[SegmenterError]:
        """Write it, unless it is finished; gives what went wrong."""
        from segmenter.extras.vectors.vectorise import vectorise
        from segmenter.mapping.folder.journal import digest, file_facts

        jobs = sorted([*outcome.written, *outcome.kept], key=lambda job: job.name)
        if outcome.stopped is not None or not jobs:
            return []
        try:
            self._journal.refresh()
            made_of = digest({**self._settings, "maps": [self._facts(job) for job in jobs]})
            noted = self._noted() if self._path.exists() else None
            if noted is not None and noted["file"] is not None and noted["made_of"] == made_of:
                say(plain(f"{self._path}: finished and unchanged"))
                return []
            self._note(made_of, None)  # a call killed from here on leaves a file that is ours
            count = vectorise(
                [job.output for job in jobs],
                self._path,
                self._wanted,
                progress=sys.stderr.isatty() and not no_bar(),
            )
            self._note(made_of, file_facts(self._path))
        except SegmenterError as error:
            return [error]
        except OSError as error:
            return [DatasetError(f"{self._path}: cannot be read again: {error.strerror}")]
        maps = f"{len(jobs)} map{'s' * (len(jobs) > 1)}"
        failed = f"; {len(outcome.failed)} have no map" if outcome.failed else ""
        say(plain(f"{self._path}: {count:,} polygons of {maps}{failed}"))
        return []

    def _note(self, made_of: str, file: dict[str, Any] | None) -> None:
        self._journal.settle(self._what, {"made_of": made_of, "file": file})
        self._journal.flush()

    def _facts(self, job: MapJob) -> list[Any]:
        """By which a changed map, or a changed confidence beside it, is recognised."""
        from segmenter.mapping.folder.journal import file_facts
        from segmenter.raster.written_map import CONFIDENCE

        entry = self._journal.find(job.name)
        known = {} if entry is None else entry.outputs
        files = [job.output, job.output.with_name(job.output.name.removesuffix(".tif") + CONFIDENCE)]
        return [[path.name, known.get(path.name) or file_facts(path)] for path in files if path.is_file()]


def _wanted(request: MapRequest) -> Wanted:
    try:
        from segmenter.extras.vectors.vectorise import Wanted
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"--vectors: polygons need the package {error.name}: {installation('vectors')}"
        ) from None
    return Wanted(request.min_area, request.simplify, request.only)


def _check_maps(jobs: Sequence[MapJob]) -> None:
    from segmenter.raster.crs_units import same_ground

    for job in jobs:
        if job.output.suffix != ".tif":
            raise DatasetError(
                f"--vectors: polygons are made of GeoTIFF maps, got {job.output.name}; add --format geotiff"
            )
        info, first = job.info, jobs[0].info
        if info.gcps or info.rpcs is not None:
            raise DatasetError(
                f"--vectors: expected images whose grid is placed by a transform, {info.path} has control "
                "points or RPCs; warp it first (gdalwarp)"
            )
        if not same_ground(info.crs, first.crs):
            raise DatasetError(
                f"--vectors: expected images in one CRS, {info.path} has another than {first.path}; map them "
                "in calls of their own, each with its file"
            )
