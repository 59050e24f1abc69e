"""One call of `predict.py`, for Python users too: headers, maps, scores, pictures.

    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.mapping.session import map_rasters

    mapped = map_rasters(MapRequest(run=Path("runs/mine"), inputs=("scenes/",), output=Path("maps")))

It says on standard output what it does, as `predict.py` does. TensorFlow is loaded when there is a map to
make.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from segmenter.base.errors import EXIT_SOME_FAILED, DatasetError, SegmenterError, counted, plain
from segmenter.base.terminal import no_bar, say, warn
from segmenter.evaluation.tallies import Tallies
from segmenter.extras.dask.windows import Workers, computing, warn_above_bar, workers_of
from segmenter.extras.gis.style_files import restore
from segmenter.extras.upload import SCORE_FILES, Uploads, uploading
from segmenter.extras.vectors.mapped import PolygonFile
from segmenter.inference.fit import check_fit, sampled_of
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.reading import Tiling
from segmenter.inference.regridding import ON_THE_GRID
from segmenter.mapping.after import finish
from segmenter.mapping.folder.journal import JOURNAL, Journal
from segmenter.mapping.folder.state import FolderState, neighbour_facts
from segmenter.mapping.gsd import cost, groups, lay_grids, wanted_scale
from segmenter.mapping.jobs import Bounds, MapJob, RasterRequest
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.mapping.outputs.map_style import map_style
from segmenter.mapping.outputs.writing import Progress, write_maps
from segmenter.mapping.plan import check_outputs, differences, join, plan_maps
from segmenter.mapping.precision import precision_option, settled_precision
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.request.truth import Images, by_georeference, check_shared, images_of_inputs
from segmenter.mapping.scoring import Outcome, Scoring, score_kept, write_scores
from segmenter.mapping.tiling import computing_options, settled_tiling
from segmenter.raster import check_drivers, extent_text, quiet_libtiff, raster_info, remove_leftovers
from segmenter.runs.ensemble import AnyRun, joined
from segmenter.runs.run import load_run

_MANY_FILES, _MANY_PIXELS = 1000, 1e9
"""From which on a bar is shown while headers and finished maps are looked at: for less it only flickers."""


@dataclass(frozen=True)
class Mapped:
    """What came of a request.

    Attributes:
        outcome: the maps, and their scores.
        failures: all that went wrong with some inputs, while the others were mapped.
    """

    outcome: Outcome
    failures: tuple[SegmenterError, ...] = ()

    @property
    def exit_code(self) -> int:
        """Of a program that did this."""
        return EXIT_SOME_FAILED if self.failures else 0


@dataclass(frozen=True)
class _Helpers:
    """Who else works on a call: processes that compute, and what takes finished maps to a bucket."""

    workers: Workers | None
    uploads: Uploads | None


def map_rasters(request: MapRequest, run: AnyRun | None = None, images: Images | None = None) -> Mapped:
    """Map what is asked for, score it and draw it; what is finished from an earlier call is kept.

    Args:
        run: None: the one that the request names.
        images: what is mapped, with its labels (`truth.images_of_inputs`, `truth.images_of_split`); None: the
            request's inputs. A request with labels or a split needs them, since a dataset's loader says
            where labels lie.

    Raises:
        SegmenterError: nothing can be done; what concerns some of the inputs only is in `failures`.
    """
    with output_folder(request.output):
        run = joined([load_run(path) for path in request.runs]) if run is None else run
        if images is None:
            images = _inputs_only(request, run)
        request = replace(request, bands=request.bands or images.bands)
        style = map_style(request, run)
        scoring = None if images.truth is None else Scoring.asked_for(request, run, images.truth)
        jobs, failures = _plan(request, run, images, style)
        if not jobs or (failures and request.fail_fast):
            return Mapped(Outcome(Tallies(run.classes)), tuple(failures))
        polygons = None if request.vectors is None else PolygonFile(request, run.classes, jobs)
        with uploading(request, style, jobs) as uploads, workers_of(request) as workers:
            outcome = _make_maps(request, run, style, jobs, failures, _Helpers(workers, uploads))
            failures += _score(outcome, scoring, style, run)
            failures += finish(request, style, outcome, polygons, uploads)
        return Mapped(outcome, tuple(failures))


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """The output folder, made before anything is loaded; removed again where nothing was written.

    Raises:
        DatasetError: it cannot be made.
    """
    there = os.path.isdir(folder)  # Path.is_dir raises where one may not look
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise DatasetError(f"--output {folder}: expected a folder or one that can be made: {why}") from None
    try:
        yield
    finally:
        if not there:
            with contextlib.suppress(OSError):  # it is not empty
                if [path.name for path in folder.iterdir()] == [JOURNAL]:
                    (folder / JOURNAL).unlink()  # of no map: what was chosen for one that failed
                folder.rmdir()


def lines_of_notes(notes: Iterable[tuple[str, Path]]) -> list[str]:
    """One line for each note, with the first file that it is about and how many more there are."""
    paths: dict[str, list[Path]] = {}
    for note, path in notes:
        paths.setdefault(note, []).append(path)
    more = {note: f" and {len(files) - 1} more" if len(files) > 1 else "" for note, files in paths.items()}
    return [plain(f"{files[0]}{more[note]}: {note}") for note, files in paths.items()]


def _inputs_only(request: MapRequest, run: AnyRun) -> Images:
    if request.split is not None:
        raise DatasetError(
            f"--split {request.split}: expected the images of the split; `truth.images_of_split` makes "
            "them of a dataset"
        )
    return images_of_inputs(request, run)


# ------------------------------------------------------------------------------------------- headers


def _plan(
    request: MapRequest, run: AnyRun, images: Images, style: MapStyle
) -> tuple[list[MapJob], list[SegmenterError]]:
    """Jobs whose outputs replace nothing, and the errors of inputs that cannot be mapped."""
    jobs, failures, beside = _read_headers(request, run, images, style)
    if beside and not jobs and not failures:
        raise _all_beside(request, images, beside)
    _tell_left_out(images, beside)
    if images.truth is not None:
        check_shared(images.truth, jobs)
    if request.mosaic and jobs:
        join(images.inputs, jobs, failures)
    scale_of = by_georeference if images.truth is None else images.truth.scale_of
    for line in lines_of_notes(lay_grids(request, run, jobs, failures, scale_of)):
        say(line)
    if line := cost(jobs):
        say(line)
    scores = () if images.truth is None else SCORE_FILES
    check_outputs(
        jobs, images.inputs, request.output, scores, pictures=request.pictures, layout=images.layout
    )
    seen_at = wanted_scale(request, run)
    found = ((note, job.info.path) for job in jobs for note in differences(run, job, seen_at))
    for line in lines_of_notes(found):
        warn(line)
    return jobs, failures


def _read_headers(
    request: MapRequest, run: AnyRun, images: Images, style: MapStyle
) -> tuple[list[MapJob], list[SegmenterError], int]:
    """Jobs from the inputs' headers, errors, and the number of inputs beside the bounding box."""
    check_drivers(request.drivers)
    bands = request.bands or run.bands
    asked = request.part, request.max_pixels, request.drivers
    each = RasterRequest(bands, run.band_count, *asked, run.mean_C)
    jobs: list[MapJob] = []
    failures: list[SegmenterError] = []
    beside, count = 0, len(images.inputs.files)
    sampled = sampled_of(images.inputs.files)
    fit = functools.partial(check_fit, run, insist=request.insist, sampled=sampled)
    plans = plan_maps(images.names, each, style, images.truth, fit)
    for _, plan in tqdm(plans, "headers", count, unit="file", disable=no_bar(count < _MANY_FILES or None)):
        if isinstance(plan, MapJob):
            jobs.append(plan)
        elif plan is None:
            beside += 1
        else:
            failures.append(plan)
    return jobs, failures, beside


