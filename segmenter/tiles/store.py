"""Store of scenes: reads tiles straight from the files where that is cheap, else from a decoded copy.

A window of a JPEG, a PNG or a striped, compressed TIFF costs decoding most of the file. Such scenes are
decoded once into plain arrays beside the index and mapped into memory; tiled TIFFs, and files that are
hardly larger than a tile, are read as they are.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import DatasetError
from segmenter.geometry import Size, Window
from segmenter.labels import IGNORE
from segmenter.raster import Raster, RasterInfo, open_raster, raster_info, read_label
from segmenter.scenes import Dataset, Scene
from segmenter.threads import in_threads
from segmenter.tiles.decoded import BLOCK_ROWS, DecodedScene, Rows, sweep

_OPEN_PER_THREAD = 32
"""Rasters a thread keeps open: 32 × 2 threads stay far below the usual limit of 1024 files."""
_CHEAP_PIXELS = 4
"""A file of at most so many tiles' pixels is read whole for little more than a tile."""
_VALIDITY = 2
"""Number of the rule which pixels have data: copies made under another are made anew."""
_STRIP_ROWS = 4 * BLOCK_ROWS
_FOLDER = "decoded"

Tile = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]


class SceneStore:
    """Windows of the scenes of one split, from any thread."""

    def __init__(
        self, dataset: Dataset, scenes: Sequence[Scene], tile: int, cache: Path, *, progress: bool = True
    ) -> None:
        """Decode what cannot be read in windows cheaply into `cache`; done once, shown with a bar.

        Raises:
            DatasetError: the copies would not fit on the disk.
            OutputError: they did not.
        """
        self._dataset, self._scenes = dataset, tuple(scenes)
        self._local = threading.local()
        images = [scene.image for scene in self._scenes]
        infos = list(in_threads(raster_info, images, description="headers", unit="scene", progress=progress))
        self._sizes = [info.size for info in infos]
        slow = [i for i, info in enumerate(infos) if not _cheap(info, tile)]
        self._copies = {i: _Copy(dataset, self._scenes[i], infos[i].size, cache) for i in slow}
        if left := sweep(cache / _FOLDER):
            print(
                f"{cache / _FOLDER}: half-written copies that killed trainings left, removed: {left}",
                file=sys.stderr,
            )
        new = [i for i in slow if not self._copies[i].decoded.exists]
        copies = [self._copies[i].decoded for i in new]
        if damaged := [copy for copy in copies if copy.is_there]:
            what = "of the decoded copies damaged, or of another format: made anew"
            print(f"{damaged[0].folder.parent}: {len(damaged)} {what}", file=sys.stderr)
        _check_space(cache, [infos[i] for i in new])
        done = in_threads(
            DecodedScene.write, copies, description="decoding scenes once", unit="scene", progress=progress
        )
        for _ in done:
            pass

    @property
    def class_names(self) -> list[str]:
        """Of the dataset, in the order of the ids."""
        return self._dataset.classes.names

    def read(self, scene: int, window: Window) -> Tile:
        """(image (H, W, C), valid (H, W), class ids (H, W)) of a window; beyond the scene it is not valid.

        Pixels without data are 0 in the image and `IGNORE` in the label.
        """
        if scene in self._copies:
            image, valid, label = self._copies[scene].read(window)
        else:
            raster = self._raster(scene)
            image, valid = raster.read(window)
            label = _label(self._dataset, self._scenes[scene], window, valid.shape, raster.info)
        label[~valid] = IGNORE
        return image, valid, label

    def read_label(self, scene: int, window: Window) -> NDArray[np.uint8]:
        """Class ids (H, W) of a window, also where the image has no data; `IGNORE` beyond the scene."""
        if scene in self._copies:
            return self._copies[scene].read_label(window)
        shape, info = (window.height, window.width), self._raster(scene).info
        return _label(self._dataset, self._scenes[scene], window, shape, info)

    def size(self, scene: int) -> Size:
        """Size of a scene."""
        return self._sizes[scene]

    def window_in_scene(self, scene: int, window: Window) -> Window:
        """The window moved so that it lies in its scene, as far as the scene is large enough."""
        size = self._sizes[scene]
        row = max(0, min(window.row, size.height - window.height))
        col = max(0, min(window.col, size.width - window.width))
        return Window(row, col, window.height, window.width)

    def _raster(self, scene: int) -> Raster:
        """This thread's handle: GDAL's may not be shared between threads."""
        if not hasattr(self._local, "open"):
            self._local.open = OrderedDict()
        handles: OrderedDict[int, Raster] = self._local.open
        if scene not in handles:
            if len(handles) >= _OPEN_PER_THREAD:
                handles.popitem(last=False)[1].close()
            handles[scene] = open_raster(self._scenes[scene].image, self._dataset.bands)
        handles.move_to_end(scene)
        return handles[scene]


