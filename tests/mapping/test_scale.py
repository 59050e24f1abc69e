"""`predict.py --gsd`: resampled for the model, mapped on its own pixels, in bounded memory."""

import tracemalloc
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

from segmenter.grid.geometry import Size, Window
from segmenter.grid.resampling import as_type, count_of, resample, taps
from segmenter.grid.windows import Columns
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.inference.regridding import ON_THE_GRID, Regridder
from segmenter.raster.resampled import GridColumns, ModelGrid
from tests.helpers.dense_resampling import dense_resampled
from tests.helpers.exact_network import RADIUS, STRIDE, exact_network
from tests.helpers.maps import Call, Make
from tests.helpers.maps import ids as read

HALF = Affine(0.5, 0, 368000, 0, -0.5, 5808000)


def probabilities(
    image: NDArray[Any], valid: NDArray[np.bool_], rows: Fraction, cols: Fraction
) -> NDArray[np.float64]:
    """(H, W, K) on the raster's pixels: all of it resampled, seen at once, brought back densely."""
    high, wide = image.shape[:2]
    over = taps(0, count_of(high, rows), high, rows), taps(0, count_of(wide, cols), wide, cols)
    values, there = resample(np.where(valid[..., None], image, 0), valid, *over)
    seen = as_type(values, image.dtype.name)
    below, right = -seen.shape[0] % STRIDE, -seen.shape[1] % STRIDE
    padded = np.pad(seen, ((0, below), (0, right), (0, 0)))[None]
    known = np.pad(there, ((0, below), (0, right)))[None]
    found = exact_network(RADIUS, STRIDE, wanted=ExtraOutputs(probabilities="float16"))(padded, known)
    each = np.asarray(found.probabilities)[0, : seen.shape[0], : seen.shape[1]]
    back, _ = dense_resampled(each, there, 1 / rows, 1 / cols)
    return back[: image.shape[0], : image.shape[1]]


def assert_classes(ids: NDArray[Any], expected_HWK: NDArray[np.float64], valid: NDArray[np.bool_]) -> None:
    """The most probable class, one of them where two are equally so; no data where there is none."""
    np.testing.assert_array_equal(ids != 255, valid)
    chosen = np.take_along_axis(expected_HWK, np.where(valid, ids, 0)[..., None].astype(int), axis=2)[..., 0]
    assert (chosen[valid] >= expected_HWK.max(axis=2)[valid] - 1e-5).all()
    assert (ids[valid] == expected_HWK.argmax(axis=2)[valid]).mean() > 0.95


@pytest.mark.parametrize(("gsd", "step"), [(1.5, Fraction(3)), (0.2, Fraction(2, 5)), (3.7, Fraction(37, 5))])
def test_the_map_is_that_of_the_resampled_raster_seen_at_once(
    make_geotiff: Make, call: Call, rng: Any, gsd: float, step: Any
) -> None:
    """On the raster's own grid, with its holes, in many small windows."""
    image = rng.integers(1, 255, (171, 137, 3), np.uint8)
    image[40:120, 60:90] = 0
    image[rng.random((171, 137)) > 0.98] = 0
    valid = (image != 0).any(axis=2)
    source = make_geotiff("in/a.tif", image, nodata=0, tiled=True, blockxsize=64, blockysize=32)
    assert call(source, "--gsd", gsd, "--confidence", "--probabilities", "uint8") == 0
    expected = probabilities(image, valid, step, step)
    assert_classes(read("maps/a.tif"), expected, valid)
    confidence = read("maps/a.confidence.tif").astype(int)
    assert np.abs(confidence - 255 * expected.max(axis=2))[valid].max() < 1
    assert not confidence[~valid].any()
    with rasterio.open("maps/a.probabilities.tif") as file:
        each = file.read().transpose(1, 2, 0).astype(int)
    assert np.abs(each - 255 * expected)[valid].max() < 1.01
    with rasterio.open("maps/a.tif") as file, rasterio.open(source) as original:
        assert (file.crs, file.transform, file.shape) == (original.crs, original.transform, original.shape)
        assert file.tags()["GSD"] == f"{gsd} m"


