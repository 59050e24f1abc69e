"""One call of `predict.py`, for Python users too: headers, maps, scores, finishers.

    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.mapping.session import map_rasters

    mapped = map_rasters(MapRequest(run=Path("runs/mine"), inputs=("scenes/",), output=Path("maps")))

It prints its progress on standard output, as `predict.py` does. TensorFlow is loaded only if there is a map
to make. Style files, pictures, polygons and uploads are finishers, which `api.mapping_call` adds on request.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segmenter.base.bars import Bar
from segmenter.base.errors import EXIT_SOME_FAILED, DatasetError, SegmenterError, counted, plain
from segmenter.base.terminal import say, warn
from segmenter.grid.geometry import Window
from segmenter.inference.fit import BandMoments, check_fit, other_light, sample_inputs
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.reading import Tiling
from segmenter.mapping.calibrated import remarks
from segmenter.mapping.call import Backend, Call, computing_options, settled_tiling
from segmenter.mapping.finisher import Finisher, OutputStore
from segmenter.mapping.folder.journal import JOURNAL
from segmenter.mapping.folder.state import FolderState, neighbour_facts, of_one_run
from segmenter.mapping.jobs import Bounds, MapJob, RasterRequest
from segmenter.mapping.outcome import Outcome
from segmenter.mapping.outputs.sets import describe_sets
from segmenter.mapping.outputs.writing import write_maps
from segmenter.mapping.plan import check_outputs, cost, differences, groups, join, lay_grids, plan_maps
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.request.truth import Images, check_shared, images_of_inputs
from segmenter.mapping.scoring import (
    Scoring,
    count_further,
    note_scores,
    remove_stale_scores,
    score_kept,
    write_scores,
)
from segmenter.raster import (
    check_drivers,
    crs_title,
    extent_text,
    quiet_gdal,
    quiet_libtiff,
    raster_info,
    remove_leftovers,
)
from segmenter.runs.ensemble import AnyRun, Ensemble, join_runs, members
from segmenter.runs.resume import unfinished_line
from segmenter.runs.run import load_run

_MANY_FILES, _MANY_PIXELS = 1000, 1e9
"""From which on a bar is shown while headers and finished maps are looked at: for less it only flickers."""


@dataclass(frozen=True)
class MappingResult:
    """Result of a request.

    Attributes:
        outcome: maps and their scores.
        failures: errors of single inputs, while the others were mapped.
    """

    outcome: Outcome
    failures: tuple[SegmenterError, ...] = ()

    @property
    def exit_code(self) -> int:
        """Process exit code for this result."""
        return EXIT_SOME_FAILED if self.failures else 0


def map_rasters(
    request: MapRequest,
    run: AnyRun | None = None,
    images: Images | None = None,
    *,
    finishers: Sequence[Finisher] = (),
    windows: Backend | None = None,
    store: OutputStore | None = None,
) -> MappingResult:
    """Map and score the inputs of a request; maps finished by an earlier call are kept.

    Args:
        run: the run; None: loaded from the request.
        images: images to map, with their labels (`truth.images_of_inputs`, `truth.images_of_split`); None:
            the request's inputs. Required for labels or a split, since a dataset's loader finds the labels.
        finishers, windows, store: see `Call`.

    Raises:
        SegmenterError: nothing can be done; errors of single inputs are in `failures`.
    """
    with output_folder(request.output), contextlib.ExitStack() as stack:
        run = join_runs([load_run(path) for path in request.runs]) if run is None else run
        if images is None:
            images = _inputs_only(request, run)
        request = replace(request, bands=request.bands or images.bands)
        call = Call.of(request, run, images, finishers, windows, store)
        stack.enter_context(of_one_run(request.output, call.model))
        scoring = None if images.truth is None else Scoring(call, images.truth)
        jobs, failures = _plan(call, images)
        if not jobs or (failures and request.fail_fast):
            return MappingResult(Outcome(), tuple(failures))
        for finisher in call.finishers:
            stack.callback(finisher.close)
            finisher.check(call, jobs)
        stack.enter_context(call.windows.ready())
        outcome = _make_maps(call, jobs, failures)
        failures += _score(call, outcome, scoring)
        for finisher in call.finishers:
            failures += finisher.finish(call, outcome)
        return MappingResult(outcome, tuple(failures))


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Make the output folder before models are loaded; remove it again if it stays empty."""
    existed = os.path.isdir(folder)  # Path.is_dir raises where one may not look
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise DatasetError(
            f"--output {folder}", expected=f"a folder or one that can be made: {why}"
        ) from None
    try:
        yield
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # it is not empty
                if [path.name for path in folder.iterdir()] == [JOURNAL]:
                    (folder / JOURNAL).unlink()  # of no map: what was chosen for one that failed
                folder.rmdir()