def _cheap(info: RasterInfo, tile: int) -> bool:
    return info.size.pixels <= _CHEAP_PIXELS * tile * tile or info.tiled


def _label(
    dataset: Dataset, scene: Scene, window: Window, shape: tuple[int, ...], info: RasterInfo
) -> NDArray[np.uint8]:
    """Class ids of a window that may reach beyond the scene."""
    label_HW = np.full(shape, IGNORE, np.uint8)
    inside = window.intersection(Window.of(info.size))
    if scene.label is not None and inside.size.pixels:
        raw = read_label(scene.label, inside, expand_palette=dataset.expand_palette)
        label_HW[inside.relative_to(window).slices()] = dataset.classes.decode(raw, str(scene.label))
    return label_HW


class _Copy:
    """A scene that is read from its decoded copy."""

    def __init__(self, dataset: Dataset, scene: Scene, size: Size, cache: Path) -> None:
        files = [path for path in (scene.image, scene.label) if path is not None]
        stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        key = repr((_VALIDITY, stamps, dataset.bands, dataset.classes.to_dict(), dataset.expand_palette))
        folder = cache / _FOLDER / hashlib.sha256(key.encode()).hexdigest()[:24]
        self._size = size
        self.decoded = DecodedScene(folder, size, functools.partial(_bands_of_rows, dataset, scene))

    def read_label(self, window: Window) -> NDArray[np.uint8]:
        inside = window.intersection(Window.of(self._size))
        label = np.full((window.height, window.width), IGNORE, np.uint8)
        label_HW = self.decoded.rows(inside.row, inside.row_stop)[2]
        label[inside.relative_to(window).slices()] = label_HW[inside.slices()]
        return label

    def read(self, window: Window) -> Tile:
        inside = window.intersection(Window.of(self._size))
        image_HWC, valid_HW, label_HW = self.decoded.rows(inside.row, inside.row_stop)
        source, target = inside.slices(), inside.relative_to(window).slices()
        image = np.zeros((window.height, window.width, image_HWC.shape[2]), image_HWC.dtype)
        valid = np.zeros((window.height, window.width), np.bool_)
        label = np.full(valid.shape, IGNORE, np.uint8)
        image[target], valid[target], label[target] = image_HWC[source], valid_HW[source], label_HW[source]
        return image, valid, label


def _bands_of_rows(dataset: Dataset, scene: Scene) -> Iterator[Rows]:
    """A scene from the top, decoded in strips of rows."""
    with open_raster(scene.image, dataset.bands) as raster:
        size = raster.info.size
        for row in range(0, size.height, _STRIP_ROWS):
            strip = Window(row, 0, min(_STRIP_ROWS, size.height - row), size.width)
            image, valid = raster.read(strip)
            yield image, valid, _label(dataset, scene, strip, valid.shape, raster.info)


def _check_space(cache: Path, infos: Sequence[RasterInfo]) -> None:
    """Refuse to decode what would not fit on the disk: a byte for validity and one for the class a pixel."""
    needed = sum(info.size.pixels * (info.count * np.dtype(info.dtype).itemsize + 2) for info in infos)
    if not needed:
        return
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise DatasetError(
            f"{cache}: decoding {len(infos)} scenes takes {needed / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB "
            "are free; free some, name another folder in dataset.cache, or convert them to tiled GeoTIFF"
        )
    _announce(cache, infos, needed)


def _announce(cache: Path, infos: Sequence[RasterInfo], needed: int) -> None:
    """Say what is about to be written beside the data, where, and how to have it elsewhere."""
    times = needed / max(1, sum(info.path.stat().st_size for info in infos))
    size = f"{needed / 2**30:.1f} GiB" if needed >= 2**30 else f"{needed / 2**20:.1f} MiB"
    print(
        f"{len(infos)} scenes cannot be read in windows (JPEG, PNG or striped TIFF) and are decoded once: "
        f"{size}, {times:.1f} times their images, in {cache}; dataset.cache names another folder"
    )