def test_windows_and_columns_do_not_show(make_geotiff: Make, call: Call, rng: Any, monkeypatch: Any) -> None:
    """Byte for byte: other windows, several columns, a part, a box, pieces of a few pixels, and strips."""
    image = rng.integers(1, 255, (113, 701, 3), np.uint8)
    image[60:80, 200:600] = 0
    source = make_geotiff("in/a.tif", image, nodata=0)
    call(source, "--gsd", 0.85, output="whole")
    whole = read("whole/a.tif")
    assert call(source, "--gsd", 0.85, "--window-size", 96, "--batch", 3, output="other") == 0
    np.testing.assert_array_equal(read("other/a.tif"), whole)
    monkeypatch.setattr("segmenter.inference.memory._LEAST_COLUMN", 256)
    monkeypatch.setattr("segmenter.inference.memory.COLUMN", 256)
    monkeypatch.setattr("segmenter.raster.resampled._VALUES_AT_ONCE", 9000)
    monkeypatch.setattr("segmenter.inference.regridding._VALUES_AT_ONCE", 9000)
    assert call(source, "--gsd", 0.85, output="columns") == 0
    np.testing.assert_array_equal(read("columns/a.tif"), whole)
    assert call(source, "--gsd", 0.85, "--part", 33, 117, 70, 507, output="part") == 0
    np.testing.assert_array_equal(read("part/a.tif"), whole[33:103, 117:624])
    box = (368000 + 10, 5808000 - 40, 368000 + 20.25, 5808000 - 30.25)
    assert call(source, "--gsd", 0.85, "--bbox", *box, output="box") == 0
    np.testing.assert_array_equal(read("box/a.tif"), whole[60:80, 20:41])


@pytest.mark.parametrize(
    ("transform", "crs", "rows", "cols"),
    [
        (Affine(2, 0, 100, 0, 2, 50), "EPSG:25833", 2, 2),
        (Affine(1.2, 1.6, 100, 1.6, -1.2, 200), "EPSG:25833", 2, 2),
        (Affine(1, 0, 100, 0, -4, 50), "EPSG:25833", 4, 1),
        (Affine(2 / 111320, 0, 13, 0, -2 / 111320, 60), "EPSG:4326", 2, 1),
    ],
    ids=["south-up", "rotated", "oblong", "degrees-at-60-north"],
)
def test_a_pixel_of_the_model_has_the_wanted_side_on_the_ground(
    make_geotiff: Make, call: Call, rng: Any, transform: Affine, crs: str, rows: int, cols: int
) -> None:
    """In the raster's own directions; at 60 degrees, a degree of longitude is half."""
    image = rng.integers(1, 255, (90, 120, 3), np.uint8)
    source = make_geotiff("in/a.tif", image, crs=crs, transform=transform)
    assert call(source, "--gsd", 4) == 0
    steps = Fraction(4, rows), Fraction(4, cols)
    found = read("maps/a.tif")
    assert_classes(found, probabilities(image, np.ones((90, 120), np.bool_), *steps), found != 255)
    with rasterio.open("maps/a.tif") as file:
        assert file.transform.almost_equals(transform)


def test_the_training_scale_is_the_one_of_auto_and_near_it_nothing_is_resampled(
    make_geotiff: Make, call: Call, rng: Any, capsys: Any
) -> None:
    image = rng.integers(0, 255, (90, 70, 3), np.uint8)
    near = make_geotiff("in/near.tif", image, transform=Affine(0.503, 0, 0, 0, -0.503, 0))
    fine = make_geotiff("in/fine.tif", image, transform=Affine(0.1, 0, 0, 0, -0.1, 0))
    assert call(near, fine) == 0
    said = capsys.readouterr()
    assert "0.5 m; --gsd auto shows" in said.err
    plain = {name: read(Path("maps") / name) for name in ("near.tif", "fine.tif")}
    assert call(near, fine, "--gsd", "auto") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "near.tif: a pixel is 0.503 m, within 1 % of 0.5 m: not resampled" in said.out
    assert "fine.tif: a pixel is 0.1 m, resampled to 0.5 m for the model" in said.out
    assert "fine.tif: made anew: other options: gsd was none, is 5×5 pixels as one" in said.out
    assert "1 of 1 maps are finished and unchanged" in said.out
    np.testing.assert_array_equal(read("maps/near.tif"), plain["near.tif"])
    scales = {}
    for name in plain:
        with rasterio.open(Path("maps") / name) as file:
            scales[name] = file.tags().get("GSD")
    assert scales == {"near.tif": None, "fine.tif": "0.5 m"}
    expected = probabilities(image, np.ones((90, 70), np.bool_), Fraction(5), Fraction(5))
    assert_classes(read("maps/fine.tif"), expected, np.ones((90, 70), np.bool_))
    assert call(near, fine, "--gsd", "auto") == 0
    assert "made anew" not in capsys.readouterr().out
    assert call(near, fine, "--gsd", "auto", "--redo") == 0
    assert [
        line.split(" in ")[0] for line in capsys.readouterr().out.splitlines() if " in maps: " in line
    ] == ["2 maps"]
    assert call(near, fine) == 0
    assert "other options: gsd was 5×5 pixels as one, is none" in capsys.readouterr().out


