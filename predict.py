"""Class maps from images: `python predict.py RUN INPUT... --output DIR`; `--help` has the rest."""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.compute_options import add_options, positive, tiling_for
from segmenter.errors import EXIT_SOME_FAILED, DatasetError, SegmenterError, run_script
from segmenter.geometry import Window

if TYPE_CHECKING:
    from segmenter.checkpoint import Run
    from segmenter.inputs import Inputs
    from segmenter.maps import MapJob, MapStyle, Outcome

_EPILOG = """\
outputs
  One map per input, DIR/STEM.tif: a tiled, compressed GeoTIFF with the CRS, transform and size of the input
  (of the part, with --bbox or --window), class ids, colours and names of the classes. With a NAIC2020 run,
  images without georeference give PNGs with the original codes. Inputs of the same stem get longer names.
  A map appears when it is complete and checked; one that was there before is replaced in that moment.

scores
  --labels 'truth/{stem}.png' finds each image's label by the image's name without extension; {scene} is that
  name without a trailing _RGB, _IRRG or _RGBIR, as in 'labels/{scene}_label_noBoundary.tif'. A pattern may
  hold * and **, and must match one file per image. Writes DIR/scores.json and DIR/confusion.png.

exit code
  0 all done; 1 some inputs failed, the others are done; 2 wrong call; 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict; gives the exit code."""
    args = _parser().parse_args(arguments)
    _quiet_libraries()
    # TensorFlow, rasterio and matplotlib are imported once they are needed: --help answers at once.
    from segmenter.checkpoint import load_run
    from segmenter.inputs import check_pattern, find_inputs

    # ------------------------------------------------------------------ what to predict, with what
    run = load_run(args.run)
    inputs = find_inputs(args.inputs)
    if args.labels is not None:
        check_pattern(args.labels, len(inputs.files))
    _check_protocol(args, run)
    style = _style(args, run)
    jobs, failures = _plan(args, run, inputs, style)
    if args.mosaic and jobs:
        _join(inputs, jobs, failures)
    _refuse_overwriting(jobs, inputs, args.output)
    _warn_of_differences(run, jobs)
    # -------------------------------------------------------------------------------- the maps
    if jobs:
        outcome = _map(args, run, style, jobs)
        failures += [error for _, error in outcome.failed]
        failures += [_not_scored(error) for _, error in outcome.unscored]
        # ------------------------------------------------------------ the scores and the pictures
        if outcome.scored:
            _score(args, run, outcome)
        if args.pictures:
            from segmenter.pictures import draw_view

            for job in outcome.written:
                draw_view(job, style)
    for error in failures:
        print(f"error: {error}", file=sys.stderr)
    return EXIT_SOME_FAILED if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="predict.py",
        description="Class maps from images, with the model of a run directory.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory that train.py made")
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="+", help="image, folder of images (not its subfolders) or glob"
    )
    parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="folder for the maps")
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--bbox",
        nargs=4,
        type=float,
        metavar=("LEFT", "BOTTOM", "RIGHT", "TOP"),
        help="map only this box, in the coordinates of the input's CRS; inputs beside it are left out",
    )
    part.add_argument(
        "--window", nargs=4, type=int, metavar=("ROW", "COL", "HEIGHT", "WIDTH"), help="map only these pixels"
    )
    parser.add_argument(
        "--format", choices=("auto", "geotiff", "png"), default="auto", help="of the maps; see below"
    )
    parser.add_argument(
        "--pictures", action="store_true", help="also STEM.view.png: image, label and map side by side"
    )
    parser.add_argument("--nodata", type=int, default=255, help="GeoTIFF value without data (default 255)")
    parser.add_argument("--bands", metavar="1,2,3", type=_bands, help="bands of the inputs, not the run's")
    parser.add_argument(
        "--max-pixels",
        metavar="N",
        type=positive,
        help="refuse larger rasters; default 2**30, or 10,000 per byte of the file if that is more",
    )
    add_options(parser)
    scores = parser.add_argument_group("scores")
    scores.add_argument("--labels", metavar="PATTERN", help="score the maps with these labels; see below")
    scores.add_argument(
        "--label-kind", choices=("full", "eroded"), help="what these labels are (those it trained on)"
    )
    scores.add_argument("--protocol", metavar="NAME", help="a published protocol: potsdam-6 or potsdam-5")
    scores.add_argument(
        "--split-name", metavar="NAME", default="unstated", help="what is scored, for the record: test, …"
    )
    return parser