def _all_beside(request: MapRequest, images: Images, beside: int) -> DatasetError:
    lying = raster_info(images.inputs.files[0])
    assert isinstance(request.part, Bounds), "nothing else lies beside an input"
    return DatasetError(
        f"--bbox {request.part}: touches none of the {beside} inputs; it is in the "
        f"coordinates of the input's CRS, and {lying.path} extends over {extent_text(lying)}"
    )


def _tell_left_out(images: Images, beside: int) -> None:
    if beside:
        lies = "lies" if beside == 1 else "lie"
        say(f"{counted(beside, 'input')} {lies} beside the bounding box")
    if files := images.inputs.left_out:
        say(f"no images by name, in the folders: {counted(len(files), 'file')}: {plain(str(files[0]))}, …")
    if files := images.inputs.outputs:
        say(f"maps in --output, not images: {counted(len(files), 'file')}: {plain(str(files[0]))}, …")


# ---------------------------------------------------------------------------------------------- maps


def _make_maps(
    request: MapRequest,
    run: AnyRun,
    style: MapStyle,
    jobs: Sequence[MapJob],
    failures: list[SegmenterError],
    helpers: _Helpers,
) -> Outcome:
    """Make the maps that are not finished; adds what fails to `failures`."""
    journal, outcome = Journal(request.output), Outcome(Tallies(run.classes))
    precision = settled_precision(request, run, journal)
    for together in groups(jobs):
        outcome.merge(_make_group(request, run, style, together, failures, journal, precision, helpers))
        if outcome.stopped or (failures and request.fail_fast):
            break
    return outcome


