"""Kinds of pages of `segmenter view`, by what is given: maps, points to label, findings to answer, runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import SegmenterError
from segmenter.base.invocation import installation

if TYPE_CHECKING:
    from segmenter.extras.view.labelling import Questions
    from segmenter.extras.view.questions import Scenes
    from segmenter.extras.view.server import Routes
    from segmenter.runs.run import Run

GEOPACKAGE = ".gpkg"


@contextmanager
def routes_of(given: Sequence[Path], images: Path | None) -> Iterator[Routes]:
    """Yield the routes of the page of what is given.

    Raises:
        SegmenterError: it cannot be shown.
    """
    if any(path.suffix.lower() == GEOPACKAGE for path in given):
        with closing(_questions(given, images)) as questions:
            from segmenter.extras.view.labelling import LabelPages

            yield LabelPages(questions).routes
        return
    from segmenter.extras.view.built import page_routes
    from segmenter.extras.view.opening import opened_maps

    yield {**page_routes(), **opened_maps(given, images=images).routes}


def _questions(given: Sequence[Path], images: Path | None) -> Questions:
    """Return points or findings."""
    if len(given) != 1:
        raise SegmenterError(
            "view", expected="one GeoPackage of points or findings", got=f"{len(given)} paths"
        )
    try:
        from segmenter.extras.review.answers import is_findings
        from segmenter.extras.view.questions import PointQuestions
    except ModuleNotFoundError as error:
        raise SegmenterError(
            f"GeoPackages need the package {error.name}: {installation('vectors')}"
        ) from None
    path = given[0]
    return _findings(path) if is_findings(path) else PointQuestions(path, images)


def _findings(path: Path) -> Questions:
    from segmenter.extras.review.answers import run_of_findings
    from segmenter.extras.review.held_out import runs_of
    from segmenter.extras.view.questions import FindingQuestions

    run = Path(os.path.normpath(path.absolute().parent / run_of_findings(path)))
    runs = runs_of(run)
    return FindingQuestions(path, run, partial(_scenes, runs), runs[0].classes)


def _scenes(runs: Sequence[Run]) -> Scenes:
    """Return the labelled scenes that runs held out, by title, with their datasets."""
    from segmenter.extras.review.held_out import judges_of

    from ..known import dataset_of_run

    judges = judges_of(runs, dataset_of_run)
    return {scene.title: (scene, judge.dataset) for judge in judges for scene in judge.scenes}
