"""Polygons of one call: those made from its maps (`--vectors FILE`), and labels (`--labels`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import DatasetError, SegmenterError, plain
from segmenter.base.files import caches, real
from segmenter.base.invocation import needing
from segmenter.base.options import option
from segmenter.base.sealed import digest
from segmenter.base.terminal import say, warn
from segmenter.extras.vectors.options import OUTPUTS, PolygonOptions
from segmenter.mapping.finisher import Finisher

if TYPE_CHECKING:
    from segmenter.extras.vectors.label_files import LabelFiles
    from segmenter.mapping.call import Call
    from segmenter.mapping.folder.journal import Journal
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.outcome import Outcome
    from segmenter.runs.ensemble import AnyRun


@dataclass
class PolygonFile(Finisher):
    """Writer of the polygons of all maps to one file, at the end of a call.

    The journal of the output folder records its sources and checksum, so that a repeated call keeps it, and
    does not replace files made or edited by others.
    """

    vectors: Path | None = option(
        None,
        "write the maps' polygons to one file, .gpkg or .parquet (GeoParquet), which is never uploaded "
        "(default: none)",
        metavar="FILE",
        group=OUTPUTS,
    )
    polygons: PolygonOptions = field(default_factory=PolygonOptions)
    reads_maps = True

    def __post_init__(self) -> None:
        if self.vectors is None and (alone := [name for name, value in vars(self.polygons).items() if value]):
            option_name = alone[0].replace("_", "-")
            raise DatasetError(f"--{option_name}", "says what polygons are written; it needs --vectors")

    @cached_property
    def _path(self) -> Path:
        assert self.vectors is not None, "it is asked for"
        return self.vectors

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return {**asdict(self.polygons), "only": list(self.polygons.only)}

    @cached_property
    def _what(self) -> dict[str, str]:
        return {"polygons": str(real(self._path))}

    def check(self, call: Call, jobs: Sequence[MapJob]) -> None:
        """Refuse requests that would fail only after hours of computing.

        Raises:
            SegmenterError: the extra is missing, the file belongs to others or is not writable, or the maps
                do not fit into one file.
        """
        _vectorise()
        from segmenter.extras.vectors.vectorise import check_together

        names = call.run.classes.names
        if unknown := [name for name in self.polygons.only if name not in names]:
            raise DatasetError("--only", f"no class {unknown[0]}", remedy=f"there are {', '.join(names)}")
        for job in jobs:
            if job.output.suffix != ".tif":
                raise DatasetError(
                    "--vectors",
                    "polygons are made of GeoTIFF maps",
                    got=job.output.name,
                    remedy="add --format geotiff",
                )
        check_together([job.info for job in jobs])
        self._check_file(self._journal(call))

    def _journal(self, call: Call) -> Journal:
        """Return the output folder's journal; for a bucket, one in the user's cache."""
        from segmenter.mapping.folder.journal import Journal

        return Journal(call.request.output if call.store is None else caches() / "polygons")

    def _check_file(self, journal: Journal) -> None:
        from segmenter.extras.vector_files.writing import check_name

        check_name(self._path)
        if self._path.exists() and self._recorded_sources(journal) is None:
            raise DatasetError(
                f"--vectors {self._path}",
                "exists already, and is not as an earlier call with this --output left it",
                remedy="name another file, or remove it",
            )

    def _recorded_sources(self, journal: Journal) -> dict[str, Any] | None:
        """Return the file's recorded sources (`file` is None if a call was killed); None if not ours."""
        from segmenter.mapping.folder.journal import file_facts

        noted = journal.settings(self._what)
        try:
            known = noted is not None and noted["file"] in (None, file_facts(self._path))
        except (OSError, KeyError):
            return None
        return noted if known else None

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Write the file, unless it is finished; return the errors."""
        from segmenter.mapping.folder.journal import file_facts

        jobs = sorted([*outcome.written, *outcome.kept], key=lambda job: job.name)
        if outcome.stopped is not None or not jobs:
            return []
        try:
            journal = self._journal(call)
            self._check_file(journal)  # another process may have written it since the call began
            made_of = digest({**self._settings, "maps": [_facts(journal, job) for job in jobs]})
            noted = self._recorded_sources(journal) if self._path.exists() else None
            if noted is not None and noted["file"] is not None and noted["made_of"] == made_of:
                say(plain(f"{self._path}: finished and unchanged"))
                return []
            self._note(journal, made_of, None)  # a call killed from here on leaves a file that is ours
            count = _vectorise()(
                [job.output for job in jobs],
                self._path,
                self.polygons,
                progress=True,
            )
            self._note(journal, made_of, file_facts(self._path))
        except SegmenterError as error:
            return [error]
        except OSError as error:
            return [DatasetError(self._path, f"cannot be read again: {error.strerror}")]
        maps = f"{len(jobs)} map{'s' * (len(jobs) > 1)}"
        failed = f"; {len(outcome.failed)} have no map" if outcome.failed else ""
        say(plain(f"{self._path}: {count:,} polygons of {maps}{failed}"))
        return []

    def _note(self, journal: Journal, made_of: str, file: dict[str, Any] | None) -> None:
        journal.settle(self._what, {"made_of": made_of, "file": file, **self._what})
        journal.flush()


@dataclass(frozen=True)
class NoteStalePolygons(Finisher):
    """Finisher that names the polygons of earlier calls, which may be kept on purpose.

    Attributes:
        but: file of this call; None: it writes none.
    """

    but: Path | None = None

    def finish(self, call: Call, outcome: Outcome) -> list[SegmenterError]:
        """Print a line for each existing file."""
        own = None if self.but is None else str(real(self.but))
        for file in call.journal.choices("polygons") if outcome.written else ():
            if file != own and os.path.exists(file):
                line = (
                    f"{file}: holds polygons of older maps, not of those made now; --vectors writes it anew"
                )
                outcome.warnings.append(line)
                warn(plain(line))
        return []


def _vectorise() -> Callable[..., int]:
    with needing("vectors", "polygons", "--vectors", DatasetError):
        from segmenter.extras.vectors.vectorise import vectorise
    return vectorise


def _facts(journal: Journal, job: MapJob) -> list[Any]:
    """Return the facts that reveal a changed map, or a changed confidence beside it."""
    from segmenter.mapping.folder.journal import file_facts
    from segmenter.mapping.style import CONFIDENCE

    entry = journal.find(job.name)
    known = {} if entry is None else entry.outputs
    files = [job.output, job.output.with_name(job.output.name.removesuffix(".tif") + CONFIDENCE)]
    return [[path.name, known.get(path.name) or file_facts(path)] for path in files if path.is_file()]


def polygon_labels(run: AnyRun, asked: str) -> LabelFiles:
    """Return the maker of label rasters from polygon files, by the recipe's rule or its defaults.

    The rasters are stored in the user's cache.

    Args:
        asked: the argument that names the files, for messages.

    Raises:
        DatasetError: the extra is missing.
    """
    with needing("vectors", "polygons", asked, DatasetError):
        from segmenter.extras.vectors.label_files import LabelFiles
        from segmenter.extras.vectors.rule import BurnRule
    dataset = run.recipe.dataset
    ignored, uncoded = (getattr(dataset, name, ()) for name in ("ignore", "uncoded"))
    rule = BurnRule.of(getattr(dataset, "vector", None), run.classes, ignored, uncoded)
    return LabelFiles(caches() / "labels", rule)
