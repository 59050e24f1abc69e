"""Class maps written by `predict.py`, read again by tools that convert them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, RasterError, SegmenterError, failing
from segmenter.base.files import Closing, real
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, UNKNOWN, Colour
from segmenter.mapping.outputs.codes import CODES, VALUES
from segmenter.mapping.style import BESIDE, CONFIDENCE, SOURCE, SOURCE_DIGEST, WEIGHTS
from segmenter.raster.gdal.faults import naming
from segmenter.raster.header import RasterInfo
from segmenter.raster.label import colour_table
from segmenter.raster.opening import open_dataset
from segmenter.raster.reading import Raster, open_raster


@dataclass(frozen=True)
class MapClass:
    """A class as stored in a map's metadata; `colour`: None if the map has no colour table."""

    name: str
    code: int
    colour: Colour | None


class WrittenMap(Closing):
    """An open class map with its confidence, if that file exists; a context manager.

    Attributes:
        weights: fingerprint of the weights that made it; of several runs each one's, with commas; empty:
            unknown, as in maps of earlier versions.
        image: digest of the image that it is of; empty: unknown.
        source: name of the image's file; empty: unknown.
    """

    def __init__(self, path: Path, *, with_confidence: bool = True) -> None:
        """Open the map and, if wanted, its confidence."""
        self.classes, self._ids, tags = _classes(path)
        self.weights, self.image, self.source = (
            tags.get(name, "") for name in (WEIGHTS, SOURCE_DIGEST, SOURCE)
        )
        self._map = open_raster(path, (1,))
        self._confidence: Raster | None = None
        beside = path.with_name(path.name.removesuffix(path.suffix) + CONFIDENCE)
        try:
            if with_confidence and beside.is_file():
                self._confidence = open_raster(beside, (1,))
                if self._confidence.info.size != self.info.size:
                    raise RasterError(
                        beside,
                        expected=f"{self.info.size} pixels as {path.name} has",
                        got=self._confidence.info.size,
                        remedy="is it of another call?",
                    )
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> RasterInfo:
        """Header of the map."""
        return self._map.info

    @property
    def block(self) -> Size:
        """See `Raster.block`."""
        return self._map.block

    def empty(self, window: Window) -> bool:
        """See `Raster.empty`."""
        return self._map.empty(window)

    @property
    def has_confidence(self) -> bool:
        """True if the largest probability of each pixel is available."""
        return self._confidence is not None

    def read(self, window: Window) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
        """Return (H, W) class ids, `IGNORE` without data, and the largest probability (0 … 1) or None."""
        raw, valid = self._map.read(window)
        ids = self._ids[raw[..., 0]]
        unknown = valid & (ids == UNKNOWN)
        if unknown.any():
            count, got = len(self.classes), raw[..., 0][unknown][0]
            raise RasterError(self.info.path, expected=f"values of its {count} classes", got=got)
        ids = np.where(valid, ids, np.uint8(IGNORE))
        if self._confidence is None:
            return ids, None
        return ids, self._confidence.read(window)[0][..., 0].astype(np.float32, copy=False)

    def close(self) -> None:
        """Close the files; `with` does it too."""
        for raster in (self._map, self._confidence):
            if raster is not None:
                raster.close()


def _classes(path: Path) -> tuple[tuple[MapClass, ...], NDArray[np.uint8], dict[str, str]]:
    """Return the classes, the id of each possible pixel value, and the metadata."""
    dataset = open_dataset(path).dataset
    with dataset, naming(path, "cannot read its metadata", "the file is damaged"):
        tags, kinds = dataset.tags(), (dataset.count, dataset.dtypes[0])
        shares = (dataset.scales[0], dataset.offsets[0]) != (1.0, 0.0)
        table = colour_table(dataset)
    names: list[str] = []
    while (name := tags.get(f"CLASS_{len(names)}")) is not None and len(names) < UNKNOWN:
        names.append(name)
    texts = [tags.get(f"CODE_{i}", "") for i in range(len(names))]
    codes = [int(text) if text.isdecimal() else i for i, text in enumerate(texts)]
    coded = tags.get(VALUES) == CODES
    drawn = [table.get(code if coded else i) for i, code in enumerate(codes)]
    colours = [None if each is None else (each[0], each[1], each[2]) for each in drawn]
    classes = [MapClass(*each) for each in zip(names, codes, colours, strict=True)]
    if classes and shares:  # confidence and probabilities name the classes, too
        raise RasterError(
            path,
            expected="a class map as predict.py writes it",
            got="a raster whose values are scaled, as confidence and probabilities are",
            remedy="name the map beside it",
        )
    if not classes or kinds not in ((1, "uint8"), *([(1, "uint16")] * coded)):
        raise RasterError(
            path,
            expected="a class map as predict.py writes it (one band of class ids or codes, the classes' "
            "names in its metadata as CLASS_0 …)",
            got=f"{kinds[0]} bands of {kinds[1]}, {len(classes)} class names",
        )
    values = [one.code if coded else value for value, one in enumerate(classes)]
    if len(set(values)) < len(values) or max(values) > 0xFFFF:
        raise RasterError(path, expected="another code for each class in its metadata", got=values)
    ids = np.full(1 << 16, UNKNOWN, np.uint8)
    ids[values] = np.arange(len(values))
    return tuple(classes), ids, tags


def maps_in(given: Iterable[Path]) -> list[Path]:
    """Return the named maps and all maps in the named folders, each once.

    Raises:
        SegmenterError: a file is not there, or a folder has no map.
    """
    return list({real(path): path for each in given for path in _maps(each)}.values())


def _maps(given: Path) -> list[Path]:
    if not given.is_dir():
        with failing(SegmenterError, given, "cannot read it"):
            given.stat()
        return [given]
    paths = [path for path in sorted(given.glob("*.tif")) if not path.name.endswith(BESIDE)]
    if not paths:
        raise SegmenterError(given, expected="GeoTIFF maps in this folder, there are none")
    return paths


def check_placed(info: RasterInfo) -> None:
    """Refuse a raster whose pixels are not placed by a transform.

    Raises:
        DatasetError: it has control points or RPCs.
    """
    if info.gcps or info.rpcs is not None:
        raise DatasetError(
            info.path,
            expected="a grid that is placed by a transform, it has control points or RPCs",
            remedy="warp it first (gdalwarp)",
        )