def test_pixels_that_are_not_square_are_resampled_to_a_number_and_kept_where_trained_like_that(
    make_geotiff: Make, call: Call, rng: Any, capsys: Any
) -> None:
    """Of 0.25 × 1 m the mean is 0.5 m; the grid of a number is square, `auto` is the scale of such scenes."""
    image = rng.integers(0, 255, (90, 70, 3), np.uint8)
    oblong = make_geotiff("in/a.tif", image, transform=Affine(0.25, 0, 0, 0, -1, 0))
    assert call(oblong, "--gsd", 0.5) == 0
    assert "a pixel is 0.25×1 m, resampled to 0.5 m for the model" in capsys.readouterr().out
    expected = probabilities(image, np.ones((90, 70), np.bool_), Fraction(1, 2), Fraction(2))
    assert_classes(read("maps/a.tif"), expected, np.ones((90, 70), np.bool_))
    assert call(oblong, "--gsd", "auto") == 0
    said = "a pixel is 0.25×1 m, in the mean within 1 % of 0.5 m: not resampled"
    assert said in capsys.readouterr().out


def test_a_raster_of_unknown_scale_needs_one(make_geotiff: Make, call: Call, rng: Any, capsys: Any) -> None:
    image = rng.integers(0, 255, (40, 50, 3), np.uint8)
    nowhere = make_geotiff("in/nowhere.tif", image, crs=None)
    assert call(nowhere, "--gsd", 1) == 1
    said = capsys.readouterr().err
    assert "nowhere.tif: does" in said
    assert said.count("\n") == 1
    assert call(nowhere, "--gsd", 1, "--raster-gsd", 0.25) == 0
    found = read("maps/nowhere.tif")
    assert_classes(found, probabilities(image, found != 255, Fraction(4), Fraction(4)), found != 255)


@pytest.mark.parametrize(
    ("options", "changes", "code", "line"),
    [
        (("--gsd", "auto"), {"metres_per_pixel": None}, 2, "--gsd auto: run"),
        (("--gsd", 1000), {}, 1, "0.5 m, --gsd asks for 1e+03 m"),
        (("--gsd", 0.001), {}, 1, "least 1/64"),
        (("--gsd", "nan"), {}, 2, "a number above 0"),
        (("--raster-gsd", 1), {}, 2, "--raster-gsd 1: says"),
    ],
)
def test_a_scale_that_cannot_be_meant_is_refused_in_one_line(
    make_geotiff: Make, call: Call, capsys: Any, options: Any, changes: Any, code: int, line: str
) -> None:
    source = make_geotiff("in/a.tif", np.ones((20, 20, 3), np.uint8))
    assert call(source, *options, **changes) == code
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not Path("maps").exists()


def test_a_cut_scene_is_mapped_like_the_whole(make_geotiff: Make, call: Call, rng: Any) -> None:
    """Byte for byte, though the files do not end where the model's pixels do."""
    image = rng.integers(0, 255, (120, 160, 3), np.uint8)
    parts = []
    for name, rows, cols in [("a", (0, 61), (0, 77)), ("b", (0, 61), (77, 160)), ("c", (61, 120), (0, 160))]:
        moved = HALF @ Affine.translation(cols[0], rows[0])
        part = image[slice(*rows), slice(*cols)]
        parts.append((make_geotiff(f"in/{name}.tif", part, transform=moved), rows, cols))
    whole = make_geotiff("whole/whole.tif", image, transform=HALF)
    assert call(whole, "--gsd", 1.2) == 0
    assert call(*(path for path, *_ in parts), "--gsd", 1.2, "--mosaic") == 0
    expected = read("maps/whole.tif")
    for path, rows, cols in parts:
        found = read(Path("maps") / path.name)
        np.testing.assert_array_equal(found, expected[slice(*rows), slice(*cols)])


