"""Labels that are probably wrong, and places to label next: `segmenter review RUN`.

Labelled scenes are mapped by runs that did not learn from them: a folder of folds (`train --folds`), or one
run's validation and test scenes. Places whose labels these maps contradict most come first: `review.csv`,
`review.gpkg`, and `review.html` with pictures. `segmenter view review/review.gpkg` takes answers to them, and
`--accept review/review.gpkg` writes labels with the accepted ones into the run. With `--unlabelled IMAGES` it
writes where in these images the next label teaches most: `next.csv`, `next.gpkg`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from segmenter.base.addresses import is_address, mask_secrets
from segmenter.base.errors import ConfigError, SegmenterError, counted, failing, plain
from segmenter.base.files import check_writable, exclusive_outputs, make_folder
from segmenter.base.invocation import ToolParser, installation, invocation, needing, quote_path
from segmenter.base.options import option
from segmenter.base.terminal import say, warn

from .frame import parse_quietly, tool_parser

if TYPE_CHECKING:
    from segmenter.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class ReviewRequest:
    """Options of a review."""

    run: Path = option(
        ..., "run directory, or a folder of folds made by `train --folds`", "RUN", positional=True
    )
    unlabelled: tuple[str, ...] = option(
        (),
        "images without labels in which the places to label next are proposed, in place of a review of "
        "labels",
        "IMAGES",
        several=True,
        path=True,
    )
    accept: Path | None = option(
        None,
        "answered findings, review.gpkg: write all labels with the accepted ones, to RUN/labels_mended",
        "FILE",
    )
    output: Path | None = option(None, "folder to write the results to (default: review)", "FOLDER")
    root: str | None = option(
        None,
        "folder of the run's images and labels, if they were moved since the training",
        "FOLDER",
        path=True,
    )
    cell: int | None = option(
        None,
        "side of the square cells that are compared, in pixels (default: 16; with --unlabelled 128)",
        "PX",
        least=1,
    )
    most: int | None = option(None, "largest number of findings to list (default: 200)", "N", least=1)
    points: int | None = option(
        None, "number of places to propose, with --unlabelled (default: 50)", "N", least=1
    )
    apart: int | None = option(
        None,
        "least distance between proposed places, in pixels, with --unlabelled (default: 256)",
        "PX",
        least=1,
    )
    sets: Literal["0.8", "0.9", "0.95"] | None = option(
        None,
        "order the proposed places by how many classes their pixels may have, in sets that hold the right "
        "class for this share (as predict --sets), with --unlabelled (default: by the entropy)",
    )
    insist: bool = option(
        False,
        "accept images whose data type or range of values differs from the training's, with --unlabelled "
        "(default: they are refused)",
    )
    overwrite: bool = option(
        False,
        "replace results of an earlier review, with --accept labels (default: existing files are an error)",
    )

    def __post_init__(self) -> None:
        if self.cell is not None and self.cell < _LEAST_CELL:
            raise ConfigError("--cell", expected=f"at least {_LEAST_CELL} pixels", got=self.cell)
        if self.unlabelled and self.root is not None:
            raise ConfigError("--root", "is for labelled scenes", remedy="leave it out beside --unlabelled")
        if not self.unlabelled and (self.points or self.apart or self.insist or self.sets):
            names = "--points, --apart, --sets and --insist"
            raise ConfigError(names, "are for --unlabelled", remedy="name its images")
        if self.unlabelled and self.accept is not None:
            raise ConfigError("--accept", "is for findings in labels", remedy="leave --unlabelled out")
        if self.accept is not None and (self.output or self.cell or self.most):
            names = "--output, --cell and --most"
            raise ConfigError(names, "are for a new review", remedy="leave them out beside --accept")
        if self.unlabelled and self.most:
            raise ConfigError("--most", "is for findings in labels", remedy="say --points with --unlabelled")

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return self.output or Path("review")


_LEAST_CELL = 8


_NEEDED = {".gpkg": ("vectors", ("shapely", "pyogrio"))}
"""Files that an extra writes, with the extra and its packages."""
_CELL, _PLACE, _PLACES, _APART, _MOST = 16, 128, 50, 256, 200
"""Sides of squares if none is asked, of findings and of places to label; places, pixels between; findings."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the findings, or the places of the next labels; return the exit code."""
    request = parse_quietly(_parser(), ReviewRequest, arguments)

    from segmenter.extras.review.held_out import runs_of

    runs = runs_of(request.run)
    if request.accept is not None:
        _accept(runs, request, request.accept)
    else:
        (_next if request.unlabelled else _review)(runs, request)
    return 0


def _accept(runs: Sequence[Run], request: ReviewRequest, findings: Path) -> None:
    with needing("vectors", "answers"):
        from segmenter.extras.review.answers import answered_findings
    from segmenter.extras.review.held_out import judges_of
    from segmenter.extras.review.mended import FOLDER, write_mended

    from ..known import dataset_of_run, whole_scenes_of_run

    folder = request.run / FOLDER
    if folder.exists() and not request.overwrite:
        raise SegmenterError(folder, "is there already", remedy="add --overwrite")
    found = answered_findings(findings)
    judges = judges_of(runs, partial(dataset_of_run, root=request.root))
    done = write_mended(judges, whole_scenes_of_run(runs[0], request.root), found, folder)
    say(str(folder))
    say(
        f"{counted(done.files, 'label')}, {counted(done.findings, 'accepted finding')} of {len(found)}: "
        f"{counted(done.pixels, 'pixel')} changed"
    )


