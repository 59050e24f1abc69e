"""Questions of a page: points of a sample, without what the map says of them, and findings of a review."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from segmenter.base.errors import DatasetError, plain
from segmenter.base.invocation import invocation, quote_path
from segmenter.evaluation.drawing import hex_colour
from segmenter.extras.accuracy.labelling import PointLabels
from segmenter.extras.review.answers import finding_of, finding_table
from segmenter.extras.vector_files.answers import AnswerRow
from segmenter.extras.view import colouring
from segmenter.extras.view.colouring import Coloured, Pixels
from segmenter.extras.view.layers import Bands, ImageLayer, Layer, Sample
from segmenter.extras.view.opening import Wanted, band_names, opened_maps, usual_bands
from segmenter.extras.view.pyramid import Pyramid
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import LabelIds, RasterInfo, raster_info


class PointQuestions:
    """Points to label, each in the image of its map; see `labelling.Questions`."""

    kind = "points"

    def __init__(self, path: Path, images: Path | None = None) -> None:
        """Open the points.

        Args:
            images: folder of the maps' images; None: where predict.py found them.

        Raises:
            DatasetError: they are not as `accuracy sample` writes them.
        """
        self._points, self._images = PointLabels(path), images
        self.table, self.title = self._points.table, path.name
        self.done = f"{invocation('accuracy')} estimate {quote_path(path)}"
        self._layers: dict[str, Pyramid] = {}

    @cached_property
    def classes(self) -> list[dict[str, str]]:
        """Classes of the maps; a colour would be the map's."""
        return [{"name": name, "colour": ""} for name in self._points.classes]

    def facts(self, row: AnswerRow) -> dict[str, Any]:
        """Return number and place of a point."""
        at, number = self._points.pixel(row), self._points.number(row)
        detail = f"{row.values['map']}, row {at.row}, column {at.col}"
        return {"number": number, "title": "", "detail": detail}

    def layers(self, row: AnswerRow) -> dict[str, Pyramid]:
        """Return the image."""
        name = str(row.values["map"])
        if name not in self._layers:
            path = self._points.maps.get(name)
            if path is None or not path.is_file():
                raise DatasetError(name, "this map is not where it was sampled", remedy="put it back there")
            ((shown,), _) = opened_maps(Wanted((path,), self._images))
            if "image" not in shown.layers:
                raise DatasetError(shown.notes[0])
            self._layers[name] = pyramid_of(shown.layers["image"])
        return {"image": self._layers[name]}

    def pixels(self, row: AnswerRow) -> tuple[Window, tuple[Window, ...]]:
        """Return the point's pixel."""
        return self._points.pixel(row), ()

    def intervals(self) -> list[tuple[int, float, float]]:
        """Return intervals of the overall accuracy."""
        self._points.count()
        return self._points.intervals

    def picture(self, row: AnswerRow) -> Path | None:
        """Return the picture that `accuracy sample --chips` made."""
        return self._points.picture(row)

    def close(self) -> None:
        """Close the files."""
        self.table.close()
        for pyramid in self._layers.values():
            pyramid.layer.close()


def pyramid_of(layer: Layer) -> Pyramid:
    """Return a layer in its usual bands."""
    return Pyramid(layer, layer.choice(()))


Scenes = Mapping[str, tuple[Scene, Dataset]]


class FindingQuestions:
    """Findings to be answered, each in its scene's image and label; see `labelling.Questions`."""

    kind = "findings"

    def __init__(
        self, path: Path, run: Path, root: str | None, load: Callable[[], Scenes], classes: ClassMap
    ) -> None:
        """Open the findings.

        Args:
            run: run, or folder of folds, that they are of.
            root: folder of its data, if they were moved since the training.
            load: returns its labelled scenes by name, with their dataset.

        Raises:
            DatasetError: they are not as `segmenter review` writes them.
        """
        self._path, self._load, self._classes = path, load, classes
        self.table, self.title = finding_table(path), path.name
        self.done = f"{invocation('review')} {quote_path(run)} --accept {quote_path(path)}"
        self.done += f" --root {plain(shlex.quote(root))}" if root else ""
        self._layers: dict[str, dict[str, Pyramid]] = {}

    @property
    def classes(self) -> list[dict[str, str]]:
        """Classes of the run."""
        return [{"name": one.name, "colour": hex_colour(one.colour)} for one in self._classes.classes]

    @cached_property
    def _scenes(self) -> Scenes:
        return self._load()

    def facts(self, row: AnswerRow) -> dict[str, Any]:
        """Return place, label and likely class of a finding."""
        one = finding_of(self._path, row)
        return {
            "number": one.rank,
            "title": f"Labelled {one.label}, likely {one.likely}",
            "detail": f"{one.scene}, row {one.window.row:,}, column {one.window.col:,}: "
            f"{one.wrong:,.0f} pixels are expected to be wrong",
            "label": one.label,
            "likely": one.likely,
            "side": max(one.window.height, one.window.width),
        }

    def layers(self, row: AnswerRow) -> dict[str, Pyramid]:
        """Return image and label of the scene."""
        title = finding_of(self._path, row).scene
        if title not in self._layers:
            if title not in self._scenes:
                raise DatasetError(title, "is no labelled scene of the run", remedy="review it anew")
            scene, dataset = self._scenes[title]
            info = raster_info(scene.image)
            bands = dataset.bands or usual_bands(info)
            usual = bands[:3] if len(bands) > 2 else bands[:1]
            image = ImageLayer(scene.image, band_names(info), usual, Window.of(info.size))
            label = SceneLabel(scene, dataset.classes, info)
            self._layers[title] = {"image": pyramid_of(image), "label": pyramid_of(label)}
        return self._layers[title]

    def pixels(self, row: AnswerRow) -> tuple[Window, tuple[Window, ...]]:
        """Return the finding's rectangle and cells."""
        one = finding_of(self._path, row)
        return one.window, one.cells

    def intervals(self) -> list[tuple[int, float, float]]:
        """Return none: findings are no sample."""
        return []

    def picture(self, row: AnswerRow) -> Path | None:
        """Return None: there is no other picture."""
        return None

    def close(self) -> None:
        """Close the files."""
        self.table.close()
        for pyramids in self._layers.values():
            for pyramid in pyramids.values():
                pyramid.layer.close()


class SceneLabel(Layer):
    """Label of a scene, in the colours of its classes."""

    def __init__(self, scene: Scene, classes: ClassMap, info: RasterInfo) -> None:
        assert scene.label is not None, "it has findings"
        self._path, self._classes, self._info = scene.label, classes, info
        super().__init__("label", "label", info.size, info.size)

    def read(self, window: Window, bands: Bands) -> Pixels:
        label = LabelIds(self._path, self._classes, self._info)
        try:
            ids_HW = label.read(window)
        finally:
            label.close()
        return ids_HW[..., None], ids_HW != IGNORE

    def colour(self, pixels: Pixels, bands: Bands, sample: Sample) -> Coloured:
        return colouring.classes(pixels, [one.colour for one in self._classes.classes])