@pytest.mark.slow
def test_smooth_maps_scores_and_many_files(make_geotiff: Make, call: Call, rng: Any, capsys: Any) -> None:
    """Blended windows, labels on the raster's own pixels, small files of several scales in one call."""
    image = rng.integers(0, 255, (70, 80, 3), np.uint8)
    for number, side in enumerate((0.1, 0.25, 0.25, 2)):
        transform = Affine(side, 0, 0, 0, -side, 0)
        make_geotiff(f"in/{number}.tif", image[number:], transform=transform)
        make_geotiff(f"truth/{number}.tif", (image[number:, :, 0] % 7), transform=transform)
    options = ("--gsd", 0.5, "--mode", "smooth", "--labels", "truth/{stem}.tif", "--pictures")
    assert call(Path("in"), *options) == 0
    said = capsys.readouterr()
    assert "1.tif and 1 more: a pixel is 0.25 m, resampled to 0.5 m for the model" in said.out
    assert "TTA none, at 0.5 m a pixel" in said.out
    for number in range(4):
        found = read(f"maps/{number}.tif")
        assert found.shape == image[number:].shape[:2]
        assert (found != 255).all()
        assert Path(f"maps/{number}.view.png").is_file()


CLASSES = 3


def everywhere(window: Window) -> np.ndarray:
    return np.ones((window.height, window.width), np.bool_)


def windows(column: Window, side: int) -> Iterator[Window]:
    """Return the values of a column, row by row."""
    for row in range(column.row, column.row_stop, side):
        for col in range(column.col, column.col_stop, side):
            yield Window(row, col, side, side).intersection(column)


def given(window: Window, seed: int) -> Prediction:
    rng = np.random.default_rng([seed, window.row, window.col])
    probabilities = rng.random((window.height, window.width, CLASSES), np.float32)
    return Prediction.of_probabilities(probabilities / probabilities.sum(axis=2, keepdims=True), ON_THE_GRID)


def brought_back(columns: GridColumns, side: int) -> np.ndarray:
    """(H, W, K) on the raster's own pixels."""
    part = columns.own.part
    found = np.full((part.height, part.width, CLASSES), np.nan, np.float16)
    back = Regridder(columns, ExtraOutputs(probabilities="float16"), CLASSES, everywhere)
    for column in columns.remaining(0):
        whole = given(column, 7).probabilities
        for window in windows(column, side):
            pixels = whole[window.relative_to(column).slices()]
            ids = np.zeros(pixels.shape[:2], np.uint8)
            for own, prediction in back.take(window, Prediction(ids, probabilities=pixels)):
                found[own.relative_to(part).slices()] = prediction.probabilities
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [Fraction(7, 3), Fraction(3, 7), pytest.param(Fraction(1, 12), marks=pytest.mark.slow)]
)
def test_pieces_do_not_show(monkeypatch: pytest.MonkeyPatch, step: Fraction) -> None:
    """However few values are made at once: parts of a row, where one row alone has more."""
    part = Window(0, 0, 21, 130)
    columns = GridColumns(Columns(part, 130), ModelGrid(part, step, step))
    whole = brought_back(columns, 10_000)
    assert np.isfinite(whole).all()
    for values in (7, 400, 5000):
        monkeypatch.setattr("segmenter.inference.regridding._VALUES_AT_ONCE", values)
        np.testing.assert_array_equal(brought_back(columns, 32), whole)


def test_memory_is_that_of_a_row_of_windows_however_much_finer_the_grid_is() -> None:
    """4 K bytes for each of its pixels and those over one row of the raster's, beside a bounded piece."""
    side, fine = 512, 64
    part = Window.of(Size(9, 512))
    columns = GridColumns(Columns(part, 512), ModelGrid(part, Fraction(1, fine), Fraction(1, fine)))
    (column,) = columns.remaining(0)
    assert column.size == Size(9 * fine, 512 * fine)
    prediction = given(Window(0, 0, side, side), 0)
    below = given(Window(0, 0, fine, side), 0)
    back = Regridder(columns, ExtraOutputs(), CLASSES, everywhere)
    rows = 0
    tracemalloc.start()
    for window in windows(column, side):
        rows += sum(
            own.height * own.width
            for own, _ in back.take(window, prediction if window.height == side else below)
        )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == part.size.pixels
    held = 4 * CLASSES * column.width * (side + fine + 2)
    validity = column.width * 2 * (side + fine)
    assert peak < held + validity + 3 * 4 * (1 << 22)
