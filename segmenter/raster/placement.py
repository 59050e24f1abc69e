"""Label rasters of another grid, resolution or CRS, resampled to each image's grid by georeference.

The rule: an image pixel takes the label at its centre. If the label's pixels are smaller, it takes the most
frequent value at evenly spread points (ties: the value at the centre). Values are never mixed. Pixels outside
the label raster are ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.warp import reproject

from segmenter.base.errors import DatasetError, LabelError, RasterError
from segmenter.base.sealed import digest
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, UNKNOWN, ClassMap, rasterised_classes
from segmenter.raster.gdal.faults import naming
from segmenter.raster.ground import crs_title, extent_text, length, metres_apart
from segmenter.raster.header import RasterInfo
from segmenter.raster.label import LabelRaster
from segmenter.raster.made import MadeLabels
from segmenter.raster.opening import files_behind
from segmenter.raster.polygons import between, box_around, cover_pixels, ring_around, to_pixels
from segmenter.raster.reading import raster_info

_VERSION = 1
"""Version of the rules of placing; it is part of the name."""
_OUTSIDE = 256
"""Value for pixels that the label raster does not reach, outside the range of ids."""
_LEAST_POINTS, _MOST_POINTS = 4, 32
"""Along each side of a pixel that takes the value of most."""
_FINER = 1.01
"""Label pixels in one of the image from which on it takes the value of most."""
_SIDE = 1024
"""Pixels of the image that are placed at once; points or pixels of the label, four times that."""
_MARGIN = 2
_MOST_VALUES = 8


class PlacedLabels(MadeLabels):
    """Makes labels by one class map; safe to use from several threads, and by several processes."""

    def __init__(self, folder: Path, classes: ClassMap, drivers: Sequence[str] = ()) -> None:
        """Store a folder, `classes` of the label rasters, and `drivers` as in `open_raster`."""
        super().__init__(folder, digest([_VERSION, classes.to_dict()], 64))
        self._theirs, self._drivers = classes, tuple(drivers)
        self.classes = rasterised_classes(classes)
        self._behind: dict[Path, list[Path]] = {}

    def sources(self, image: Path, source: Path) -> list[Path]:
        """Return the image, and the label raster with all that is read for it."""
        if source not in self._behind:
            self._behind[source] = files_behind(source, self._drivers)
        return [*self._behind[source], image]

    def _open(self, label: Path) -> LabelRaster:
        return LabelRaster(label, self._theirs, drivers=self._drivers)

    def make(self, path: Path, image: Path, source: Path, shared: bool) -> bool:
        """Write a label; return False where a shared raster does not reach the image."""
        info = raster_info(image)
        with self._open(source) as label:
            placing = _Placing(label, info, self._theirs)

            def wanted() -> bool:
                reaches = placing.beside < info.size.pixels
                if not reaches and not shared:
                    raise _elsewhere(source, info, label.info)
                if reaches:
                    placing.refuse_unknown()
                return reaches

            return self.write(path, info, {"PLACED": source.name}, placing.strips(), wanted)

    def notes(self, pairs: Sequence[tuple[Path, Path]]) -> tuple[str, ...]:
        """Return a line that says how labels were resampled; `pairs`: images, label rasters over them."""
        kinds: Counter[str] = Counter()
        infos: dict[Path, RasterInfo] = {}
        for image, label in pairs:
            if label not in infos:
                with self._open(label) as raster:
                    infos[label] = raster.info
            info = raster_info(image)
            kinds["the majority" if _per_pixel(info, infos[label])[0] > _FINER else "nearest"] += 1
        first, *others = infos.values()
        crs = "no CRS" if first.crs is None else crs_title(first.crs)
        size = "" if first.metres_per_pixel is None else f", pixels of {length(first.metres_per_pixel)}"
        more = f" and {len(others)} more" if others else ""
        line = f"labels: {first.path} ({crs}{size}){more}, placed on {len(pairs)} images by "
        return (f"{line}{' or '.join(sorted(kinds))}, in {self.path}",)


class _Placing:
    """A label raster that is resampled to the grid of an image, strip by strip.

    Attributes:
        beside: number of pixels, in the strips so far, outside the label raster.
    """

    def __init__(self, label: LabelRaster, image: RasterInfo, classes: ClassMap) -> None:
        _check_placed(image, label.info)
        self.label, self._image, self._classes = label, image, classes
        self.beside, self._unknown = 0, Counter[str]()
        area, side = _per_pixel(image, label.info)
        whole = min(max(1, round(side)), _MOST_POINTS)
        self._points = whole * max(1, -(-_LEAST_POINTS // whole)) if area > _FINER else 1
        self._side = max(1, min(_SIDE, int(4 * _SIDE / max(side, self._points, 1))))

    def strips(self) -> Iterator[tuple[Window, NDArray[np.uint8]]]:
        """Yield the class ids of the image from the top, in strips of the image's width."""
        size = self._image.size
        for row in range(0, size.height, self._side):
            strip = Window(row, 0, min(self._side, size.height - row), size.width)
            ids_HW = np.empty((strip.height, strip.width), np.uint8)
            for col in range(0, size.width, self._side):
                part = Window(row, col, strip.height, min(self._side, size.width - col))
                values = _most(self._at_points(part), self._points)
                self.beside += int((values == _OUTSIDE).sum())
                ids_HW[part.relative_to(strip).slices()] = np.where(values == _OUTSIDE, IGNORE, values)
            yield strip, ids_HW

    def _at_points(self, window: Window) -> NDArray[np.uint16]:
        shape = window.height * self._points, window.width * self._points
        values = np.full(shape, _OUTSIDE, np.uint16)
        source = _label_pixels(self._image, self.label.info, window, _MARGIN)
        if source is None:
            return values
        raw, void = self.label.stored_values(source)
        ids = self._classes.decode_known(raw, str(self.label.info.path), void)
        fine = Affine.translation(window.col, window.row) @ Affine.scale(1 / self._points)
        assert self._image.transform is not None
        assert self.label.info.transform is not None
        plain = CRS.from_epsg(3857)  # where neither has a CRS
        with naming(self.label.info.path, f"cannot place {source}", "is its CRS right?"), rasterio.Env():
            reproject(
                ids.astype(np.uint16),
                values,
                src_transform=self.label.info.transform @ Affine.translation(source.col, source.row),
                src_crs=self.label.info.crs or plain,
                dst_transform=self._image.transform @ fine,
                dst_crs=self._image.crs or plain,
                resampling=Resampling.nearest,
                tolerance=0,  # GDAL's own is an eighth of a pixel, another one in each window
                init_dest_nodata=False,
            )
        if (values == UNKNOWN).any():
            self._unknown.update(self._classes.unknown(raw, str(self.label.info.path), void))
        return values

    def refuse_unknown(self) -> None:
        """Refuse a label if values under the image belong to no class."""
        if not self._unknown:
            return
        values = ", ".join(value for value, _ in self._unknown.most_common(_MOST_VALUES))
        more = ", …" if len(self._unknown) > _MOST_VALUES else ""
        raise LabelError(
            self.label.info.path,
            f"{self._classes.encoding} that the class map does not know: {values}{more}",
            remedy="add them to dataset.classes or dataset.ignore",
        )