def _make_group(
    request: MapRequest,
    run: AnyRun,
    style: MapStyle,
    jobs: Sequence[MapJob],
    failures: list[SegmenterError],
    journal: Journal,
    precision: tuple[str, ...],
    helpers: _Helpers,
) -> Outcome:
    """Make the maps of jobs that all are on their own pixels, or all on grids."""
    wanted = _asked(style, jobs)
    tiling = settled_tiling(request, run, wanted, jobs, journal)
    if helpers.workers is not None:
        tiling = helpers.workers.tiling(request, run, wanted, jobs, tiling)
    folder_state = _folder_state(request, run, style, tiling, journal, precision, helpers.uploads)
    kept, waiting = _sort(folder_state, jobs, failures)
    outcome = Outcome(Tallies(run.classes))
    if waiting:
        outcome = _write(
            request, run, style, tiling, folder_state, waiting, _pixels(kept), precision, helpers.workers
        )
    outcome.kept += kept
    failures += [error for _, error in outcome.failed]
    failures += [outcome.stopped] if outcome.stopped else []
    return outcome


def _folder_state(
    request: MapRequest,
    run: AnyRun,
    style: MapStyle,
    tiling: Tiling,
    journal: Journal,
    precision: tuple[str, ...],
    uploads: Uploads | None,
) -> FolderState:
    how = {"bands": request.bands and list(request.bands), **computing_options(request, tiling)}
    how["precision"] = precision_option(precision)

    def options(job: MapJob) -> dict[str, Any]:
        part = job.part
        around = None if job.mosaic is None else neighbour_facts(job, tiling)
        where = {"part": [part.row, part.col, part.height, part.width], "mosaic": around}
        grid = None if job.grid is None else f"{job.grid} as one"
        return {**where, **style.options(job), **how, "gsd": grid}

    facts = {"name": run.recipe.name, "model": run.checksum()}
    complete = partial(restore, style=style, uploads=uploads)
    return FolderState(
        journal, facts, options, redo=request.redo, warn=warn_above_bar, uploads=uploads, complete=complete
    )


