"""Law 4, *tiles disappear*, law 6, *memory is bounded*; files are batched, read by several threads."""

import contextlib
import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.inference.events import Failed, Finished, Piece
from segmenter.inference.prediction import Prediction
from segmenter.inference.predictor import MappedWindow, Tiling, classify_all
from segmenter.inference.reading import read_batches
from segmenter.raster import RasterWriter, open_raster
from tests.helpers.array_raster import ArrayJob, ArrayRaster, scene
from tests.helpers.exact_network import exact_network
from tests.helpers.function_predictor import FunctionPredictor, classify
from tests.helpers.refusals import refused
from tests.helpers.time_limits import wait_until

Make = Callable[..., Path]


def whole_image(raster: Any, predict: Any, stride: int) -> NDArray[np.uint8]:
    """The result without tiles: the raster padded below and right to the stride, in one go."""
    size = raster.info.size
    padded = size.round_up(stride)
    image, valid = raster.read(Window.of(padded))
    ids = np.where(valid, predict(image[None], valid[None]).ids[0], IGNORE)
    return ids[: size.height, : size.width].astype(np.uint8)


def assembled(raster: Any, part: Window, tiling: Tiling, predict: Any) -> NDArray[np.uint8]:
    result = np.zeros((part.height, part.width), np.uint8)
    times = np.zeros(result.shape, np.int64)
    for window, ids in classify(raster, part, tiling, predict):
        where = window.relative_to(part).slices()
        result[where] = ids
        times[where] += 1
    assert (times == 1).all()
    return result


@given(data=st.data())
def test_a_part_is_that_part_of_the_whole(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    height, width = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 120))
    row, col = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    part = Window(row, col, data.draw(st.integers(1, height - row)), data.draw(st.integers(1, width - col)))
    stride = data.draw(st.sampled_from([1, 4, 8]))
    predict, raster = exact_network(3, stride), scene(rng, height, width)
    tiling = Tiling(Size(40, 48), 3 + stride - 1, stride, data.draw(st.integers(1, 5)))
    whole = whole_image(raster, predict, stride)
    np.testing.assert_array_equal(assembled(raster, part, tiling, predict), whole[part.slices()])


def test_too_small_a_halo_shows_and_a_window_that_keeps_nothing_is_refused(rng: np.random.Generator) -> None:
    """The stand-in is no easy judge: with less halo than its radius the tiles are there."""
    predict, raster = exact_network(12, 8), scene(rng, 200, 200)
    tiled = assembled(raster, Window.of(raster.info.size), Tiling(Size(64, 64), 8, 8, 4), predict)
    assert (tiled != whole_image(raster, predict, 8)).mean() > 0.01

    with refused(ConfigError, where="prediction window", got="512×64"):
        Tiling(Size(64, 512), 25, 16, 1)


def test_windows_without_data_are_not_computed(rng: np.random.Generator) -> None:
    raster = scene(rng, 64, 256)
    raster.valid[:, 32:] = False
    batches: list[int] = []
    predict = exact_network(0, 1, batches)
    ids = assembled(raster, Window(0, 0, 64, 256), Tiling(Size(32, 32), 0, 1, 4), predict)
    assert batches == [2]
    assert (ids[:, 32:] == IGNORE).all()
    np.testing.assert_array_equal(ids, whole_image(raster, exact_network(0, 1), 1))


def test_small_files_are_batched_together(rng: np.random.Generator) -> None:
    batches: list[int] = []
    jobs = [ArrayJob(scene(rng, 16, 16)) for _ in range(21)]
    tiling = Tiling(Size(64, 64), 8, 8, 8)
    predict = exact_network(1, 8, batches)
    maps = {e.job: e.ids for e in classify_all(jobs, tiling, predict) if isinstance(e, MappedWindow)}
    assert batches == [8, 8, 5]
    for job in jobs:
        np.testing.assert_array_equal(maps[job], whole_image(job.raster, exact_network(1, 8), 8))


