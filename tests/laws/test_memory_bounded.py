"""Law 6, *memory is bounded*, in width: rasters cut into columns give the same bits, also where taken up."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import example, given, settings
from hypothesis import strategies as st

import segmenter.mapping.call
from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.windows import Columns
from segmenter.inference.blending import Blend
from segmenter.inference.predictor import ExtraOutputs, MappedWindow, Prediction, Tiling, classify_all
from segmenter.raster import Raster, RasterWriter, open_raster
from tests.helpers.array_raster import ArrayJob, scene
from tests.helpers.child_predict import files
from tests.helpers.child_predict import scene as scene_file
from tests.helpers.exact_network import exact_network

Make = Callable[..., Path]
MODES = {"exact": (None, 12), "smooth": (Blend(50), 0)}
small = st.integers(1, 120)


@given(small, small, st.integers(1, 130), st.integers(0, 2000))
@example(1, 1, 1, 0)
@example(7, 97, 32, 8)
@example(0, 9, 4, 0)
def test_columns_hold_every_pixel_once_and_what_is_done_is_counted(
    height: int, width: int, column: int, done: int
) -> None:
    part = Window(-3, 17, height, width)
    columns = Columns(part, column)
    times = np.zeros((height, width), int)
    for window in columns.remaining(0):
        assert window.height == height
        assert window.width <= column
        times[window.relative_to(part).slices()] += 1
    assert (times == 1).all()
    left = list(columns.remaining(done))
    assert columns.pixels(done) + sum(window.size.pixels for window in left) == height * width
    assert [w.col for w in left] == sorted(w.col for w in left)
    assert all(window.row == part.row for window in left[1:])


def predicted(job: ArrayJob, part: Window, tiling: Tiling, predict: Any) -> tuple[Prediction, np.ndarray]:
    """What came of a part, and how often each of its pixels came."""
    whole = Prediction.blank(part.size, predict.wanted, predict.classes)
    times = np.zeros((part.height, part.width), int)
    for event in classify_all([job], tiling, predict):
        if isinstance(event, MappedWindow):
            where = event.window.relative_to(part).slices()
            times[where] += 1
            for name, array in vars(event.prediction).items():
                getattr(whole, name)[where] = array
    return whole, times


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30)
@given(data=st.data())
def test_columns_give_the_bits_of_the_uncut(mode: str, data: st.DataObject) -> None:
    """Ids, confidence and probabilities; of any part, from any row on."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    height, width = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 150))
    row, col = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    part = Window(row, col, data.draw(st.integers(1, height - row)), data.draw(st.integers(1, width - col)))
    raster, predict = scene(rng, height, width), exact_network(5, 8, wanted=ExtraOutputs(True, "float16"))
    blend, halo = MODES[mode]
    uncut = Tiling(Size(40, 48), halo, 8, data.draw(st.integers(1, 4)), blend)
    cut = replace(uncut, column=data.draw(st.sampled_from([1, 7, 16, 48, 100])))
    columns = Columns(part, cut.column)
    done = data.draw(st.integers(0, part.height * -(-part.width // columns.step)))
    expected, once = predicted(ArrayJob(raster, part), part, uncut, predict)
    assert (once == 1).all()
    found, times = predicted(ArrayJob(raster, part, done_rows=done), part, cut, predict)
    there = np.zeros_like(times)
    for window in columns.remaining(done):
        there[window.relative_to(part).slices()] = 1
    np.testing.assert_array_equal(times, there)
    for name in ("ids", "confidence", "probabilities"):
        np.testing.assert_array_equal(getattr(found, name)[times > 0], getattr(expected, name)[times > 0])


@pytest.mark.parametrize("mode", MODES)
def test_memory_does_not_depend_on_the_width(tmp_path: Path, make_geotiff: Make, mode: str) -> None:
    """Eight times the width, the same memory: from a file, through the tiles, to a file.

    Rows that are kept from side to side take a byte for each pixel that is more, and blended 4 K = 28; which
    of the threads' peaks coincide is chance, so that some arrays of a window are allowed.
    """
    peaks, widths, height = [], (2000, 16000), 120
    blend, halo, allowed = {"exact": (None, 12, 0.5), "smooth": (Blend(25), 0, 4)}[mode]
    tiling = Tiling(Size(128, 128), halo, 8, 1, blend, column=512)
    for width in widths:
        path = make_geotiff(f"{width}.tif", np.ones((height, width), np.uint8), tiled=True)
        size, target = Size(height, width), tmp_path / f"map{width}.tif"
        tracemalloc.start()
        with (
            open_raster(path) as raster,
            RasterWriter(target, size, column=tiling.column) as writer,
        ):
            for event in classify_all([ArrayJob(raster)], tiling, exact_network(3, 8)):
                if isinstance(event, MappedWindow):
                    writer.write(event.window, event.ids)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < height * (widths[1] - widths[0]) * allowed


def test_where_windows_lie_is_not_kept() -> None:
    """Of 2³⁰ rows or columns the first windows are there at once, and nothing is known of the others."""
    for size in (Size(1 << 30, 1), Size(1, 1 << 30), Size(1 << 30, 1 << 30)):
        for blend, halo in MODES.values():
            tiling = Tiling(Size(64, 64), halo, 8, 1, blend, column=512)
            tracemalloc.start()
            column = next(Columns(Window.of(size), tiling.column).remaining(0))
            places = tiling.placements(Window.of(size), column)
            assert (
                len([place for _, place in zip(range(1000), places, strict=False)]) == 1000
                or size.height == 1
            )
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 1 << 20


EVERYTHING = (
    "--confidence",
    "--probabilities",
    "float16",
    "--quicklook",
    "--window-size",
    "128",
    "--batch",
    "1",
)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`cut(512)`: from now on predict.py cuts rasters into columns of so many pixels."""
    plan = segmenter.mapping.call.tiling_for

    def into(column: int) -> None:
        monkeypatch.setattr(
            "segmenter.mapping.call.tiling_for", lambda *rest: replace(plan(*rest), column=column)
        )

    return into


def pixels(folder: Path) -> dict[str, np.ndarray]:
    found = {}
    for path in (*folder.glob("[!.]*.tif"), *folder.glob("[!.]*.png")):
        with rasterio.open(path) as file:
            found[path.name] = file.read()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_wide_raster_is_mapped_in_columns_and_goes_on_where_it_was_left(
    tmp_path: Path,
    make_geotiff: Make,
    call: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    cut: Callable[[int], None],
    mode: str,
) -> None:
    """All files hold the pixels of the uncut; taken up in the middle of a column, they are the same bytes."""
    source = scene_file(make_geotiff, "in/a.tif", 211, 1301)
    arguments = (source, "--mode", mode, *EVERYTHING)
    assert call(*arguments, output="uncut") == 0
    cut(512)
    assert call(*arguments, output="columns") == 0
    expected, found = pixels(tmp_path / "uncut"), pixels(tmp_path / "columns")
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    monkeypatch.setattr("segmenter.mapping.folder.state.MUCH_PIXELS", 1)
    read, places = Raster.read, []

    def failing(self: Raster, window: Window) -> Any:
        places.append(window)
        if window.row > 60 and window.col > 600 and len(places) < 100:
            raise RasterError("Input/output error")
        return read(self, window)

    monkeypatch.setattr(Raster, "read", failing)
    assert call(*arguments) == 1
    assert (tmp_path / "maps" / ".a.tif.partial").exists()
    first = len(places)
    places += [Window(0, 0, 0, 0)] * 100
    assert call(*arguments) == 0
    again = places[first + 100 :]
    assert min(window.col for window in again) > 300, "the first column is finished"
    assert files(tmp_path / "maps") == files(tmp_path / "columns")


@pytest.mark.slow
def test_a_partial_map_of_other_columns_is_used_as_far_as_it_goes(
    tmp_path: Path,
    make_geotiff: Make,
    call: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    cut: Callable[[int], None],
) -> None:
    """Exact maps go on with another --memory, which may mean other columns."""
    source = scene_file(make_geotiff, "in/a.tif", 211, 1301)
    assert call(source, *EVERYTHING, output="uncut") == 0
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    monkeypatch.setattr("segmenter.mapping.folder.state.MUCH_PIXELS", 1)
    read = Raster.read

    def failing(self: Raster, window: Window) -> Any:
        if window.row > 60:
            raise RasterError("Input/output error")
        return read(self, window)

    with monkeypatch.context() as patch:
        patch.setattr(Raster, "read", failing)
        assert call(source, *EVERYTHING) == 1
    cut(512)
    assert call(source, *EVERYTHING[:-2], "--batch", 2) == 0
    expected, found = pixels(tmp_path / "uncut"), pixels(tmp_path / "maps")
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
