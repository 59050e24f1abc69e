"""Class maps from images: `python predict.py RUN INPUT... --output DIR`; see also `--help`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.api.mapping_call import OPTIONS, MappingCall, images_of, mapping_call
from segmenter.base.errors import DatasetError, extended_error, grouped, plain, run_tool
from segmenter.base.invocation import ToolParser
from segmenter.base.machine import return_freed_memory
from segmenter.base.options import option, taken
from segmenter.base.terminal import words_aside
from segmenter.mapping.request.map_request import GROUPS, MapRequest, parse_runs

from .frame import tool_parser

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.grid.scenes import Dataset
    from segmenter.mapping.request.truth import Images
    from segmenter.mapping.session import Mapped
    from segmenter.runs.ensemble import AnyRun


_EPILOG = """\
outputs
  One map per input, DIR/STEM.tif: a tiled, compressed GeoTIFF with the CRS, transform and size of the input
  (of the part, with --bbox or --part), class ids, colours and names of the classes. With a NAIC2020 run,
  images without georeference give PNGs with the original codes. Inputs of the same stem get longer names.
  Beside it DIR/STEM.qml and DIR/STEM.tif.aux.xml show its classes by name and colour in QGIS and GDAL.
  A map appears when it is complete and checked; an older one is replaced in that moment.
  A file of that name that is no map of an earlier call is left, and the input refused, unless with --redo.

stopped and gone on
  The same command again, after whatever end, goes on: maps that are finished are checked and kept, large
  rasters go on within the file. Maps of a changed input, with another run or other options are made anew.
  docs/prediction.md has the guarantees.

scores
  --labels 'truth/{stem}.png' finds each image's label by the image's name without extension; {scene} is that
  name without a trailing _RGB, _IRRG or _RGBIR, as in 'labels/{scene}_label_noBoundary.tif'. A pattern may
  hold * and **, and must match one file per image; the {names} of the run's recipe can be used too. A label
  must lie on its image. --split test takes images and labels from the run's recipe instead. Both write
  DIR/scores.json (the total, and each scene) and DIR/confusion.png.

exit code
  0 all done; 1 some inputs failed, the others are done; 2 wrong call; 130 or 143 interrupted.