class LabelPart(NamedTuple):
    """Pixels of a label that an image lies on.

    Attributes:
        window: the box around them.
        ring: (V, 2) columns and rows of points around the image; None: across a pole or the antimeridian.
    """

    window: Window
    ring: NDArray[np.float64] | None

    def covers(self, piece: Window) -> NDArray[np.bool_]:
        """Return an (H, W) mask of the pixels of a piece that the image touches."""
        if self.ring is None:
            return np.ones((piece.height, piece.width), np.bool_)
        whole = {"type": "Polygon", "coordinates": [self.ring.tolist()]}
        return cover_pixels([whole], piece, touched=True)


def part_under(image: RasterInfo, label: RasterInfo) -> LabelPart | None:
    """Return the label's pixels that an image touches; None: there are none."""
    window = Window.of(image.size)
    under = _label_pixels(image, label, window, 0)
    if under is None:
        return None
    ring = ring_around(image, window, label.crs)
    broken = label.crs is not None and label.crs.is_geographic and np.ptp(ring[:, 0]) > 180
    return LabelPart(under, None if broken else to_pixels(label)(ring))


def _label_pixels(image: RasterInfo, label: RasterInfo, window: Window, margin: int) -> Window | None:
    """Return the label's pixels that a window of an image may lie on, and `margin` more on each side."""
    left, bottom, right, top = box_around(image, window, label.crs, margin)
    corners = np.array([(x, y) for x in (left, right) for y in (bottom, top)])
    corners_on_label = to_pixels(label)(corners)
    (col, row), (col_stop, row_stop) = (
        np.clip(edge, (0, 0), (label.size.width, label.size.height)).astype(int)
        for edge in (
            np.floor(corners_on_label.min(axis=0)) - margin,
            np.ceil(corners_on_label.max(axis=0)) + margin,
        )
    )
    if row >= row_stop or col >= col_stop:
        return None
    return Window(int(row), int(col), int(row_stop - row), int(col_stop - col))


