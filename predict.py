"""Class maps from images: `python predict.py RUN INPUT... --output DIR`; `--help` has the rest."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.errors import EXIT_SOME_FAILED, DatasetError, SegmenterError, grouped, plain, run_script
from segmenter.mapping.options import parse, part_of
from segmenter.terminal import enduring_output

if TYPE_CHECKING:
    from segmenter.inference.predictor import Tiling
    from segmenter.mapping.inputs import Inputs
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.journal import Journal
    from segmenter.mapping.outputs import MapStyle
    from segmenter.mapping.scoring import Outcome, Scoring
    from segmenter.mapping.state import Ledger
    from segmenter.mapping.truth import Images, Truth
    from segmenter.runs.run import Run


_SCORE_FILES = ("scores.json", "confusion.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict; gives the exit code."""
    args = parse(arguments)
    _quiet_libraries()
    with _made(args.output):
        return _predict(args)


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The output folder, made before anything is loaded; removed again where nothing was written."""
    from segmenter.mapping.journal import JOURNAL

    there = folder.is_dir()
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


def _predict(args: argparse.Namespace) -> int:
    # TensorFlow, rasterio and matplotlib are imported once they are needed: --help answers at once.
    from segmenter.mapping.compute_options import settled_tiling
    from segmenter.mapping.journal import Journal
    from segmenter.mapping.plan import check_outputs
    from segmenter.mapping.scoring import score_kept, write_scores
    from segmenter.mapping.truth import check_shared
    from segmenter.runs.run import load_run

    # ------------------------------------------------------------------ what to predict, with what
    run = load_run(args.run)
    images = _images(args, run)
    inputs, args.bands = images.inputs, args.bands or images.bands
    scoring = _scoring(args, run, images.truth)
    style = _style(args, run)
    jobs, failures = _plan(args, run, images, style)
    if images.truth is not None:
        check_shared(images.truth, jobs)
    if args.mosaic and jobs:
        _join(inputs, jobs, failures)
    scores = _SCORE_FILES if scoring is not None else ()
    check_outputs(jobs, inputs, args.output, scores, pictures=args.pictures, layout=images.layout)
    _warn_of_differences(run, jobs)
    if not jobs or (failures and args.fail_fast):
        return _report(failures)
    # -------------------------------------------------------------------------------- the maps
    journal = Journal(args.output)
    tiling = settled_tiling(args, run, style.wanted, jobs, journal)
    ledger = _ledger(args, run, style, tiling, journal)
    kept, waiting = _sort(ledger, jobs, failures)
    outcome = _map(args, run, style, tiling, ledger, kept, waiting)
    failures += [error for _, error in outcome.failed]
    failures += [outcome.stopped] if outcome.stopped else []
    # -------------------------------------------------------------------- the scores and the pictures
    score_kept(outcome, style)
    failures += [_not_scored(error) for _, error in outcome.unscored]
    try:
        if outcome.each and scoring is not None:
            print(write_scores(outcome, scoring, args.output, run.recipe.name))
    except SegmenterError as error:  # the maps are there all the same
        failures.append(error)
    if args.pictures:
        failures += _draw(outcome, style)
    return _report(failures)


def _report(failures: Sequence[SegmenterError]) -> int:
    for line in grouped(str(error) for error in failures):
        print(f"error: {line}", file=sys.stderr)
    return EXIT_SOME_FAILED if failures else 0


def _quiet_libraries() -> None:
    """What GDAL and TensorFlow have to say of an error is in our line; Ctrl-C and kill end alike."""
    from segmenter.raster import quiet_gdal

    quiet_gdal()
    logging.getLogger("rasterio").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _without_rasterio(unraisable: Any, uncaught: Any) -> tuple[Any, Any]:
    """Python's two hooks without what rasterio prints where GDAL quotes a damaged file, which is no UTF-8."""

    def print_unraisable(what: Any) -> None:
        if not str(what.object).startswith("rasterio."):
            unraisable(what)

    def print_uncaught(kind: Any, error: Any, trace: Any) -> None:
        if not (kind is UnicodeDecodeError and trace is None):
            uncaught(kind, error, trace)

    return print_unraisable, print_uncaught


def _images(args: argparse.Namespace, run: Run) -> Images:
    """The inputs, or the scenes of a recipe's split, with the labels that they are scored with."""
    from datasets import layout_of, load_dataset
    from segmenter.config.reading import load_recipe
    from segmenter.mapping.inputs import find_inputs, output_names
    from segmenter.mapping.truth import Images, check_split, images_of_split, labels_by_pattern

    if args.split is None:
        inputs = find_inputs(args.inputs, args.output, remote=args.remote)
        truth = None
        if args.labels is not None:
            truth = labels_by_pattern(args.labels, layout_of(run.recipe), inputs, run, args.split_name)
        return Images(inputs, output_names(inputs.files), truth)
    check_split(args.split)
    recipe = run.recipe if args.recipe is None else load_recipe(args.recipe)
    dataset = load_dataset(recipe)
    left_out = ((reason, file) for file, reason in dataset.unused)
    for note in (*_grouped(left_out), *dataset.notes):
        print(note)
    where = args.recipe or args.run / "recipe.yaml"
    return images_of_split(dataset, layout_of(recipe), args.split, run, where)