def _bands(text: str) -> tuple[int, ...]:
    return tuple(positive(band) for band in text.split(","))


def _quiet_libraries() -> None:
    """What GDAL and TensorFlow have to say of an error is in our line; Ctrl-C and kill end alike."""
    logging.getLogger("rasterio").setLevel(logging.CRITICAL)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _style(args: argparse.Namespace, run: Run) -> MapStyle:
    from segmenter.maps import MapStyle

    return MapStyle(
        classes=run.classes,
        folder=args.output,
        format=args.format,
        nodata=args.nodata,
        codes_by_default=run.recipe.dataset.kind == "naic2020",
        tags={"RUN": run.recipe.name},
    )


def _plan(
    args: argparse.Namespace, run: Run, inputs: Inputs, style: MapStyle
) -> tuple[list[MapJob], list[SegmenterError]]:
    """Jobs from the inputs' headers, and the errors of those that cannot be mapped."""
    from tqdm import tqdm

    from segmenter.inputs import output_names
    from segmenter.maps import MapJob, Request, plan_maps

    part = _part(args)
    request = Request(args.bands or run.bands, run.band_count, part, args.max_pixels)
    plans = plan_maps(output_names(inputs.files), request, style, args.labels)
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
        raise DatasetError(f"--bbox {' '.join(map(str, args.bbox))}: touches none of the {beside} inputs")
    if beside:
        print(f"{beside} inputs lie beside the bounding box")
    if inputs.left_out:
        print(f"{len(inputs.left_out)} files of the folders are no images by name: {inputs.left_out[0]}, …")
    return jobs, failures


def _join(inputs: Inputs, jobs: Sequence[MapJob], failures: Sequence[SegmenterError]) -> None:
    """Let the windows of all jobs look over the borders of their files, also into those beside a box."""
    from segmenter.mosaic import Mosaic

    if failures:
        raise DatasetError(f"--mosaic: expected inputs that can all be read; {failures[0]}")
    mosaic = Mosaic(inputs.files, jobs[0].request.open)
    for job in jobs:
        job.mosaic = mosaic


def _part(args: argparse.Namespace) -> Any:
    from segmenter.maps import Bounds

    if args.window is not None:
        row, col, height, width = args.window
        if min(row, col) < 0 or min(height, width) < 1:
            raise DatasetError(f"--window: expected ROW COL ≥ 0 and HEIGHT WIDTH ≥ 1, got {args.window}")
        return Window(row, col, height, width)
    if args.bbox is None:
        return None
    left, bottom, right, top = args.bbox
    if not (left < right and bottom < top and all(map(math.isfinite, args.bbox))):
        raise DatasetError(f"--bbox: expected numbers, LEFT < RIGHT and BOTTOM < TOP, got {args.bbox}")
    return Bounds(left, bottom, right, top)


def _refuse_overwriting(jobs: Sequence[MapJob], inputs: Inputs, output: Path) -> None:
    """No map may replace an image or a label, and a second call must not take maps for images."""
    if any(folder.resolve() == output.resolve() for folder in inputs.folders):
        raise DatasetError(f"--output {output}: expected another folder than that of the inputs")
    kept = {path.resolve() for path in inputs.files}
    kept |= {job.label.resolve() for job in jobs if job.label is not None}
    for job in jobs:
        if job.output.resolve() in kept:
            raise DatasetError(
                f"--output {output}: {job.output} would replace an input; choose another folder"
            )


