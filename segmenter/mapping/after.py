"""After the maps of a call: pictures, polygons, a project, and what goes into a bucket."""

from __future__ import annotations

from segmenter.errors import SegmenterError
from segmenter.mapping.outputs import MapStyle
from segmenter.mapping.polygons import PolygonFile
from segmenter.mapping.project import project_of
from segmenter.mapping.request import MapRequest
from segmenter.mapping.scoring import Outcome
from segmenter.mapping.upload import Uploads, finish_uploads
from segmenter.runs.ensemble import AnyRun


def finish(
    request: MapRequest,
    run: AnyRun,
    style: MapStyle,
    outcome: Outcome,
    polygons: PolygonFile | None,
    uploads: Uploads | None,
) -> list[SegmenterError]:
    """Draw, write and upload what is asked for beside the maps; gives what went wrong."""
    failures: list[SegmenterError] = []
    if request.pictures:
        from segmenter.mapping.pictures import draw_views  # brings matplotlib

        failures += draw_views(outcome, style)
    if polygons is not None:
        failures += polygons.write(outcome)
    made = [*outcome.written, *outcome.kept]
    return failures + finish_uploads(uploads, request, made) + project_of(request, run, style, made)