def _scoring(args: argparse.Namespace, run: Run, truth: Truth | None) -> Scoring | None:
    """How the maps are scored; what does not fit is refused before hours are spent."""
    if truth is None:
        if args.protocol or args.label_kind:
            raise DatasetError("--protocol and --label-kind say how to score: they need --labels or --split")
        return None
    from segmenter.mapping.scoring import Scoring

    return Scoring(run.classes, args.label_kind or truth.kind, truth.split, args.protocol, args.symmetries)


def _style(args: argparse.Namespace, run: Run) -> MapStyle:
    from segmenter.inference.predictor import Wanted
    from segmenter.mapping.outputs import MapStyle

    if args.cog and args.format == "png":
        raise DatasetError("--cog: is a kind of GeoTIFF, and --format png asks for none")
    return MapStyle(
        classes=run.classes,
        folder=args.output,
        format=args.format,
        nodata=args.nodata,
        codes_by_default=run.recipe.dataset.kind == "naic2020",
        tags={"RUN": run.recipe.name},
        wanted=Wanted(confidence=args.confidence, probabilities=args.probabilities),
        cog=args.cog,
        quicklook=args.quicklook,
    )


def _plan(
    args: argparse.Namespace, run: Run, images: Images, style: MapStyle
) -> tuple[list[MapJob], list[SegmenterError]]:
    """Jobs from the inputs' headers, and the errors of those that cannot be mapped."""
    from tqdm import tqdm

    from segmenter.mapping.jobs import MapJob, Request
    from segmenter.mapping.plan import plan_maps
    from segmenter.raster import check_drivers, extent_text, raster_info

    check_drivers(args.drivers)
    part = part_of(args)
    request = Request(args.bands or run.bands, run.band_count, part, args.max_pixels, args.drivers)
    inputs = images.inputs
    plans = plan_maps(images.names, request, style, images.truth)
    jobs: list[MapJob] = []
    failures: list[SegmenterError] = []
    beside = 0
    few = len(inputs.files) < 1000  # a bar for some milliseconds is only a flicker
    for _, plan in tqdm(plans, "headers", len(inputs.files), unit="file", disable=few or None):
        if isinstance(plan, MapJob):
            jobs.append(plan)
        elif plan is None:
            beside += 1
        else:
            failures.append(plan)
    if beside and not jobs and not failures:
        lying = raster_info(inputs.files[0])
        raise DatasetError(
            f"--bbox {' '.join(map(str, args.bbox))}: touches none of the {beside} inputs; it is in the "
            f"coordinates of the input's CRS, and {lying.path} extends over {extent_text(lying)}"
        )
    if beside:
        print(f"{beside} inputs lie beside the bounding box")
    if inputs.left_out:
        first = plain(str(inputs.left_out[0]))
        print(f"{len(inputs.left_out)} files of the folders are no images by name: {first}, …")
    if inputs.outputs:
        first = plain(str(inputs.outputs[0]))
        print(f"{len(inputs.outputs)} files in --output are maps, not images: {first}, …")
    return jobs, failures


def _warn_of_differences(run: Run, jobs: Sequence[MapJob]) -> None:
    """One line for each way in which inputs differ from what the model has seen."""
    from segmenter.mapping.plan import differences

    for line in _grouped((note, job.info.path) for job in jobs for note in differences(run, job)):
        print(f"warning: {line}", file=sys.stderr)


def _grouped(notes: Iterable[tuple[str, Path]]) -> list[str]:
    """One line for each note, with the first file that it is about and how many more there are."""
    paths: dict[str, list[Path]] = {}
    for note, path in notes:
        paths.setdefault(note, []).append(path)
    more = {note: f" and {len(files) - 1} more" if len(files) > 1 else "" for note, files in paths.items()}
    return [plain(f"{files[0]}{more[note]}: {note}") for note, files in paths.items()]


def _join(inputs: Inputs, jobs: Sequence[MapJob], failures: Sequence[SegmenterError]) -> None:
    """Let the windows of all jobs look over the borders of their files, also into those beside a box."""
    from segmenter.raster.mosaic import Mosaic

    if failures:
        raise DatasetError(f"--mosaic: expected inputs that can all be read; {failures[0]}")
    mosaic = Mosaic(inputs.files, jobs[0].request.open)
    for job in jobs:
        job.mosaic = mosaic


