"""Class maps from images: `python predict.py RUN INPUT... --output DIR`; `--help` has the rest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from segmenter.base.errors import grouped, run_tool
from segmenter.base.terminal import enduring_output
from segmenter.mapping.request.options import parse

if TYPE_CHECKING:
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.mapping.request.truth import Images
    from segmenter.runs.ensemble import AnyRun


def run(arguments: Sequence[str] | None = None) -> int:
    """The whole program: signals, errors as one line, a reader that goes away; gives the exit code."""
    from segmenter.mapping.quiet import install_hooks

    install_hooks()
    with enduring_output():
        return run_tool(lambda: main(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read aloud: each stage is one call that returns a named value; gives the exit code."""
    request = parse(arguments)

    # rasterio and TensorFlow are imported once they are needed: --help answers at once.
    from segmenter.mapping.quiet import quiet_libraries
    from segmenter.mapping.session import output_folder

    quiet_libraries()
    with output_folder(request.output):
        return _predict(request)


def _predict(request: MapRequest) -> int:
    # ------------------------------------------------------------------ the model and the images
    from segmenter.runs.ensemble import joined
    from segmenter.runs.run import load_run

    run = joined([load_run(path) for path in request.runs])
    images = _find_images(request, run)

    # ------------------------------------------------------------------ maps, scores, pictures
    from segmenter.mapping.session import map_rasters

    mapped = map_rasters(request, run, images)

    # ------------------------------------------------------------------ what went wrong
    for line in grouped(str(error) for error in mapped.failures):
        print(f"error: {line}", file=sys.stderr)
    return mapped.exit_code


def _find_images(request: MapRequest, run: AnyRun) -> Images:
    """The inputs, or the scenes of a recipe's split, with the labels that they are scored with."""
    from segmenter.config.reading import load_recipe
    from segmenter.mapping.request.truth import check_root, images_of_inputs, images_of_split
    from segmenter.mapping.session import lines_of_notes

    from .. import layout_of, load_dataset

    if request.split is None:
        section = run.recipe.dataset
        named = request.labels is not None or (section.kind == "folder" and len(section.images) > 1)
        return images_of_inputs(request, run, layout_of(run.recipe) if named else None)
    recipe = run.recipe if request.recipe is None else load_recipe(request.recipe)
    where = request.recipe or request.runs[0] / "recipe.yaml"
    check_root(recipe.dataset.root, request.remote, where)
    dataset = load_dataset(recipe)
    left_out = ((reason, file) for file, reason in dataset.unused)
    for note in (*lines_of_notes(left_out), *dataset.notes):
        print(note)
    return images_of_split(dataset, layout_of(recipe), request.split, run, where)