def test_shapes_and_types_are_not_mixed(rng: np.random.Generator) -> None:
    shapes: list[Any] = []

    def predict(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        shapes.append((image.shape, image.dtype.name))
        return Prediction(np.zeros(valid.shape, np.uint8))

    jobs = []
    for index in range(12):
        raster = scene(rng, 16 if index % 2 else 24, 16)
        if index % 3 == 0:
            raster = ArrayRaster(raster.image.astype(np.uint16))
        jobs.append(ArrayJob(raster))
    events = classify_all(jobs, Tiling(Size(64, 64), 8, 8, 8), FunctionPredictor(predict))
    assert {e.job for e in events if isinstance(e, Finished)} == set(jobs)
    assert sorted(shapes) == [
        ((2, 16, 16, 2), "uint16"),
        ((2, 24, 16, 2), "uint16"),
        ((4, 16, 16, 2), "uint8"),
        ((4, 24, 16, 2), "uint8"),
    ]


def test_windows_of_a_file_come_in_order_and_few_files_are_under_way(rng: np.random.Generator) -> None:
    """Every file has a shape of its own: the worst case for batching."""
    jobs = [ArrayJob(scene(rng, 8 * (1 + index), 8, 1)) for index in range(300)]
    under_way: set[int] = set()
    most, last = 0, {}
    predict = exact_network(0, 8)
    for event in classify_all(jobs, Tiling(Size(4096, 64), 0, 8, 2), predict):
        key = id(event.job)
        if isinstance(event, MappedWindow):
            under_way.add(key)
            assert (event.window.row, event.window.col) >= last.get(key, (0, 0))
            last[key] = (event.window.row, event.window.col)
        else:
            under_way.remove(key)
        most = max(most, len(under_way))
    assert not under_way
    assert most <= 4 * 2 + 64
    assert len(last) == 300


class Broken(ArrayRaster):
    """Fails from a given row on."""

    def __init__(self, raster: ArrayRaster, row: int, error: BaseException) -> None:
        super().__init__(raster.image, raster.valid)
        self._row, self._error = row, error

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        if window.row_stop > self._row:
            raise self._error
        return super().read(window)


def test_one_unreadable_file_does_not_stop_the_others_but_a_defect_does(rng: np.random.Generator) -> None:
    good = [ArrayJob(scene(rng, 100, 20)) for _ in range(4)]
    bad = ArrayJob(Broken(scene(rng, 100, 20), 64, RasterError("broken.tif", "cannot read rows 64–95")))
    jobs = [*good[:2], bad, *good[2:]]
    events = list(classify_all(jobs, Tiling(Size(32, 32), 0, 8, 3), exact_network(0, 8)))
    failed = [e for e in events if isinstance(e, Failed)]
    assert [e.job for e in failed] == [bad]
    assert [e.error.where for e in failed] == ["broken.tif"]
    assert {e.job for e in events if isinstance(e, Finished)} == set(good)
    with refused(RasterError, fault="rows 64–95"):
        list(classify(bad.raster, Window(0, 0, 100, 20), Tiling(Size(32, 32), 0, 8, 3), exact_network(0, 8)))

    job = ArrayJob(Broken(scene(rng, 100, 20), 64, ZeroDivisionError("a defect")))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        list(classify_all([job], Tiling(Size(32, 32), 0, 8, 1), exact_network(0, 8)))


def test_memory_is_bounded(tmp_path: Path, make_geotiff: Make) -> None:
    """Eight times the height, the same memory: from a file, through the tiles, to a file.

    Which of the threads' peaks coincide is chance, so that the longer run's may be higher by some arrays of a
    window; whatever kept a single byte of each pixel would show four times as much as is allowed.
    """
    peaks, heights = [], (3000, 24000)
    for height in heights:
        path = make_geotiff(f"{height}.tif", np.ones((height, 300), np.uint8), tiled=True)
        tracemalloc.start()
        with (
            open_raster(path) as raster,
            RasterWriter(tmp_path / f"map{height}.tif", raster.info.size) as writer,
        ):
            whole = Window.of(raster.info.size)
            for window, ids in classify(raster, whole, Tiling(Size(256, 256), 16, 8, 2), exact_network(3, 8)):
                writer.write(window, ids)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 300 * (heights[1] - heights[0]) / 4


@pytest.mark.slow
def test_a_file_of_nothing_stays_in_bounds() -> None:
    """One valid pixel, then thousands of empty windows: they must not pile up behind an unfilled batch."""

    class Sparse(ArrayRaster):
        def __init__(self, windows: int) -> None:
            shape = (32 * windows, 32)
            super().__init__(np.broadcast_to(np.uint8(0), (*shape, 1)), np.broadcast_to(np.True_, shape))

        def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            valid = np.zeros((window.height, window.width), np.bool_)
            valid[0, 0] = window.row == 0
            return np.zeros((*valid.shape, 1), np.uint8), valid

    peaks = []
    gc.collect()
    for windows in (1000, 8000):
        tracemalloc.start()
        jobs, tiling = [ArrayJob(Sparse(windows))], Tiling(Size(32, 32), 0, 8, 16)
        events = classify_all(jobs, tiling, exact_network(0, 8))
        assert sum(int((e.ids != IGNORE).sum()) for e in events if isinstance(e, MappedWindow)) == 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 7000 < 100  # one that waits takes 1000 bytes; threads vary by 300 kB


def test_windows_that_wait_hold_no_others(rng: np.random.Generator) -> None:
    """One of the windows that are read at once is computed: it must not keep the pixels of all of them."""
    raster = scene(rng, 32, 32 * 16)
    raster.valid[:, 32:] = False
    (batch, *_) = read_batches([ArrayJob(raster)], Tiling(Size(32, 32), 0, 8, 16))
    alone = batch.image.base
    assert batch.image.shape == (1, 32, 32, 2)
    assert alone is None or alone.nbytes == batch.image.nbytes


TILING = Tiling(Size(48, 48), 8, 8, 3)


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
