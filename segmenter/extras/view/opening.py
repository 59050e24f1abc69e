"""Maps of a page, opened with all layers that lie on their grids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import DatasetError, SegmenterError, counted, failing
from segmenter.base.files import caches, on_disk, real
from segmenter.extras.view.layers import DifferenceLayer, ImageLayer, LabelLayer, MapLayer, ShareLayer
from segmenter.extras.view.overviews import Overviews
from segmenter.extras.view.places import FoundPlaces
from segmenter.extras.view.routes import MapPages, PlaceList
from segmenter.extras.view.shown_map import MapLegend, ShownMap, place_in
from segmenter.extras.view.windows import WindowList
from segmenter.extras.written_map import MapClass, WrittenMap, maps_in
from segmenter.grid.colours import default_colours
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap, Encoding, LandCoverClass
from segmenter.grid.scenes import Layout
from segmenter.mapping.folder.journal import Journal, label_rule
from segmenter.mapping.request.truth import LabelPattern
from segmenter.mapping.style import CONFIDENCE, PROBABILITIES
from segmenter.raster import raster_info
from segmenter.raster.header import RasterInfo, names_of
from segmenter.raster.placement import PlacedLabels
from segmenter.raster.stamps import file_digest

_LISTS = {"errors": "most errors", "differences": "most differences", "confidence": "least sure"}
"""Layer → title of the list of its worst windows."""
_ANY = re.compile(".*")


@dataclass(frozen=True)
class Wanted:
    """Files of a page.

    Attributes:
        maps: maps and folders of maps.
        images: folder of their images; None: where the journal of their folder says.
        labels: pattern of their labels' files.
        beside: folder of other maps of the same images.
        places: files of places in the maps.
    """

    maps: tuple[Path, ...]
    images: Path | None = None
    labels: str | None = None
    beside: Path | None = None
    places: tuple[Path, ...] = ()


def map_pages(wanted: Wanted, *, now: bool = False) -> MapPages:
    """Return the answers of the page, and have what it lists looked for, in the background or now.

    Raises:
        SegmenterError: see `opened_maps`.
    """
    maps, legend = opened_maps(wanted)
    overviews = Overviews()
    worst = [
        WindowList(id, title, having, legend.names)
        for id, title in _LISTS.items()
        if (having := [shown for shown in maps if id in shown.layers])
    ]
    given = [FoundPlaces(path, maps) for path in wanted.places]
    for path, each in zip(wanted.places, given, strict=True):
        if each.left_out:
            overviews.remarks.append(f"{path}: {counted(each.left_out, 'place')} in none of these maps")
    for listed in worst:
        if now:
            listed.read_all(overviews)
        else:
            listed.begin(overviews)
    lists: list[PlaceList] = [*given, *worst]
    title = str(wanted.maps[0]) if len(wanted.maps) == 1 else counted(len(maps), "map")
    return MapPages(title, maps, legend, lists, overviews)


def opened_maps(wanted: Wanted) -> tuple[list[ShownMap], MapLegend]:
    """Return the maps with their layers.

    Raises:
        SegmenterError: there is no map, or one cannot be read. What is missing beside one is a note.
    """
    maps = [ShownMap.of(str(number), path) for number, path in enumerate(maps_in(wanted.maps))]
    legend = MapLegend()
    for shown in maps:
        legend.take(shown.classes)
    others = {} if wanted.beside is None else {path.stem: path for path in maps_in([wanted.beside])}
    for path in others.values():
        with WrittenMap(path, with_confidence=False) as opened:
            legend.take(opened.classes)
    opening = _Opening(wanted, legend, others)
    for shown in maps:
        opening.add_layers(shown)
    return maps, legend


class _Opening:
    """Facts that all maps of one call share."""

    def __init__(self, wanted: Wanted, legend: MapLegend, others: dict[str, Path]) -> None:
        self._wanted, self._legend, self._others = wanted, legend, others
        self._palette = legend.colours
        self._journals: dict[Path, Journal] = {}
        self._images: dict[str, Path] = {}
        if wanted.images is not None:
            with failing(SegmenterError, wanted.images, "cannot read it"):
                self._images = {path.name: path for path in sorted(wanted.images.iterdir(), reverse=True)}
        layout = Layout(Path(), _ANY, _ANY, "")
        self._labels = None if wanted.labels is None else LabelPattern(wanted.labels, layout)

    def add_layers(self, shown: ShownMap) -> None:
        """Open all that lies beside a map, from the lowest layer to the highest."""
        image = self._image_of(shown)
        if image is None:
            what = f" {shown.source}" if shown.source else ""
            shown.notes.append(f"{shown.name}: its image{what} was not found; --images DIR says where it is")
        else:
            shown.add(lambda: self._image(shown, image))
        ids = self._legend.take(shown.classes)
        own = MapLayer("map", "map", shown.path, shown.block, ids, self._palette, Window.of(shown.info.size))
        shown.layers["map"] = own
        if self._labels is not None:
            shown.add(lambda: self._label(shown, image or shown.path))
        if self._others:
            shown.add(lambda: self._other_map(shown))
        for id, title, ending, bands in (
            ("confidence", "confidence", CONFIDENCE, ()),
            ("probabilities", "probability", PROBABILITIES, [each.name for each in shown.classes]),
        ):
            path = shown.path.with_name(shown.path.stem + ending)
            if path.is_file():
                shown.add(lambda args=(id, title, path, shown.info.size, bands): ShareLayer(*args))  # type: ignore[misc]
        for id, title, of in (("errors", "errors", "label"), ("differences", "differences", "beside")):
            if isinstance(other := shown.layers.get(of), MapLayer | LabelLayer):
                shown.layers[id] = DifferenceLayer(id, title, own, other)

    def _image_of(self, shown: ShownMap) -> Path | None:
        """Return a map's image: by its name in the folder given, or where the journal says."""
        if self._wanted.images is not None:
            named = self._images.get(shown.source)
            return named or next(
                (path for path in self._images.values() if path.stem == shown.path.stem), None
            )
        entry = self._journal(shown).find(shown.path.stem)
        return Path(entry.source) if entry is not None and Path(entry.source).is_file() else None

    def _journal(self, shown: ShownMap) -> Journal:
        folder = shown.path.parent
        if folder not in self._journals:
            self._journals[folder] = Journal(folder)
        return self._journals[folder]

    def _image(self, shown: ShownMap, path: Path) -> ImageLayer:
        if shown.digest and on_disk(path) and file_digest(path) != shown.digest:
            shown.notes.append(
                f"{shown.name}: {path} has changed since, or is another image than it was made of"
            )
        info = raster_info(path)
        return ImageLayer(path, band_names(info), usual_bands(info), place_in(info, shown.info))

    def _label(self, shown: ShownMap, image: Path) -> LabelLayer:
        assert self._labels is not None
        try:
            path = self._labels.label(image)
        except DatasetError:
            path = self._labels.label(shown.path)
        info, classes = raster_info(path), self._label_classes(shown)
        if classes is None:
            classes = _class_map(shown.classes, info.count >= 3)
        try:
            place = place_in(info, shown.info)
        except SegmenterError:
            placed = PlacedLabels(caches() / "labels", classes)
            made = placed.label(str(real(shown.path)), shown.path, path, shared=not self._labels.has_fields)
            if made is None:
                raise DatasetError(path, f"does not reach the map {shown.path.name}") from None
            path, place, classes = made, place_in(raster_info(made), shown.info), placed.classes
        return LabelLayer(path, classes, self._legend.take(shown.classes), self._palette, place)

    def _label_classes(self, shown: ShownMap) -> ClassMap | None:
        """Return the class map by which the recipe reads labels; None if the map's journal is not there."""
        rule = self._journal(shown).settings(label_rule(shown.weights))
        with suppress(ValueError, SegmenterError):  # of another version
            if rule is not None and len(classes := ClassMap.from_dict(rule)) == len(shown.classes):
                return classes
        return None

    def _other_map(self, shown: ShownMap) -> MapLayer:
        path = self._others.get(shown.path.stem)
        if path is None:
            raise DatasetError(f"--beside {self._wanted.beside}", f"has no map {shown.path.name}")
        with WrittenMap(path, with_confidence=False) as opened:
            ids, block = self._legend.take(opened.classes), opened.block
            place = place_in(opened.info, shown.info)
        return MapLayer("beside", f"beside: {path.parent.name}", path, block, ids, self._palette, place)


