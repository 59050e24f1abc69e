"""Stages of a mapping call, in the order in which predict.py calls them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from segmenter.api.mapping_call import MappingCall, images_of
from segmenter.base.errors import CheckpointError, DatasetError, extended_error, group_lines, plain
from segmenter.base.files import is_vector
from segmenter.base.invocation import quote_path
from segmenter.base.machine import return_freed_memory
from segmenter.base.terminal import say, stdout_for_json
from segmenter.mapping.request.map_request import MapRequest

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.grid.scenes import Dataset
    from segmenter.mapping.request.truth import Images
    from segmenter.mapping.session import MappingResult
    from segmenter.runs.ensemble import AnyRun


@contextlib.contextmanager
def output_of(call: MappingCall, *, as_json: bool) -> Iterator[TextIO | None]:
    """Make the folder of the maps, and quiet libraries; yield where JSON goes, if it is asked for."""
    # rasterio and TensorFlow are imported once they are needed: --help answers at once.
    from segmenter.mapping.session import output_folder, quiet_libraries

    quiet_libraries()
    return_freed_memory()
    with output_folder(call.request.output), stdout_for_json(as_json) as answer:
        yield answer if as_json else None


def _is_run(path: str) -> bool:
    from segmenter.runs.run import RUN_FILE

    return os.path.isfile(os.path.join(path, RUN_FILE))  # False also for what can be no path


def load_runs(request: MapRequest) -> AnyRun:
    """Return the run whose model maps, or the mean of several."""
    from segmenter.runs.ensemble import join_runs
    from segmenter.runs.run import load_run

    for path in request.runs:
        if not _is_run(str(path)) and any(map(_is_run, request.inputs)):
            raise CheckpointError(
                path, "is no run, but an input is one", remedy="the run goes first, then the images"
            )
    return join_runs([load_run(path) for path in request.runs])


def find_images(request: MapRequest, run: AnyRun) -> Images:
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


def tell(call: MappingCall, mapped: MappingResult, answer: TextIO | None) -> None:
    """Print what went wrong, and the result as JSON if there is an `answer` to write."""
    for line in group_lines(str(error) for error in mapped.failures):
        print(f"error: {line}", file=sys.stderr)
    if answer is not None:
        print(json.dumps(_facts(call, mapped), ensure_ascii=False, indent=1), file=answer)
    outcome, request = mapped.outcome, call.request
    if call.uploads is None and any(job.output.suffix == ".tif" for job in outcome.written):
        rasters = request.labels if request.labels and not is_vector(request.labels) else None
        labels = "" if rasters is None else f" --labels {quote_path(Path(rasters))}"
        say(f"look: segmenter view {quote_path(request.output)}{labels}")


def _facts(call: MappingCall, mapped: MappingResult) -> dict[str, Any]:
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