"""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the whole program without rasterio's own messages; return the exit code."""
    sys.unraisablehook, sys.excepthook = without_rasterio(sys.unraisablehook, sys.excepthook)
    return run_tool(lambda: main(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Map the requested images, each stage by one call; return the exit code."""
    call, as_json = parse(arguments)

    # rasterio and TensorFlow are imported once they are needed: --help answers at once.
    from segmenter.mapping.session import output_folder, quiet_libraries

    quiet_libraries()
    return_freed_memory()
    with output_folder(call.request.output), words_aside(as_json) as answer:
        mapped = _predict(call)
        if as_json:
            print(json.dumps(_facts(call, mapped), ensure_ascii=False, indent=1), file=answer)
    return mapped.exit_code


def _predict(call: MappingCall) -> Mapped:
    # ------------------------------------------------------------------ the model and the images
    from segmenter.runs.ensemble import joined
    from segmenter.runs.run import load_run

    run = joined([load_run(path) for path in call.request.runs])
    images = _find_images(call.request, run)

    # ------------------------------------------------------------------ maps, scores, pictures
    mapped = call.map(run, images)

    # ------------------------------------------------------------------ what went wrong
    for line in grouped(str(error) for error in mapped.failures):
        print(f"error: {line}", file=sys.stderr)
    return mapped


def _find_images(request: MapRequest, run: AnyRun) -> Images:
    """Find the inputs, or the scenes of a recipe's split, with the labels for scoring."""
    from segmenter.api.layouts import layout_of
    from segmenter.config.reading import load_recipe
    from segmenter.mapping.request.truth import check_root, images_of_split
    from segmenter.mapping.session import lines_of_notes
    from segmenter.runs.ensemble import members

    from ..known import dataset_by

    if request.split is None:
        return images_of(request, run)
    where = request.recipe or request.runs[0] / "recipe.yaml"
    first = members(run)[0]
    recipe = first.recipe if request.recipe is None else load_recipe(request.recipe)
    check_root(recipe.dataset.root, request.remote, where)
    try:
        dataset = dataset_by(recipe, first)
    except DatasetError as error:
        if request.recipe is not None:
            raise
        moved = "where the data lie elsewhere now, name a recipe that says so by --recipe"
        raise extended_error(error, remedy=moved) from None
    left_out = ((reason, file) for file, reason in dataset.unused)
    for note in (*lines_of_notes(left_out), *map(plain, dataset.notes)):
        print(note)
    images = images_of_split(dataset, layout_of(recipe.dataset), request.split, run, where)
    _check_unseen(dataset, request, run, recipe)
    return images


def _check_unseen(dataset: Dataset, request: MapRequest, run: AnyRun, recipe: Recipe) -> None:
    """Refuse scenes that trained a run, unless they are asked for."""
    from segmenter.runs.ensemble import members

    from ..known import seen_by

    scenes = [scene for scene in dataset.scenes if scene.split == request.split]
    for member in members(run) if request.split != "train" else ():
        if seen := seen_by(member, scenes, dataset, recipe, remote=request.remote):
            raise DatasetError(
                f"--split {request.split}",
                expected="scenes that trained none of the runs",
                got=f"{seen[0].image.name}, which trained {member.path}",
                remedy="score each run by itself, or name scenes that none has seen",
            )


def _facts(call: MappingCall, mapped: Mapped) -> dict[str, Any]:
    """Return the result as plain JSON: maps sorted by name, other files, scores, failures."""
    outcome = mapped.outcome
    made = {job.output.name: job for job in (*outcome.written, *outcome.kept)}
    maps = [
        {
            "map": name,
            "image": str(job.info.path),
            "files": [path.name for path in (*job.files, *job.unchecked)],
            "kept": job in outcome.kept,
        }
        for name, job in sorted(made.items())
    ]
    return {
        "output": str(call.request.output if call.uploads is None else call.uploads.place),
        "counts": {
            "written": len(outcome.written),
            "kept": len(outcome.kept),
            "failures": len(mapped.failures),
        },
        "maps": maps,
        "further": [path.name for path in outcome.further],
        "scores": None if outcome.scores is None else outcome.scores.to_dict(),
        "warnings": outcome.warnings,
        "failures": [str(error) for error in mapped.failures],
    }


Hook = Callable[..., Any]


def without_rasterio(unraisable: Hook, uncaught: Hook) -> tuple[Hook, Hook]:
    """Return Python's two hooks, silencing rasterio's output on GDAL messages that are not UTF-8."""

    def print_unraisable(what: Any) -> None:
        if not str(what.object).startswith("rasterio."):
            unraisable(what)

    def print_uncaught(kind: Any, error: Any, trace: Any) -> None:
        if not (kind is UnicodeDecodeError and trace is None):
            uncaught(kind, error, trace)

    return print_unraisable, print_uncaught


def parse(arguments: Sequence[str] | None = None) -> tuple[MappingCall, bool]:
    """Parse a command line; end the process with code 2 on an error.

    Returns:
        The call, and True if its result is wanted as JSON.

    Raises:
        DatasetError: arguments exclude each other.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--" in words:  # it gets lost where options and inputs may be mixed
        end = words.index("--")
        words[end:] = [f"./{path}" if path.startswith("-") else path for path in words[end + 1 :]]
    # Plain parse_args would take `RUN --output DIR INPUT` for a call without INPUT, since there may be none.
    given = vars(_parser().parse_intermixed_args(words))
    named = taken(_Named, given)
    return mapping_call(named.run, named.inputs, named.output, given), named.json


@dataclass(frozen=True, kw_only=True)
class _Named:
    """Runs, inputs and output that a command line names in front of the options of the call."""

    run: Path | tuple[Path, ...] = option(
        ...,
        "run directory that train.py made; several, as RUN1,RUN2, are averaged in one pass",
        "RUN",
        positional=True,
        read=parse_runs,
    )
    inputs: tuple[str, ...] = option(
        (),
        "image, folder of images (not its subfolders) or glob",
        "INPUT",
        positional=True,
        several=True,
        path=True,
    )
    output: str = option(..., "folder for the maps, or s3://BUCKET/PREFIX", "DIR", path=True)
    json: bool = option(False, "print one JSON object of what was made, and words on stderr")


def _parser() -> ToolParser:
    about = "Class maps from images, with the model of a run directory."
    # `--window` is not to be read as `--window-size`.
    how: dict[str, Any] = {"epilog": _EPILOG, "allow_abbrev": False}
    return tool_parser("predict", about, _Named, *OPTIONS, titles=GROUPS, **how)
