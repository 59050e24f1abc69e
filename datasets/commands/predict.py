"""Class maps from images: `python predict.py RUN INPUT... --output DIR`; see also `--help`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from segmenter.api.asked import Asked, parse
from segmenter.base.errors import grouped, run_tool
from segmenter.base.terminal import enduring_output, words_aside

if TYPE_CHECKING:
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.mapping.request.truth import Images
    from segmenter.mapping.session import Mapped
    from segmenter.runs.ensemble import AnyRun


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the whole program with signal and error handling; return the exit code."""
    sys.unraisablehook, sys.excepthook = without_rasterio(sys.unraisablehook, sys.excepthook)
    with enduring_output():
        return run_tool(lambda: main(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Map the requested images, each stage by one call; return the exit code."""
    asked, as_json = parse(arguments)

    # rasterio and TensorFlow are imported once they are needed: --help answers at once.
    from segmenter.mapping.session import output_folder, quiet_libraries

    quiet_libraries()
    with output_folder(asked.request.output), words_aside(as_json) as answer:
        mapped = _predict(asked)
        if as_json:
            print(json.dumps(_facts(asked, mapped), ensure_ascii=False, indent=1), file=answer)
    return mapped.exit_code


def _predict(asked: Asked) -> Mapped:
    # ------------------------------------------------------------------ the model and the images
    from segmenter.runs.ensemble import joined
    from segmenter.runs.run import load_run

    run = joined([load_run(path) for path in asked.request.runs])
    images = _find_images(asked.request, run)

    # ------------------------------------------------------------------ maps, scores, pictures
    mapped = asked.map(run, images)

    # ------------------------------------------------------------------ what went wrong
    for line in grouped(str(error) for error in mapped.failures):
        print(f"error: {line}", file=sys.stderr)
    return mapped


def _find_images(request: MapRequest, run: AnyRun) -> Images:
    """Find the inputs, or the scenes of a recipe's split, with the labels for scoring."""
    from segmenter.config.reading import load_recipe
    from segmenter.extras.vectors.mapped import polygon_labels
    from segmenter.mapping.request.truth import check_root, images_of_inputs, images_of_split
    from segmenter.mapping.session import lines_of_notes

    from .. import layout_of, load_dataset

    if request.split is None:
        section = run.recipe.dataset
        named = request.labels is not None or (section.kind == "folder" and len(section.images) > 1)
        layout = layout_of(run.recipe) if named else None
        return images_of_inputs(request, run, layout, polygon_labels)
    recipe = run.recipe if request.recipe is None else load_recipe(request.recipe)
    where = request.recipe or request.runs[0] / "recipe.yaml"
    check_root(recipe.dataset.root, request.remote, where)
    dataset = load_dataset(recipe)
    left_out = ((reason, file) for file, reason in dataset.unused)
    for note in (*lines_of_notes(left_out), *dataset.notes):
        print(note)
    return images_of_split(dataset, layout_of(recipe), request.split, run, where)


def _facts(asked: Asked, mapped: Mapped) -> dict[str, Any]:
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
        "output": str(asked.request.output if asked.uploads is None else asked.uploads.place),
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