def quiet_libraries() -> None:
    """Silence logs of GDAL and TensorFlow, whose errors our messages include; only programs call it."""
    quiet_gdal()
    logging.getLogger("rasterio").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def lines_of_notes(notes: Iterable[tuple[str, Path]]) -> list[str]:
    """Return one line for each kind of note, with its first file and the number of further ones."""
    paths: dict[str, list[Path]] = {}
    for note, path in notes:
        paths.setdefault(note, []).append(path)
    more = {note: f" and {len(files) - 1} more" if len(files) > 1 else "" for note, files in paths.items()}
    return [plain(f"{files[0]}{more[note]}: {note}") for note, files in paths.items()]


def _inputs_only(request: MapRequest, run: AnyRun) -> Images:
    if request.split is not None:
        raise DatasetError(
            f"--split {request.split}",
            expected="the images of the split",
            remedy="`truth.images_of_split` makes them of a dataset",
        )
    return images_of_inputs(request, run)


# ------------------------------------------------------------------------------------------- headers


def _plan(call: Call, images: Images) -> tuple[list[MapJob], list[SegmenterError]]:
    """Return jobs whose outputs overwrite no other file, and errors of inputs that cannot be mapped."""
    jobs, failures, beside = _read_headers(call, images)
    if beside and not jobs and not failures:
        raise _all_beside(call.request, images, beside)
    _tell_left_out(images, beside)
    systems = {"no CRS" if job.info.crs is None else crs_title(job.info.crs) for job in jobs}
    if call.request.bbox is not None and len(systems) > 1:
        warn(f"--bbox: touches inputs of {', '.join(sorted(systems))}: the same numbers, maybe other places")
    if images.truth is not None:
        check_shared(images.truth, jobs)
    if call.request.mosaic and jobs:
        join(images.inputs, jobs, failures)
    for line in lines_of_notes(lay_grids(call, jobs, failures)):
        say(line)
    if line := cost(jobs):
        say(line)
    check_outputs(call, jobs, images)
    notes = ((note, job.info.path) for job in jobs for note in differences(call, job))
    for line in lines_of_notes(notes):
        warn(line)
    return jobs, failures


def _read_headers(call: Call, images: Images) -> tuple[list[MapJob], list[SegmenterError], int]:
    """Return jobs from the inputs' headers, errors, and the number of inputs outside the bounding box."""
    request, run = call.request, call.run
    check_drivers(request.drivers)
    part = None if request.part is None else Window(*request.part)
    each = RasterRequest(
        bands=request.bands or run.bands,
        band_count=run.band_count,
        part=part if request.bbox is None else Bounds(*request.bbox),
        max_pixels=request.max_pixels,
        drivers=request.drivers,
        mean_C=run.mean_C,
    )
    jobs: list[MapJob] = []
    failures: list[SegmenterError] = []
    beside, count = 0, len(images.inputs.files)
    sampled = sample_inputs(images.inputs.files)
    seen: list[BandMoments] = []
    fit = functools.partial(check_fit, run, insist=request.insist, sampled=sampled, seen=seen)
    plans = plan_maps(call, each, fit)
    for _, plan in Bar(plans, desc="headers", total=count, unit="file", shown=count >= _MANY_FILES):
        if isinstance(plan, MapJob):
            jobs.append(plan)
        elif plan is None:
            beside += 1
        else:
            failures.append(plan)
    if line := other_light(run, seen, _pixels(jobs)):
        more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
        warn(plain(f"{jobs[0].info.path}{more}: {line}"))
    return jobs, failures, beside