def _ledger(args: argparse.Namespace, run: Run, style: MapStyle, tiling: Tiling, journal: Journal) -> Ledger:
    from segmenter.mapping.compute_options import computing_options
    from segmenter.mapping.state import Ledger, neighbour_facts

    how = {"bands": args.bands and list(args.bands), **computing_options(args, tiling)}

    def options(job: MapJob) -> dict[str, Any]:
        part = job.part
        around = None if job.mosaic is None else neighbour_facts(job, tiling)
        where = {"part": [part.row, part.col, part.height, part.width], "mosaic": around}
        return {**where, **style.options(job), **how}

    facts = {"name": run.recipe.name, "model": run.checksum()}
    return Ledger(journal, facts, options, redo=args.redo, warn=_warn)


def _warn(text: str) -> None:
    """A line at once, above the bar."""
    from tqdm import tqdm

    tqdm.write(f"warning: {plain(text)}", file=sys.stderr)


def _sort(
    ledger: Ledger, jobs: Sequence[MapJob], failures: list[SegmenterError]
) -> tuple[list[MapJob], list[MapJob]]:
    """Jobs whose maps are finished and whole, and those to be done, with a line for each reason."""
    from tqdm import tqdm

    kept: list[MapJob] = []
    waiting: list[MapJob] = []
    notes: list[tuple[str, Path]] = []
    if ledger.journal.damaged:
        damaged = f"{ledger.journal.damaged} damaged lines are left out of account"
        print(f"{plain(str(ledger.journal.path))}: {damaged}")
    few = len(jobs) < 1000 and sum(job.part.size.pixels for job in jobs) < 1e9
    for job in tqdm(jobs, "finished maps", unit="file", disable=few or None):
        try:
            reason = ledger.unfinished(job)
        except SegmenterError as error:
            failures.append(error)
            continue
        (kept if reason is None else waiting).append(job)
        if reason:
            notes.append((f"made anew: {reason}", job.output))
    for line in _grouped(notes):
        print(line)
    if kept:
        print(f"{len(kept)} of {len(jobs)} maps are finished and unchanged")
    return kept, waiting


def _map(
    args: argparse.Namespace,
    run: Run,
    style: MapStyle,
    tiling: Tiling,
    ledger: Ledger,
    kept: list[MapJob],
    waiting: Sequence[MapJob],
) -> Outcome:
    from tqdm import tqdm

    from segmenter.devices.setup import overlooked_gpus
    from segmenter.evaluation.scores import ConfusionMatrix
    from segmenter.inference.loading import load_predictor
    from segmenter.mapping.scoring import Outcome
    from segmenter.mapping.writing import Progress, write_maps
    from segmenter.raster import quiet_libtiff, remove_leftovers

    if not waiting:
        return Outcome(ConfusionMatrix(run.classes), kept=kept)
    predict = load_predictor(run, style.wanted, args.symmetries)
    if line := overlooked_gpus():
        print(f"warning: {line}", file=sys.stderr)
    quiet_libtiff()
    remove_leftovers(args.output)
    there, start = sum(job.part.size.pixels for job in kept), time.perf_counter()
    pixels = there + sum(job.part.size.pixels for job in waiting)
    with tqdm(total=pixels, initial=there, unit="pixel", unit_scale=True, disable=None) as bar:
        outcome = write_maps(
            waiting, tiling, predict, style, ledger, progress=Progress(bar), fail_fast=args.fail_fast
        )
    done = sum(job.part.size.pixels for job in outcome.written) / 1e6
    rate = done / (time.perf_counter() - start)
    for warning in outcome.warnings:
        print(f"warning: {plain(warning)}", file=sys.stderr)
    if ledger.removed:
        first = plain(str(ledger.removed[0]))
        print(f"{len(ledger.removed)} files belonged to older maps and are removed: {first}, …")
    if outcome.written:
        maps = f"{len(outcome.written)} map{'s' * (len(outcome.written) > 1)}"
        print(f"{maps} in {plain(str(args.output))}: {done:.1f} Mpixel, {rate:.2f} Mpixel/s")
    outcome.kept += kept
    return outcome


def _draw(outcome: Outcome, style: MapStyle) -> list[SegmenterError]:
    """Pictures of the maps, of those that were there as far as needed; what is wrong and not told yet.

    A label that could not be counted is left out of its picture.
    """
    from segmenter.mapping.pictures import draw_view, view_is_current

    unscored = {id(job): str(error) for job, error in outcome.unscored}
    failures: list[SegmenterError] = []
    for job in [*outcome.written, *(job for job in outcome.kept if not view_is_current(job))]:
        try:
            draw_view(replace(job, label=None) if id(job) in unscored else job, style)
        except SegmenterError as error:
            if str(error) != unscored.get(id(job)):
                failures.append(error)
    return failures


def _not_scored(error: SegmenterError) -> SegmenterError:
    return DatasetError(f"{error} (the map is written, its scores are left out)")


def _end_like_ctrl_c(signal_number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.unraisablehook, sys.excepthook = _without_rasterio(sys.unraisablehook, sys.excepthook)
    signal.signal(signal.SIGTERM, _end_like_ctrl_c)  # `kill` too removes what is half-written
    with enduring_output():
        sys.exit(run_script(main))
