"""Several threads that read one raster, each from its own handle: the same windows in the same order."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.inference.events import Failed, Finished, Piece
from segmenter.inference.reading import Tiling, read_batches
from segmenter.raster import open_raster
from tests.helpers.time_limits import wait_until

TILING = Tiling(Size(48, 48), 8, 8, 3)
Make = Callable[..., Path]


class FileJob:
    """A file; `handles` that were opened, each with the threads and columns that it has read."""

    part, columns, done_rows, abandoned = None, None, 0, False

    def __init__(self, path: Path, before: Callable[[Window], None] = lambda _: None) -> None:
        self._path, self._before = path, before
        self.handles: list[tuple[set[int], set[int]]] = []
        self.open_now = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        with open_raster(self._path) as raster:
            threads, columns = set[int](), set[int]()
            self.handles.append((threads, columns))
            plain = raster.read

            def read(window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
                threads.add(threading.get_ident())
                columns.add(window.col)
                self._before(window)
                return plain(window)

            raster.read = read  # type: ignore[method-assign]
            self.open_now += 1
            try:
                yield raster
            finally:
                self.open_now -= 1


def windows(job: Any, readers: int) -> list[tuple[Window, bytes, bytes]]:
    """Each window that is read, with its kept validity and its pixels."""
    found = []
    for batch in read_batches([job], TILING, readers):
        images = iter(() if batch.image is None else batch.image)
        for entry in batch.entries:
            if isinstance(entry, Piece):
                pixels = next(images).tobytes() if entry.computed else b""
                found.append((entry.place.read, entry.valid.tobytes(), pixels))
    return found


@pytest.fixture
def image(rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 255, (203, 331, 3), np.uint8)


BLOCKS = {"tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate"}


@pytest.mark.parametrize("readers", [2, 9])
def test_several_readers_read_what_one_does_in_its_order(
    make_geotiff: Make, image: NDArray[np.uint8], readers: int
) -> None:
    masked = np.ones(image.shape[:2], np.uint8) * 255
    masked[40:150, 60:200] = 0
    path = make_geotiff("a.tif", image, masks=masked, **BLOCKS)
    alone, job = FileJob(path), FileJob(path)
    assert windows(job, readers) == windows(alone, 1)
    assert (len(alone.handles), len(job.handles)) == (1, min(readers, 5))  # runs of two windows
    assert all(len(threads) == 1 for threads, _ in job.handles), "a handle is used by one thread"
    columns = [columns for _, columns in job.handles]
    assert sum(map(len, columns)) == len(set.union(*columns)), "a handle keeps to its columns"
    assert job.open_now == 0


def test_readers_read_at_once_and_no_farther_than_one_run_each(
    make_geotiff: Make, image: NDArray[np.uint8]
) -> None:
    inside, most = set[int](), [0]
    lock = threading.Lock()

    def before(window: Window) -> None:
        with lock:
            inside.add(threading.get_ident())
            most[0] = max(most[0], len(inside))
        assert window.row or wait_until(lambda: most[0] == 3, 10), f"{most[0]} read at once"
        with lock:
            inside.discard(threading.get_ident())

    assert windows(FileJob(make_geotiff("a.tif", image, **BLOCKS), before), 3)
    assert most == [3]


def test_one_handle_reads_strips(make_geotiff: Make, image: NDArray[np.uint8]) -> None:
    job = FileJob(make_geotiff("a.tif", image, compress="deflate"))
    assert windows(job, 4)
    assert len(job.handles) == 1


def test_a_window_that_cannot_be_read_fails_the_job_in_its_turn(
    make_geotiff: Make, image: NDArray[np.uint8]
) -> None:
    path = make_geotiff("a.tif", image, **BLOCKS)

    def before(window: Window) -> None:
        if window.row > 60 and window.col > 200:
            raise RasterError(f"a.tif: cannot read {window}")

    found: list[tuple[int, str]] = []
    for readers in (1, 3):
        bad, good = FileJob(path, before), FileJob(path)
        entries = [e for batch in read_batches([bad, good], TILING, readers) for e in batch.entries]
        failed = next(e for e in entries if isinstance(e, Failed))
        assert [e.job for e in entries if isinstance(e, Finished)] == [good]
        found.append((sum(isinstance(e, Piece) and e.job is bad for e in entries), str(failed.error)))
        assert (bad.open_now, good.open_now) == (0, 0)
    assert found[0][1] == found[1][1], "it is the first that cannot be read"
    assert 0 < found[1][0] <= found[0][0]


@pytest.mark.parametrize("stored", [BLOCKS, {}], ids=["tiled", "in strips"])
def test_an_abandoned_job_is_not_read_on(make_geotiff: Make, rng: np.random.Generator, stored: Any) -> None:
    path = make_geotiff("a.tif", rng.integers(0, 255, (2000, 200, 3), np.uint8), **stored)
    read: list[Window] = []
    job = FileJob(path, read.append)
    for _ in read_batches([job], TILING, 4):
        job.abandoned = True  # type: ignore[misc]
    assert len(read) < 20
    assert job.open_now == 0
