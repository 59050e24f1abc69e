"""After the maps of a call: pictures, polygons, and what goes into a bucket."""

from __future__ import annotations

from segmenter.base.errors import SegmenterError
from segmenter.extras.upload import Uploads, finish_uploads
from segmenter.extras.vectors.mapped import PolygonFile
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.scoring import Outcome


def finish(
    request: MapRequest,
    style: MapStyle,
    outcome: Outcome,
    polygons: PolygonFile | None,
    uploads: Uploads | None,
) -> list[SegmenterError]:
    """Draw, write and upload what is asked for beside the maps; gives what went wrong."""
    failures: list[SegmenterError] = []
    if request.pictures:
        from segmenter.mapping.outputs.pictures import draw_views  # brings matplotlib

        failures += draw_views(outcome, style)
    if polygons is not None:
        failures += polygons.write(outcome)
    return failures + finish_uploads(uploads, request, [*outcome.written, *outcome.kept])
