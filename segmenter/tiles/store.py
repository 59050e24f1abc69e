"""Store of scenes: reads tiles straight from the files where that is cheap, else from a decoded copy.

A window of a JPEG, a PNG or a striped, compressed TIFF costs decoding most of the file. Such scenes are
decoded once into plain arrays beside the index and mapped into memory; tiled TIFFs, and files that are
hardly larger than a tile, are read as they are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import resource
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
from segmenter.raster import KnownRasters, LabelRaster, RasterInfo, open_raster, raster_info
from segmenter.scenes import Dataset, Scene
from segmenter.threads import in_threads
from segmenter.tiles.decoded import BLOCK_ROWS, DecodedScene, Rows, sweep

_MOST_OPEN = 64
"""Rasters a thread keeps open at most; all threads together take half of the files that are allowed."""
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
        self._local, self._files = threading.local(), KnownRasters()
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
            image, valid = self._open(self._scenes[scene].image, is_label=False).read(window)
            label = self._in_place(scene, window)
        if not valid.all():
            label[~valid] = IGNORE
        return image, valid, label

    def read_label(self, scene: int, window: Window) -> NDArray[np.uint8]:
        """Class ids (H, W) of a window, also where the image has no data; `IGNORE` beyond the scene."""
        if scene in self._copies:
            return self._copies[scene].read_label(window)
        return self._in_place(scene, window)

    def size(self, scene: int) -> Size:
        """Size of a scene."""
        return self._sizes[scene]

    def window_in_scene(self, scene: int, window: Window) -> Window:
        """The window moved so that it lies in its scene, as far as the scene is large enough."""
        size = self._sizes[scene]
        row = max(0, min(window.row, size.height - window.height))
        col = max(0, min(window.col, size.width - window.width))
        return Window(row, col, window.height, window.width)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def _in_place(self, scene: int, window: Window) -> NDArray[np.uint8]:
        """Class ids of a window of the label file, which may reach beyond the scene."""
        path, inside = self._scenes[scene].label, window.intersection(Window.of(self._sizes[scene]))
        if path is None or not inside.size.pixels:
            return _decoded(self._dataset, path, window, inside, None)
        return _decoded(self._dataset, path, window, inside, self._open(path, is_label=True).read(inside))

    def _open(self, path: Path, *, is_label: bool) -> Any:
        """This thread's handle: GDAL's may not be shared between threads."""
        if not hasattr(self._local, "open"):
            self._local.open = OrderedDict()
        handles: OrderedDict[tuple[Path, bool], Any] = self._local.open
        if (path, is_label) not in handles:
            while len(handles) >= _most_open():
                handles.popitem(last=False)[1].close()
            handles[path, is_label] = (
                self._files.label(path, expand_palette=self._dataset.expand_palette)
                if is_label
                else self._files.image(path, self._dataset.bands)
            )
        handles.move_to_end((path, is_label))
        return handles[path, is_label]


@functools.cache
def _most_open() -> int:
    """Rasters that each thread may keep open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4, min(_MOST_OPEN, allowed // 2 // (os.cpu_count() or 1)))


def _cheap(info: RasterInfo, tile: int) -> bool:
    return info.size.pixels <= _CHEAP_PIXELS * tile * tile or info.tiled


def _decoded(
    dataset: Dataset, path: Path | None, window: Window, inside: Window, raw: NDArray[Any] | None
) -> NDArray[np.uint8]:
    """Class ids of a window; `raw`: what the label file holds of the part inside the scene, if anything."""
    if raw is None:
        return np.full((window.height, window.width), IGNORE, np.uint8)
    ids = dataset.classes.decode(raw, str(path))
    if inside == window:
        return ids
    label_HW = np.full((window.height, window.width), IGNORE, np.uint8)
    label_HW[inside.relative_to(window).slices()] = ids
    return label_HW


class _Copy:
    """A scene that is read from its decoded copy."""

    def __init__(self, dataset: Dataset, scene: Scene, size: Size, cache: Path) -> None:
        files = [path for path in (scene.image, scene.label) if path is not None]
        stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        key = repr((_VALIDITY, stamps, dataset.bands, dataset.classes.to_dict(), dataset.expand_palette))
        folder = cache / _FOLDER / hashlib.sha256(key.encode()).hexdigest()[:24]
        self._size = size
        self.decoded = DecodedScene(folder, size, lambda: _bands_of_rows(dataset, scene))

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
    with contextlib.ExitStack() as stack:
        raster = stack.enter_context(open_raster(scene.image, dataset.bands))
        label = None
        if scene.label is not None:
            label = stack.enter_context(LabelRaster(scene.label, expand_palette=dataset.expand_palette))
        size = raster.info.size
        for row in range(0, size.height, _STRIP_ROWS):
            strip = Window(row, 0, min(_STRIP_ROWS, size.height - row), size.width)
            image, valid = raster.read(strip)
            raw = None if label is None else label.read(strip)
            yield image, valid, _decoded(dataset, scene.label, strip, strip, raw)


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
