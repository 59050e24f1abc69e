"""Kinds of pages of `segmenter view`, by what is given: maps, points to label, findings to answer, runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import SegmenterError
from segmenter.base.invocation import invocation, needing

if TYPE_CHECKING:
    from segmenter.extras.view.labelling import Questions
    from segmenter.extras.view.opening import Wanted
    from segmenter.extras.view.questions import Scenes
    from segmenter.extras.view.server import Routes
    from segmenter.runs.run import Run

GEOPACKAGE = ".gpkg"


@contextmanager
def routes_of(wanted: Wanted) -> Iterator[Routes]:
    """Yield the routes of the page of what is given.

    Raises:
        SegmenterError: it cannot be shown.
    """
    if any(path.suffix.lower() == GEOPACKAGE for path in wanted.maps):
        with closing(_questions(wanted)) as questions:
            from segmenter.extras.view.labelling import LabelPages

            yield LabelPages(questions).routes
        return
    if runs := [run for path in wanted.maps for run in _runs_of(path)]:
        if wanted.images or wanted.labels or wanted.beside or wanted.places:
            raise SegmenterError(
                "--images, --labels, --beside and --places",
                "are for maps",
                remedy="leave them out beside runs",
            )
        from segmenter.extras.view.runs import RunPages

        yield RunPages(runs).routes
        return
    from segmenter.extras.view.built import page_routes
    from segmenter.extras.view.opening import map_pages

    with closing(map_pages(wanted)) as pages:
        yield {**page_routes(), **pages.routes}


def _runs_of(path: Path) -> list[Path]:
    """Return a run directory itself, else the runs in a folder."""
    if not path.is_dir():
        return []
    from segmenter.runs.run import RUN_FILE, runs_in

    return [path] if (path / RUN_FILE).exists() else runs_in(path)


def _questions(wanted: Wanted) -> Questions:
    """Return points or findings."""
    path, *others = wanted.maps
    if others:
        raise SegmenterError("view", expected="one GeoPackage", got=f"{len(wanted.maps)} files")
    if wanted.labels or wanted.beside or wanted.places:
        raise SegmenterError("--labels, --beside and --places", "are for maps", remedy="leave them out")
    with needing("vectors", "GeoPackages"):
        from segmenter.extras.review.answers import is_findings
        from segmenter.extras.view.questions import PointQuestions
    if not is_findings(path):
        return PointQuestions(path, wanted.images)
    if wanted.images is not None:
        remedy = f"for data that were moved: {invocation('review')} RUN --root FOLDER"
        raise SegmenterError("--images", "is for maps and points", remedy=remedy)
    return _findings(path)


def _findings(path: Path) -> Questions:
    from segmenter.extras.review.answers import run_of_findings
    from segmenter.extras.review.held_out import runs_of
    from segmenter.extras.view.questions import FindingQuestions

    relative, root = run_of_findings(path)
    run = Path(os.path.normpath(path.absolute().parent / relative))
    own = runs_of(run)[0]
    return FindingQuestions(path, run, root, partial(_scenes, own, root), own.classes)


def _scenes(run: Run, root: str | None) -> Scenes:
    """Return the scenes of a run by name, with their dataset."""
    from ..known import whole_scenes_of_run

    dataset = whole_scenes_of_run(run, root)
    return {scene.name: (scene, dataset) for scene in dataset.scenes if scene.label is not None}