def _warn_of_differences(run: Run, jobs: Sequence[MapJob]) -> None:
    """One line for each way in which inputs differ from what the model has seen."""
    notes: Counter[str] = Counter()
    first: dict[str, Path] = {}
    for job in jobs:
        for note in _differences(run, job):
            notes[note] += 1
            first.setdefault(note, job.info.path)
    for note, count in notes.items():
        more = f" and {count - 1} more" if count > 1 else ""
        print(f"warning: {first[note]}{more}: {note}", file=sys.stderr)


def _differences(run: Run, job: MapJob) -> list[str]:
    found = []
    if job.info.dtype != run.dtype:
        found.append(f"values are {job.info.dtype}, the model was trained on {run.dtype}")
    mine, theirs = job.info.metres_per_pixel, run.metres_per_pixel
    if mine and theirs and not theirs / 2 <= mine <= theirs * 2:
        found.append(f"a pixel is {mine:.2g} m, the model was trained on {theirs:.2g} m")
    if job.output.suffix == ".png" and job.info.georeferenced:
        found.append("its georeference is lost in a PNG; --format geotiff keeps it")
    return found


def _map(args: argparse.Namespace, run: Run, style: MapStyle, jobs: Sequence[MapJob]) -> Outcome:
    import numpy as np
    from tqdm import tqdm

    from segmenter.maps import write_maps
    from segmenter.prediction import Wanted
    from segmenter.raster import remove_leftovers

    item_bytes = max(np.dtype(job.info.dtype).itemsize for job in jobs)
    tiling = tiling_for(args, run, [job.part.size for job in jobs], Wanted(), item_bytes)
    predict = run.predictor(symmetries=args.symmetries)
    made = not args.output.exists()
    if not made:
        remove_leftovers(args.output)
    pixels, start = sum(job.part.size.pixels for job in jobs), time.perf_counter()
    try:
        with tqdm(total=pixels, unit="pixel", unit_scale=True, disable=None) as bar:
            outcome = write_maps(jobs, tiling, predict, style, bar)
    finally:
        if made and args.output.is_dir() and not any(args.output.iterdir()):
            args.output.rmdir()
    done = sum(job.part.size.pixels for job in outcome.written) / 1e6
    rate = done / (time.perf_counter() - start)
    if outcome.written:
        maps = f"{len(outcome.written)} map{'s' * (len(outcome.written) > 1)}"
        print(f"{maps} in {args.output}: {done:.1f} Mpixel, {rate:.2f} Mpixel/s")
    return outcome


def _check_protocol(args: argparse.Namespace, run: Run) -> None:
    """Refuse a protocol that does not fit before hours are spent."""
    if args.labels is None and (args.protocol or args.label_kind):
        raise DatasetError("--protocol and --label-kind say how to score: they need --labels")
    if args.labels is not None:
        from segmenter.scores import ConfusionMatrix

        ConfusionMatrix(run.classes).scores(_protocol(args, run, ()))


def _protocol(args: argparse.Namespace, run: Run, scenes: Sequence[str]) -> Any:
    from segmenter.scores import Protocol

    kind = args.label_kind or run.labels
    if args.protocol:
        return Protocol.published(args.protocol, labels=kind, split=args.split_name, scenes=scenes)
    return Protocol(tuple(run.classes.names), kind, args.split_name, scenes=tuple(scenes))


def _score(args: argparse.Namespace, run: Run, outcome: Outcome) -> None:
    """Table, JSON and picture of the maps that have a label."""
    from segmenter.figures import confusion_figure

    assert outcome.confusion is not None
    protocol = _protocol(args, run, [job.name for job in outcome.scored])
    scores = outcome.confusion.scores(protocol)
    print(scores.table())
    scores.write(args.output / "scores.json")
    confusion_figure(scores, args.output / "confusion.png", f"{run.recipe.name}: {protocol}")


def _not_scored(error: SegmenterError) -> SegmenterError:
    return DatasetError(f"{error} (the map is written, its scores are left out)")


def _end_like_ctrl_c(signal_number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end_like_ctrl_c)  # `kill` too removes what is half-written
    sys.exit(run_script(main))
