"""Store of scenes: tiles from packs, or from the files themselves if that is cheap.

Reading a window of a JPEG, a PNG or a striped, compressed TIFF means decoding most of the file. Such images
and labels are decoded once into packs beside the index; tiled TIFFs, and files hardly larger than a tile, are
read directly, unless `segmenter pack` has packed them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.base.files import gibibytes, on_disk
from segmenter.base.invocation import invocation
from segmenter.base.terminal import say
from segmenter.base.threads import in_threads
from segmenter.config.datasets import CacheCodec
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import KnownRasters, RasterInfo, raster_info
from segmenter.raster.validity import fill_void, void_in_bands
from segmenter.tiles.cache.file import CachedArray, DamagedError, Kind
from segmenter.tiles.cache.folder import CacheFolder, PackJob, bytes_read, key_of, pack

_MOST_OPEN = 64
"""Rasters a thread keeps open at most; all threads together take half of the files that are allowed."""
_CHEAP_PIXELS = 4
"""Tiles' pixels up to which a file is read whole for little more than a tile."""

Tile = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]


class SceneStore:
    """Windows of the scenes of one split, for any thread and, after pickling, other processes."""

    def __init__(
        self,
        dataset: Dataset,
        scenes: Sequence[Scene],
        tile: int,
        cache: Path,
        *,
        mean_C: Sequence[float] = (),
        progress: bool = True,
    ) -> None:
        """Find packs in `cache`; pack files whose windows are expensive to read, with a progress bar.

        Args:
            mean_C: mean of each band, which replaces single bands without data; empty: they keep their value.

        Raises:
            DatasetError: the packs would exceed the size limit.
            OutputError: the packs do not fit on the disk.
        """
        self._dataset, self._scenes = dataset, tuple(scenes)
        self._files, self._folder = KnownRasters(), CacheFolder(cache, shared=dataset.cache is not None)
        self._local = threading.local()
        self._small, self._progress = _CHEAP_PIXELS * tile * tile, progress
        self._mean_C = tuple(mean_C)
        tell_leftovers(self._folder)
        self._folder.look()
        tell_damaged(self._folder)
        self._packed: dict[tuple[int, Kind], CachedArray] = {}
        self._full: dict[int, bool] = {}
        self._find()
        tell_replaced(self._folder)
        bare = [i for i in range(len(self._scenes)) if (i, "image") not in self._packed]
        images = [self._scenes[i].image for i in bare]
        headers = in_threads(self._header, images, description="headers", unit="scene", progress=progress)
        infos = dict(zip(bare, headers, strict=True))
        self._sizes = [
            infos[i].size if i in infos else self._packed[i, "image"].content.size
            for i in range(len(self._scenes))
        ]
        if self._packed:
            say(self._packs_line())
        self._pack(infos, progress)
        if line := self._told_remote():
            say(line)

    def _find(self) -> None:
        """Find existing packs, and keep other processes from removing them."""
        for _ in range(3):
            self._packed = {}
            for i, scene in enumerate(self._scenes):
                for kind in ("image", "label"):
                    key = key_of(self._dataset, scene, kind)
                    if key is not None and (array := self._folder.find(key)) is not None:
                        self._packed[i, kind] = array
            if self._folder.hold(dict.fromkeys(one.pack.path.name for one in self._packed.values())):
                return
            self._folder.look()  # some have just been removed
        self._packed = {}

    def _pack(self, infos: dict[int, RasterInfo], progress: bool) -> None:
        """Pack images and labels that are not packed yet and are expensive to read in place."""
        jobs = [
            PackJob.of_image(self._dataset, self._scenes[i], info)
            for i, info in infos.items()
            if not (info.tiled or info.size.pixels <= self._small)
        ]
        large = [i for i, size in enumerate(self._sizes) if size.pixels > self._small]
        labels = [i for i in large if (i, "label") not in self._packed and self._scenes[i].label is not None]
        headers = in_threads(
            raster_info,
            [path for i in labels if (path := self._scenes[i].label) is not None],
            description="headers of labels",
            unit="scene",
            progress=progress,
        )
        slow = [i for i, info in zip(labels, headers, strict=True) if not info.tiled]
        jobs += [PackJob.of_label(self._dataset, self._scenes[i], self._sizes[i]) for i in slow]
        if not jobs:
            return
        make_room(self._folder, jobs, self._dataset.cache_bytes)
        _announce(self._folder, jobs, self._dataset.cache_codec)
        pack(self._dataset, self._folder, jobs, progress=progress)
        self._find()

    @property
    def class_names(self) -> list[str]:
        """Names of the dataset's classes, in the order of their ids."""
        return self._dataset.classes.names

    def read(self, scene: int, window: Window) -> Tile:
        """Return image (H, W, C), valid (H, W) and class ids (H, W) of a window; invalid outside the scene.

        Pixels without data are 0 in the image and `IGNORE` in the label.
        """
        if (scene, "image") in self._packed:
            image, valid = self._packed_image(scene, window)
            nodata = self._packed[scene, "image"].content.nodata
        else:
            with self._handle(scene, "image") as raster:
                image, valid = raster.read(window)
                nodata = raster.void_values
        if self._mean_C:
            fill_void(image, void_in_bands(image, valid, nodata), self._mean_C)
        label = self.read_label(scene, window)
        if not valid.all():
            label[~valid] = IGNORE
        return image, valid, label

    def outline(self, scene: int, window: Window, dtype: str) -> Tile:
        """Read a window with a one-band image of zeros, if only label and validity matter."""
        shape = (window.height, window.width)
        inside = window.intersection(Window.of(self._sizes[scene]))
        valid = np.zeros(shape, np.bool_)
        part = inside.relative_to(window).slices() if inside.size.pixels else None
        if part is not None and (scene, "image") in self._packed:
            self._from_pack(scene, "image", inside, None, valid[part])
        elif part is not None and self._is_full(scene):
            valid[part] = True
        elif part is not None:
            with self._handle(scene, "image") as raster:
                valid = raster.read(window)[1]
        label = self.read_label(scene, window)
        label[~valid] = IGNORE
        return np.zeros((*shape, 1), dtype), valid, label

    def _is_full(self, scene: int) -> bool:
        """Return True if all pixels of an image have data, judged by its header."""
        if scene not in self._full:
            with self._handle(scene, "image") as raster:
                self._full[scene] = not raster.may_have_nodata
        return self._full[scene]

    def read_label(self, scene: int, window: Window) -> NDArray[np.uint8]:
        """Return class ids (H, W) of a window, also without image data; `IGNORE` outside the scene."""
        path, inside = self._scenes[scene].label, window.intersection(Window.of(self._sizes[scene]))
        label = np.full((window.height, window.width), IGNORE, np.uint8)
        if path is None or not inside.size.pixels:
            return label
        part = label if inside == window else label[inside.relative_to(window).slices()]
        if (scene, "label") in self._packed:
            self._from_pack(scene, "label", inside, part)
        else:
            with self._handle(scene, "label") as raster:
                part[...] = raster.ids(inside)
        return label

    def size(self, scene: int) -> Size:
        """Return the size of a scene."""
        return self._sizes[scene]

    def window_in_scene(self, scene: int, window: Window) -> Window:
        """Return the window moved into its scene, if the scene is large enough."""
        size = self._sizes[scene]
        row = max(0, min(window.row, size.height - window.height))
        col = max(0, min(window.col, size.width - window.width))
        return Window(row, col, window.height, window.width)

    # --------------------------------------------------------------------------------- packs

    def _packed_image(self, scene: int, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        content = self._packed[scene, "image"].content
        shape = (window.height, window.width)
        inside = window.intersection(Window.of(self._sizes[scene]))
        make = np.empty if inside == window else np.zeros
        image, valid = make((*shape, content.shape[2]), content.dtype), make(shape, np.bool_)
        if inside.size.pixels:
            part = inside.relative_to(window).slices()
            self._from_pack(scene, "image", inside, image[part], valid[part])
        return image, valid

    def _from_pack(self, scene: int, kind: Kind, inside: Window, *out: NDArray[Any] | None) -> None:
        array = self._packed[scene, kind]
        try:
            array.read(inside, *out)
        except DamagedError as error:
            remedy = "remove it, and start again: its scenes are decoded anew"
            raise DatasetError(array.pack.path, str(error), remedy=remedy) from None

    def _packs_line(self) -> str:
        packs = {one.pack.path: one.pack.bytes for one in self._packed.values()}
        images = sum(kind == "image" for _, kind in self._packed)
        what = f"images of {images} and labels of {len(self._packed) - images}"
        return (
            f"{what} of {len(self._scenes)} scenes are read from packs: "
            f"{gibibytes(sum(packs.values()))} in {self._folder.path}"
        )

    def _told_remote(self) -> str:
        """Return a line on the files that are read from servers tile by tile; empty if there are none."""
        remote = [
            i
            for i, scene in enumerate(self._scenes)
            if not on_disk(scene.image) and (i, "image") not in self._packed
        ]
        if not remote:
            return ""
        return (
            f"images of {len(remote)} of {len(self._scenes)} scenes are read from {self._dataset.root}, with "
            f"requests for each tile; `{invocation('pack')}` fetches them once, into "
            f"{self._folder.path}"
        )

    # --------------------------------------------------------------------------------- files

    @contextlib.contextmanager
    def _handle(self, scene: int, kind: Kind) -> Iterator[Any]:
        """Yield this thread's handle: threads must not share GDAL handles.

        Small files are closed at once: GDAL would allocate new memory for each one's blocks, which costs half
        as much again as the reading.
        """
        if self._sizes[scene].pixels <= self._small:
            with self._open(scene, kind) as raster:
                yield raster
            return
        if not hasattr(self._local, "open"):
            self._local.open = OrderedDict()
        handles: OrderedDict[tuple[int, Kind], Any] = self._local.open
        if (scene, kind) not in handles:
            while len(handles) >= _most_open():
                handles.popitem(last=False)[1].close()
            handles[scene, kind] = self._open(scene, kind)
        handles.move_to_end((scene, kind))
        yield handles[scene, kind]

    def _header(self, image: Path) -> RasterInfo:
        """Return the header of an image, cached also for processes that get this store."""
        with self._files.image(image, self._dataset.bands) as raster:
            return raster.info

    def preload_labels(self) -> None:
        """Validate frequently opened labels once, before this store is sent to worker processes.

        Otherwise each process would open each label in full, with all checks.
        """
        label = {i: scene.label for i, scene in enumerate(self._scenes) if (i, "label") not in self._packed}
        opened_often = [i for i in label if self._sizes[i].pixels <= self._small]
        paths = [path for i in opened_often if (path := label[i]) is not None]
        what, classes = "headers of labels", self._dataset.classes

        def know(path: Path) -> None:
            self._files.label(path, classes).close()

        for _ in in_threads(know, paths, description=what, unit="scene", progress=self._progress):
            pass

    def _open(self, scene: int, kind: Kind) -> Any:
        files = self._scenes[scene]
        if kind == "image" or files.label is None:
            return self._files.image(files.image, self._dataset.bands)
        return self._files.label(files.label, self._dataset.classes)


@functools.cache
def _most_open() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4, min(_MOST_OPEN, allowed // 2 // (os.cpu_count() or 1)))


def tell_leftovers(folder: CacheFolder) -> None:
    """Remove leftovers of killed processes, and report them."""
    if left := folder.remove_unfinished():
        say(f"{folder.path}: half-written packs that killed processes left, removed: {left}", aside=True)


def tell_damaged(folder: CacheFolder) -> None:
    """Remove packs that are damaged as a whole, and report them."""
    if folder.damaged:
        what = "packs damaged, or of another format: their scenes are decoded anew"
        say(f"{folder.path}: {len(folder.damaged)} of the {what}", aside=True)
        folder.remove_damaged()


def tell_replaced(folder: CacheFolder) -> None:
    """Remove packs whose scenes are all in newer ones, and report them."""
    if replaced := folder.remove_replaced():
        say(f"{folder.path}: removed packs whose scenes are all in newer ones: {gibibytes(replaced)}")


def make_room(folder: CacheFolder, jobs: Sequence[PackJob], limit: int | None) -> None:
    """Make room for jobs, and report removed packs."""
    if removed := folder.make_room(sum(job.bytes for job in jobs), limit):
        what = "removed packs that were not used for longest (dataset.cache_limit)"
        say(f"{folder.path}: {what}: {gibibytes(removed)}")


def _announce(folder: CacheFolder, jobs: Sequence[PackJob], codec: CacheCodec) -> None:
    """Print the files to be written beside the data, their folder, and how to choose another one."""
    needed = sum(job.bytes for job in jobs)
    times = needed / max(1, bytes_read(jobs))
    images = sum(job.kind == "image" for job in jobs)
    most = "" if codec == "none" else "at most "
    say(
        f"images of {images} and labels of {len(jobs) - images} scenes are stored in blocks as wide as the "
        f"image (JPEG, PNG, striped or small TIFF), so each is decoded once: {most}{gibibytes(needed)}, "
        f"{times:.1f} times their files, in {folder.path}; dataset.cache names another folder"
    )
