"""Overviews of large layers: made in the background, in the user's cache, under the files' states.

An overview is a raster for each level from a lowest one on, with the layer's values and a band that says
where there are any. Those of a foreign file are not used: nobody knows how they were made. All of them have
a bound on disk; the least recently used go first.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError
from segmenter.base.files import caches, gibibytes
from segmenter.base.keyed_folder import KeyedFolder
from segmenter.extras.view.colouring import Pixels
from segmenter.extras.view.open_files import OpenFiles
from segmenter.extras.view.pyramid import Pyramid, behind, level_size, reduce_squares
from segmenter.grid.geometry import Size, Window
from segmenter.raster import RasterSpec, RasterWriter, open_raster, remove_leftovers

MOST_BYTES = 4 << 30
"""Bytes of all overviews on disk."""
_SIDE = 2048
"""Side in pixels of what is read at once."""
_LOWEST, _LARGE, _LOWEST_OF_LARGE = 2, 1 << 31, 4
"""Lowest level that is kept; pixels from which on another is, so that it takes a 256th of the raster."""
_VERSION = 1
_NICE, _THREADS = 10, 2
"""Two threads: what is looked at does not wait for what is listed."""


class Overviews:
    """Overviews of a page's pyramids, made by two threads, what was asked for last first.

    Attributes:
        remarks: lines on those that cannot be made.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = KeyedFolder(folder or caches() / "overviews"), most_bytes
        self.remarks: list[str] = []
        self._waiting: deque[tuple[Pyramid, Callable[[], None]]] = deque()
        self._more = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []

    def ask(
        self, pyramid: Pyramid, afterwards: Callable[[], None] = lambda: None, *, soon: bool = True
    ) -> None:
        """Make a pyramid's overview, then call `afterwards`; asked for again, it may only come sooner."""
        with self._more:
            if pyramid.done is not None:
                for place in [each for each in self._waiting if soon and each[0] is pyramid]:
                    self._waiting.remove(place)
                    self._waiting.appendleft(place)
                return
            pyramid.done = 0.0
            (self._waiting.appendleft if soon else self._waiting.append)((pyramid, afterwards))
            self._more.notify()
            if len(self._threads) < _THREADS:
                self._threads.append(threading.Thread(target=self._work, daemon=True))
                self._threads[-1].start()

    def close(self) -> None:
        """Stop; what is begun is left out."""
        with self._more:
            self._closed = True
            self._more.notify_all()
        for thread in self._threads:
            thread.join()
        self._folder.release()

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone: tiles go first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._more:
                self._more.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                pyramid, afterwards = self._waiting.popleft()
            try:
                self.make(pyramid)
            except _StoppedError:
                return
            except SegmenterError as error:
                self.remarks.append(f"no overview of {pyramid.layer.title}: {error}")
                pyramid.done = 1.0  # it stays thinned
            afterwards()

    # ------------------------------------------------------------------------------------------- files

    def make(self, pyramid: Pyramid) -> None:
        """Make what is missing of a pyramid's overview, level by level; a small one needs none.

        Raises:
            SegmenterError: a file cannot be read, or the overview takes too much of the disk.
        """
        if pyramid.is_large and not pyramid.overviews:
            self._provide(pyramid)
        pyramid.done = 1.0

    def _provide(self, pyramid: Pyramid) -> None:
        lowest = _LOWEST if pyramid.layer.size.pixels < _LARGE else _LOWEST_OF_LARGE
        key, path = pyramid.layer.key(pyramid.bands), self._folder.path
        all_levels = range(lowest, pyramid.top + 1)
        names = {level: f"{key}-{_VERSION}-{level}.tif" for level in all_levels}
        if not all((path / name).exists() for name in names.values()):
            with self._folder.writing():
                remove_leftovers(path)
                for level in all_levels:
                    share = 0.0 if level == lowest else 0.95
                    self._make(pyramid, level, path / names[level], share, lowest)
        if self._folder.hold(names.values()):
            for level, name in names.items():
                pyramid.overviews[level] = _open_overview(path / name)
            pyramid.version += 1

    def _make(self, pyramid: Pyramid, level: int, path: Path, share: float, lowest: int) -> None:
        """Write one level: the lowest one from the layer, others from the one before."""
        layer, size, is_lowest = pyramid.layer, level_size(pyramid.layer.size, level), level == lowest
        probe, _ = layer.read(Window(0, 0, 1, 1), pyramid.bands)
        spec = RasterSpec(dtype=probe.dtype.name, bands=probe.shape[2] + 1)
        with contextlib.ExitStack() as stack:
            if level > lowest:
                before = stack.enter_context(
                    open_raster(path.with_name(path.name.replace(f"-{level}.", f"-{level - 1}.")))
                )
                read, factor, of = _overview_reader(before.read), 2, level_size(layer.size, level - 1)
            else:
                read, factor, of = (lambda window: layer.read(window, pyramid.bands)), 1 << level, layer.size
            writer = stack.enter_context(RasterWriter(path, size, spec))
            places = list(_windows(size, _SIDE // factor))
            for number, window in enumerate(places):
                self._check_going(path)
                own = behind(window, factor, of)
                if is_lowest and layer.empty(own):
                    values = np.zeros((window.height, window.width, probe.shape[2]), probe.dtype)
                    valid = np.zeros((window.height, window.width), np.bool_)
                else:
                    values, valid = reduce_squares(read(own), factor, by_mean=layer.by_mean)
                band = valid[..., None].astype(values.dtype)
                writer.write(window, np.concatenate([values, band], axis=2))
                pyramid.done = max(
                    share, share + (number + 1) / len(places) * (0.95 if level == lowest else 0.04)
                )

    def _check_going(self, path: Path) -> None:
        """Make room on the disk.

        Raises:
            SegmenterError: there is none.
        """
        if self._closed:
            raise _StoppedError
        files = [(each.stat().st_mtime, each.stat().st_size, each) for each in self._folder.files()]
        taken = sum(size for _, size, _ in files)
        for _, size, each in sorted(files):
            if taken <= self._most:
                return
            if not each.name.startswith((".", path.name.rpartition("-")[0])) and self._folder.remove(each):
                taken -= size
        if taken > self._most:
            raise SegmenterError(self._folder.path, f"overviews take at most {gibibytes(self._most)}")


class _StoppedError(Exception):
    """The page was closed."""


def _windows(size: Size, side: int) -> Iterator[Window]:
    for row in range(0, size.height, side):
        for col in range(0, size.width, side):
            yield Window(row, col, side, side).intersection(Window.of(size))


def _overview_reader(read: Callable[[Window], Pixels]) -> Callable[[Window], Pixels]:
    """Return a reader of an overview's values, and where there are any."""

    def pixels(window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        values = read(window)[0]
        return values[..., :-1], values[..., -1] > 0

    return pixels


def _open_overview(path: Path) -> OpenFiles[Any]:
    return OpenFiles(path, lambda: open_raster(path))