def _most(found: NDArray[np.uint16], points: int) -> NDArray[np.uint16]:
    """Return the most frequent value among each pixel's points; for ties, the value next to its centre."""
    if points == 1:
        return found
    height, width = found.shape[0] // points, found.shape[1] // points
    best = found[points // 2 :: points, points // 2 :: points].copy()
    blocks = found.reshape(height, points, width, points)
    values = np.flatnonzero(np.bincount(found.reshape(-1)))
    if len(values) == 1:
        return best
    count_VHW = np.stack([(blocks == value).sum(axis=(1, 3), dtype=np.uint16) for value in values])
    at_centre = np.take_along_axis(count_VHW, np.searchsorted(values, best)[None], axis=0)[0]
    most = count_VHW.argmax(axis=0)
    more = np.take_along_axis(count_VHW, most[None], axis=0)[0] > at_centre
    best[more] = values[most[more]]
    return best


def _check_placed(image: RasterInfo, label: RasterInfo) -> None:
    """Refuse files without the georeference that resampling needs."""
    for info in (image, label):
        if info.transform is None or info.transform.is_degenerate:
            raise RasterError(
                info.path,
                "labels are placed by the geotransforms of label and image, and it has none",
                remedy="give it one (gdal_translate -a_srs -a_ullr, or gdalwarp for control points and RPCs)",
            )
    if (image.crs is None) != (label.crs is None):
        bare, other = (image, label) if image.crs is None else (label, image)
        raise RasterError(
            bare.path,
            f"has no CRS, and {other.path} has {crs_title(other.crs)}; name its own (gdal_edit.py -a_srs)",
        )


def _elsewhere(label: Path, image: RasterInfo, info: RasterInfo) -> DatasetError:
    apart = metres_apart(image, info)
    far = "" if apart is None else f"; its centre lies {length(apart)} from that of the image"
    return DatasetError(
        label,
        expected=f"a label on {image.path}, none of it lies there{far}",
        remedy=f"the image extends over {extent_text(image)}",
    )


def _on_label(image: RasterInfo, label: RasterInfo, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert (column, row) of an image to (column, row) of a label; not finite if impossible."""
    assert image.transform is not None
    xy = np.array([image.transform @ (col, row) for col, row in at])
    move = between(image.crs, label.crs)
    return to_pixels(label)(xy if move is None else move(xy))


def _per_pixel(image: RasterInfo, label: RasterInfo) -> tuple[float, float]:
    """Return the area and the longer side of the image's central pixel, in pixels of the label."""
    col, row = image.size.width / 2, image.size.height / 2
    points = _on_label(image, label, np.array([(col, row), (col + 1, row), (col, row + 1)]))
    if not np.isfinite(points).all():
        raise RasterError(
            image.path, f"its centre has no coordinates in the CRS of {label.path}; is its CRS right?"
        )
    (a, b), (c, d) = points[1:] - points[0]
    return abs(a * d - b * c), max(math.hypot(a, b), math.hypot(c, d))