def _review(runs: Sequence[Run], request: ReviewRequest) -> None:
    from segmenter.evaluation.drawing import hex_colour
    from segmenter.extras.review.findings import findings
    from segmenter.extras.review.held_out import judge_scenes, judges_of
    from segmenter.extras.vector_files.database import REFERENCE

    from ..known import dataset_of_run

    judges = judges_of(runs, partial(dataset_of_run, root=request.root))
    for note in dict.fromkeys(note for judge in judges for note in judge.dataset.notes):
        say(plain(note))
    classes = runs[0].classes
    with _files(request, "review", (".csv", ".gpkg", ".html")) as files:
        all_judged = list(judge_scenes(judges, request.cell or _CELL))
        found = findings(all_judged, len(classes), request.most or _MOST)
        names = classes.names
        columns = {
            "label": [names[each.label] for each in found],
            "likely": [names[each.likely] for each in found],
            "wrong_pixels": [round(each.wrong, 1) for each in found],
            "share": [round(each.share, 4) for each in found],
        }
        if ".html" in files:
            from segmenter.extras.review.page import write_page

            write_page(found, request.run, classes, files[".html"])
        answers = {
            "cells": [each.cells_text for each in found],
            REFERENCE: [None] * len(found),
        }
        tables = {
            "classes": {"class": names, "colour": [hex_colour(each.colour) for each in classes.classes]},
            "runs": {
                "run": [os.path.relpath(request.run.absolute(), request.folder.absolute())],
                "root": [_written_root(request.root)],
            },
        }
        _write([each.place for each in found], columns, files, answers, tables)
    for file in files.values():
        say(str(file))
    if ".gpkg" in files:
        say(f"answer them: {invocation('view')} {quote_path(files['.gpkg'])}", aside=True)
    wrong = sum(each.wrong for each in found)
    of = f"{counted(len(found), 'finding')} of {counted(len(all_judged), 'scene')}"
    say(f"{of}: {wrong:,.0f} pixels are expected to be wrong")
    if ".csv" in files:
        say(f"look: segmenter predict {quote_path(request.run)} --split validation --output maps/")
        say(f"      segmenter view maps/ --places {quote_path(files['.csv'])}")


def _written_root(root: str | None) -> str | None:
    if root is None:
        return None
    return mask_secrets(root) if is_address(root) else os.path.abspath(root)


def _next(runs: Sequence[Run], request: ReviewRequest) -> None:
    from segmenter.api.layouts import layout_of
    from segmenter.extras.review.teaching import spots

    wanted, apart = request.points or _PLACES, request.apart or _APART
    how = (request.cell or _PLACE, wanted, apart)
    with _files(request, "next", (".csv", ".gpkg")) as files:
        promise = None if request.sets is None else float(request.sets)
        layout = layout_of(runs[0].recipe.dataset)
        found = spots(runs, request.unlabelled, *how, layout=layout, insist=request.insist, promise=promise)
        names = runs[0].classes.names
        columns = {
            "score": [round(each.score, 6) for each in found],
            "doubt": [round(each.doubt, 4) for each in found],
            "disagreement": [round(each.disagreement, 4) for each in found],
            "likely": [", ".join(names[k] for k in each.likely) for each in found],
        }
        _write([each.place for each in found], columns, files)
    for file in files.values():
        say(str(file))
    less = f" of {wanted}: no others have data and are {apart} pixels apart" if len(found) < wanted else ""
    say(f"{counted(len(found), 'place')}{less}, to label next")


@contextlib.contextmanager
def _files(request: ReviewRequest, stem: str, endings: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Yield the files to write by ending, the first one last; say which are left out for lack of an extra.

    Raises:
        SegmenterError: a file exists, cannot be written, or is being written by another process.
    """
    with failing(SegmenterError, request.folder, "cannot make this folder"):
        make_folder(request.folder)
    files = {}
    for ending in endings:
        path = request.folder / f"{stem}{ending}"
        extra, packages = _NEEDED.get(ending, ("", ()))
        if missing := [name for name in packages if find_spec(name) is None]:
            warn(f"{path.name} is left out: it needs the package {missing[0]}: {installation(extra)}")
            continue
        check_writable(path)
        files[ending] = path
    remedy = "name another --output, or add --overwrite"
    with exclusive_outputs(*files.values(), overwrite=request.overwrite, remedy=remedy):
        yield files


def _write(
    places: Sequence[Any],
    columns: dict[str, Any],
    files: dict[str, Path],
    answers: Mapping[str, Any] | None = None,
    tables: Mapping[str, Any] | None = None,
) -> None:
    """Write polygons, then the table: a call that was stopped before it goes on when it is given again."""
    from segmenter.extras.review import places as of_places

    if ".gpkg" in files:
        of_places.write_polygons(places, {**columns, **(answers or {})}, files[".gpkg"], tables)
    of_places.write_table(places, columns, files[".csv"])


_CALLS = {
    "runs/mine --output review": "list places where labels are probably wrong",
    "runs/mine --accept review/review.gpkg": "write labels with the accepted findings",
    "runs/mine --unlabelled more/ --points 50 --output next": "propose 50 places to label next",
}


def _parser() -> ToolParser:
    return tool_parser("review", __doc__, ReviewRequest, calls=_CALLS)