def _asked(style: MapStyle, jobs: Sequence[MapJob]) -> ExtraOutputs:
    """What is asked of the model: what the map is made of, or on a grid, what it is interpolated from."""
    return style.wanted if jobs[0].grid is None else ON_THE_GRID


def _sort(
    folder_state: FolderState, jobs: Sequence[MapJob], failures: list[SegmenterError]
) -> tuple[list[MapJob], list[MapJob]]:
    """Jobs whose maps are finished and whole, and those to be done, with a line for each reason."""
    kept: list[MapJob] = []
    waiting: list[MapJob] = []
    notes: list[tuple[str, Path]] = []
    if folder_state.journal.damaged:
        damaged = f"{folder_state.journal.damaged} damaged lines are left out of account"
        say(f"{plain(str(folder_state.journal.path))}: {damaged}")
    few = len(jobs) < _MANY_FILES and _pixels(jobs) < _MANY_PIXELS
    for job in tqdm(jobs, "finished maps", unit="file", disable=no_bar(few or None)):
        try:
            reason = folder_state.unfinished(job)
        except SegmenterError as error:
            failures.append(error)
            continue
        (kept if reason is None else waiting).append(job)
        if reason:
            notes.append((f"made anew: {reason}", job.output))
    for line in lines_of_notes(notes):
        say(line)
    if kept:
        say(f"{len(kept)} of {len(jobs)} maps are finished and unchanged")
    return kept, waiting


def _pixels(jobs: Iterable[MapJob]) -> int:
    return sum(job.part.size.pixels for job in jobs)


def _write(
    request: MapRequest,
    run: AnyRun,
    style: MapStyle,
    tiling: Tiling,
    folder_state: FolderState,
    waiting: Sequence[MapJob],
    there: int,
    precision: tuple[str, ...],
    workers: Workers | None,
) -> Outcome:
    """Load the model and write the maps; `there` are pixels of maps that are finished."""
    wanted = _asked(style, waiting)
    compute = computing(workers, request, run, wanted, tiling, precision, waiting)
    quiet_libtiff()
    remove_leftovers(request.output)
    start, pixels = time.perf_counter(), there + _pixels(waiting)
    with tqdm(total=pixels, initial=there, unit="pixel", unit_scale=True, disable=no_bar()) as bar:
        outcome = write_maps(
            waiting, tiling, compute, style, folder_state, progress=Progress(bar), fail_fast=request.fail_fast
        )
    _tell_written(outcome, folder_state, request.output, time.perf_counter() - start)
    return outcome


def _tell_written(outcome: Outcome, folder_state: FolderState, folder: Path, seconds: float) -> None:
    for warning in outcome.warnings:
        warn(plain(warning))
    if folder_state.removed:
        first = plain(str(folder_state.removed[0]))
        say(f"{len(folder_state.removed)} files belonged to older maps and are removed: {first}, …")
    if outcome.written:
        done = _pixels(outcome.written) / 1e6
        maps = f"{len(outcome.written)} map{'s' * (len(outcome.written) > 1)}"
        say(f"{maps} in {plain(str(folder))}: {done:.1f} Mpixel, {done / seconds:.2f} Mpixel/s")


# -------------------------------------------------------------------------------------------- scores


def _score(outcome: Outcome, scoring: Scoring | None, style: MapStyle, run: AnyRun) -> list[SegmenterError]:
    """Write and print the scores of the maps that have a label; what is wrong with others'."""
    score_kept(outcome, style)
    failures: list[SegmenterError] = [_not_scored(error) for _, error in outcome.unscored]
    try:
        if outcome.each and scoring is not None:
            say(write_scores(outcome, scoring, style.folder, run.recipe.name))
    except SegmenterError as error:  # the maps are there all the same
        failures.append(error)
    return failures


def _not_scored(error: SegmenterError) -> SegmenterError:
    return DatasetError(f"{error} (the map is written, its scores are left out)")