def _all_beside(request: MapRequest, images: Images, beside: int) -> DatasetError:
    lying = raster_info(images.inputs.files[0])
    assert request.bbox is not None, "nothing else lies beside an input"
    return DatasetError(
        f"--bbox {Bounds(*request.bbox)}",
        f"touches none of the {beside} inputs",
        remedy=f"it is in the coordinates of the input's CRS, and {lying.path} extends over "
        f"{extent_text(lying)}",
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


def _make_maps(call: Call, jobs: Sequence[MapJob], failures: list[SegmenterError]) -> Outcome:
    """Make the unfinished maps; add errors to `failures`."""
    outcome = Outcome(warnings=[line for run in members(call.run) if (line := unfinished_line(run))])
    _ = call.precision  # which is said first
    for line in remarks(call.run):
        say(plain(line))
    if call.style.calibration and call.style.wanted != ExtraOutputs():
        say(f"probabilities are calibrated on validation scenes: {call.style.calibration}")
    for together in groups(jobs):
        outcome.merge(_make_group(call, together, failures))
        if outcome.stopped or (failures and call.request.fail_fast):
            break
    if isinstance(call.run, Ensemble) and any(job.remark for job in outcome.written) and call.run.remark:
        outcome.warnings.append(call.run.remark)
    _tell_written(outcome, call.request.output)
    if (sets := call.style.sets) is not None and not isinstance(outcome.set_sizes, int):
        say(describe_sets(sets.thresholds, call.run.classes.names, outcome.set_sizes))
    return outcome


def _make_group(call: Call, jobs: Sequence[MapJob], failures: list[SegmenterError]) -> Outcome:
    """Make the maps of jobs that are all in their own pixels, or all on grids."""
    tiling = call.windows.tiling(call, jobs, settled_tiling(call, jobs))
    folder_state = _folder_state(call, tiling)
    kept, waiting = _sort(folder_state, jobs, failures)
    outcome = Outcome()
    if waiting:
        outcome = _write(call, tiling, folder_state, waiting, _pixels(kept))
    outcome.kept += kept
    failures += [error for _, error in outcome.failed]
    failures += [outcome.stopped] if outcome.stopped else []
    return outcome


def _folder_state(call: Call, tiling: Tiling) -> FolderState:
    how = computing_options(call, tiling)

    def options(job: MapJob) -> dict[str, Any]:
        part = job.part
        around = None if job.mosaic is None else neighbour_facts(job, tiling)
        where = {"part": [part.row, part.col, part.height, part.width], "mosaic": around}
        grid = None if job.grid is None else f"{job.grid} as one"
        files = {option: True for each in call.finishers for option in each.finished_files(call, job.name)}
        return {**where, **call.style.options(job), **files, **how, "gsd": grid}

    return FolderState(call, options)


def _sort(
    folder_state: FolderState, jobs: Sequence[MapJob], failures: list[SegmenterError]
) -> tuple[list[MapJob], list[MapJob]]:
    """Return (finished jobs, jobs to do); print the reason for each one to do."""
    kept: list[MapJob] = []
    waiting: list[MapJob] = []
    notes: list[tuple[str, Path]] = []
    if folder_state.journal.damaged:
        damaged = f"{folder_state.journal.damaged} damaged lines are left out of account"
        say(f"{plain(str(folder_state.journal.path))}: {damaged}")
    few = len(jobs) < _MANY_FILES and _pixels(jobs) < _MANY_PIXELS
    for job in Bar(jobs, desc="finished maps", unit="file", shown=not few):
        try:
            reason = folder_state.why_unfinished(job)
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
    call: Call, tiling: Tiling, folder_state: FolderState, waiting: Sequence[MapJob], finished: int
) -> Outcome:
    """Load the model and write the maps; `finished`: pixels of finished maps."""
    compute = call.windows.compute(call, waiting, tiling)
    quiet_libtiff()
    remove_leftovers(call.request.output)
    start, pixels = time.perf_counter(), finished + _pixels(waiting)
    with Bar(total=pixels, initial=finished, desc="maps", unit="pixel", unit_scale=True) as bar:
        outcome = write_maps(call, waiting, tiling, compute, folder_state, bar)
    outcome.removed, outcome.seconds = folder_state.removed, time.perf_counter() - start
    return outcome


def _tell_written(outcome: Outcome, folder: Path) -> None:
    for warning in outcome.warnings:
        warn(plain(warning))
    if outcome.removed:
        first, *more = map(str, outcome.removed)
        files = f"{counted(1 + len(more), 'file')} of older maps removed: {first}{', …' if more else ''}"
        say(plain(files))
    if outcome.written:
        done = _pixels(outcome.written) / 1e6
        maps = counted(len(outcome.written), "map")
        say(f"{maps} in {plain(str(folder))}: {done:.1f} Mpixel, {done / outcome.seconds:.2f} Mpixel/s")


# -------------------------------------------------------------------------------------------- scores


def _score(call: Call, outcome: Outcome, scoring: Scoring | None) -> list[SegmenterError]:
    """Write and print the scores of all labelled maps; return errors of labels."""
    score_kept(outcome, call.style)
    removed = remove_stale_scores(call)
    if scoring is not None:
        count_further(outcome, scoring)
    failures: list[SegmenterError] = [
        DatasetError(f"{error} (the map is written, its scores are left out)")
        for _, error in outcome.unscored
    ]
    try:
        if outcome.each and scoring is not None:
            say(write_scores(outcome, scoring))
            note_scores(call, outcome)
        elif removed:
            say(plain(f"{removed[0]}: was of maps that are made anew, and is removed"))
    except SegmenterError as error:  # the maps are there all the same
        failures.append(error)
    return failures