def _colour_classes(classes: Sequence[MapClass]) -> list[LandCoverClass]:
    """Return classes with colours, also of a map without a colour table."""
    colours = default_colours([each.name for each in classes], [each.colour for each in classes])
    return [
        LandCoverClass(each.name, colour, each.code) for each, colour in zip(classes, colours, strict=True)
    ]


def _class_map(classes: Sequence[MapClass], is_colours: bool) -> ClassMap:
    """Return what a map's classes say of labels; where a file says that a pixel is none, it is none."""
    encoding: Encoding = "colours" if is_colours else "codes"
    return ClassMap(tuple(_colour_classes(classes)), encoding, nodata="ignore")


def band_names(info: RasterInfo) -> list[str]:
    """Return the names of all bands."""
    return [name or f"band {number}" for number, name in enumerate(names_of(info), 1)]


def usual_bands(info: RasterInfo) -> tuple[int, ...]:
    """Return red, green and blue by name; else the first three bands that are no alpha, or the first."""
    names = names_of(info)
    if {"red", "green", "blue"} <= {*names}:
        return tuple(names.index(name) + 1 for name in ("red", "green", "blue"))
    others = [band for band in range(1, info.count + 1) if band not in info.alpha] or [1]
    return tuple(others[:3] if len(others) > 2 else others[:1])
