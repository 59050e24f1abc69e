"""Maps of a page, opened with all their layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.extras.view.routes import MapPages
from segmenter.extras.view.shown_map import MapLegend, ShownMap, image_layer, image_of, map_layer
from segmenter.extras.written_map import maps_in
from segmenter.mapping.folder.journal import Journal


def opened_maps(given: Sequence[Path], *, images: Path | None = None) -> MapPages:
    """Return the page of maps and folders of maps.

    Raises:
        SegmenterError: there is no map, or one cannot be read.
    """
    maps = [ShownMap.of(str(number), path) for number, path in enumerate(maps_in(given))]
    legend = MapLegend()
    ids = [legend.take(shown.classes) for shown in maps]
    palette = legend.colours
    journals = {shown.path.parent: Journal(shown.path.parent) for shown in maps}
    for shown, own in zip(maps, ids, strict=True):
        try:
            if (image := image_of(shown, images, journals)) is None:
                shown.notes.append(f"{shown.name}: its image was not found; --images DIR says where it lies")
            else:
                shown.layers["image"] = image_layer(shown, image)
        except SegmenterError as error:
            shown.notes.append(f"{shown.name}: {error}")
        shown.layers["map"] = map_layer(shown, own, palette)
    title = str(given[0]) if len(given) == 1 else f"{len(maps)} maps"
    return MapPages(title, maps, legend)
