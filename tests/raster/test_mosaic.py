"""Rasters made of others: cut files, another grid (GDAL's average), stacked bands."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT

from segmenter.base.errors import DatasetError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.resampling import as_type, resampled, taps
from segmenter.grid.windows import Columns
from segmenter.inference.blending import Blend
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import Mapped, Tiling, classify_all
from segmenter.raster import RasterSpec, band_stack, open_raster, raster_info, write_raster
from segmenter.raster.band_stack import StackedImages
from segmenter.raster.mosaic import Mosaic
from segmenter.raster.resampled import GridColumns, ModelGrid, ResampledRaster
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map, exact_network, fake_run, run_predict
from tests.helpers.refusals import refused

GRIDS = {
    "north-up": Affine(0.5, 0, 368000, 0, -0.5, 5808000),
    "south-up": Affine(2, 0, 100, 0, 2, 50),
    "rotated": Affine(1.7, 0.5, 100, 1.0, -0.9, 200),
}
ROWS, COLS = (0, 61, 64, 131), (0, 77, 203)


class FileJob:
    """One file of a mosaic, or the uncut scene."""

    columns, done_rows, abandoned = None, 0, False

    def __init__(self, open_it: Callable[[], Any], size: Size) -> None:
        self.open, self.part = open_it, Window.of(size)


def cut(
    folder: Path, image: NDArray[Any], grid: Affine, rows: Sequence[int] = ROWS, cols: Sequence[int] = COLS
) -> dict[Path, Window]:
    files = {}
    for top, bottom in itertools.pairwise(rows):
        for left, right in itertools.pairwise(cols):
            path = folder / f"{right}_{bottom}.tif"
            place = grid @ Affine.translation(left, top)
            write_raster(
                path,
                image[top:bottom, left:right],
                RasterSpec(crs=rasterio.CRS.from_epsg(25833), transform=place),
            )
            files[path] = Window(top, left, bottom - top, right - left)
    return files


def maps(jobs: Sequence[FileJob], tiling: Tiling) -> list[NDArray[Any]]:
    found = {id(job): np.zeros((job.part.height, job.part.width, 2), np.uint8) for job in jobs}
    for event in classify_all(jobs, tiling, exact_network(5, 8, wanted=ExtraOutputs(confidence=True))):
        if isinstance(event, Mapped):
            into = found[id(event.job)][event.window.slices()]
            into[..., 0], into[..., 1] = event.ids, event.prediction.confidence
    return [found[id(job)] for job in jobs]


@pytest.mark.parametrize(
    ("name", "blend", "side"),
    [("north-up", None, 40), ("south-up", Blend(50), 72), ("rotated", None, 72), ("rotated", Blend(50), 400)],
)
def test_cut_is_uncut(
    tmp_path: Path, rng: np.random.Generator, name: str, blend: Blend | None, side: int
) -> None:
    image, grid = rng.integers(0, 255, (131, 203, 2), np.uint8), GRIDS[name]
    write_raster(tmp_path / "whole.tif", image, RasterSpec(transform=grid))
    files = cut(tmp_path, image, grid)
    tiling = Tiling(Size(side, side), 0 if blend else 12, 8, 3, blend)
    (whole,) = maps([FileJob(lambda: open_raster(tmp_path / "whole.tif"), Size(131, 203))], tiling)
    mosaic = Mosaic(list(files)[::-1], open_raster)
    jobs = [FileJob(lambda path=path: mosaic.view(path), window.size) for path, window in files.items()]
    for found, window in zip(maps(jobs, tiling), files.values(), strict=True):
        np.testing.assert_array_equal(found, whole[window.slices()])
    alone = [FileJob(lambda path=path: open_raster(path), window.size) for path, window in files.items()]
    cut_apart = zip(maps(alone, tiling), files.values(), strict=True)
    assert any((found != whole[window.slices()]).any() for found, window in cut_apart)


def test_a_gap_between_files_holds_no_data(tmp_path: Path, rng: np.random.Generator) -> None:
    image = rng.integers(0, 255, (131, 203, 2), np.uint8)
    files = cut(tmp_path, image, GRIDS["north-up"])
    missing = list(files)[2]
    hole = files.pop(missing)
    valid = np.ones((131, 203), np.bool_)
    valid[hole.slices()] = False
    expected = exact_map(image, valid, 5, 8)
    mosaic = Mosaic(list(files), open_raster)
    jobs = [FileJob(lambda path=path: mosaic.view(path), window.size) for path, window in files.items()]
    for found, window in zip(maps(jobs, Tiling(Size(48, 48), 12, 8, 2)), files.values(), strict=True):
        np.testing.assert_array_equal(found[..., 0], expected[window.slices()])


def test_neighbours_are_those_within_reach(tmp_path: Path) -> None:
    files = cut(tmp_path, np.ones((131, 203, 1), np.uint8), GRIDS["north-up"])
    mosaic = Mosaic(list(files), open_raster)
    near = {path.stem for path, _ in mosaic.neighbours(tmp_path / "77_61.tif", 3)}
    assert near == {"77_64", "203_61", "203_64"}
    assert len(mosaic.neighbours(tmp_path / "77_61.tif", 4)) == 5


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (
            {"transform": Affine(0.5, 0, 50.2, 0, -0.5, 0)},
            {"where": "--mosaic", "expected": "0.4 pixels off"},
        ),
        ({"transform": Affine(0.51, 0, 50, 0, -0.5, 0)}, {"where": "--mosaic", "expected": "b.tif lies up"}),
        ({"crs": "EPSG:32633"}, {"where": "--mosaic", "expected": "b.tif has EPSG:32633"}),
        ({"transform": None, "crs": None}, {"where": "--mosaic", "expected": "b.tif"}),
        ({"dtype": "uint16"}, {"where": "--mosaic", "expected": "b.tif has uint16"}),
        ({"transform": Affine(0.5, 0, 49, 0, -0.5, 0)}, {"expected": "b.tif overlap by 2×100"}),
    ],
    ids=["shifted", "larger pixels", "other CRS", "nowhere", "other type", "overlapping"],
)
def test_files_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], fields: dict[str, object]
) -> None:
    usual = {"crs": "EPSG:25833", "transform": Affine(0.5, 0, 50, 0, -0.5, 0), "dtype": "uint8"}
    for name, options in (
        ("a", {**usual, "transform": Affine(0.5, 0, 0, 0, -0.5, 0)}),
        ("b", {**usual, **change}),
    ):
        dtype, crs = options.pop("dtype"), options.pop("crs")
        crs = crs and rasterio.CRS.from_string(crs)
        write_raster(tmp_path / f"{name}.tif", np.ones((100, 100), dtype), RasterSpec(crs=crs, **options))
    with refused(DatasetError, **fields) as caught:
        Mosaic([tmp_path / "a.tif", tmp_path / "b.tif"], open_raster)
    assert "\n" not in str(caught.value)


def test_a_changed_file_changes_its_neighbours_maps_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_classes: Any, rng: np.random.Generator, capsys: Any
) -> None:
    image = rng.integers(0, 255, (400, 64, 3), np.uint8)
    (tmp_path / "in").mkdir()
    files = cut(tmp_path / "in", image, GRIDS["north-up"], rows=(0, 100, 200, 300, 400), cols=(0, 64))
    run = fake_run(make_classes(7))
    call = (tmp_path / "in", "--output", tmp_path / "maps", "--mosaic")
    assert run_predict(monkeypatch, run, *call) == 0
    first, changed = next(iter(files)), image.copy()
    changed[:100] = 255 - image[:100]
    with rasterio.open(first) as file:
        crs, place = file.crs, file.transform
    write_raster(first, changed[:100], RasterSpec(crs=crs, transform=place))
    capsys.readouterr()
    assert run_predict(monkeypatch, run, *call) == 0
    assert "2 of 4 maps are finished and unchanged" in capsys.readouterr().out
    expected = exact_map(changed, np.ones((400, 64), np.bool_), RADIUS, STRIDE)
    for path, window in files.items():
        with rasterio.open(tmp_path / "maps" / path.name) as found, rasterio.open(path) as source:
            np.testing.assert_array_equal(found.read(1), expected[window.slices()])
            assert found.transform == source.transform
    capsys.readouterr()
    assert run_predict(monkeypatch, run, *call[:-1]) == 0  # each file alone is another map
    assert "finished and unchanged" not in capsys.readouterr().out


Make = Callable[..., Path]


def whole_of(path: Path, step: Fraction, **options: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    with open_raster(path, **options) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, step, step))
        return seen.read(seen.extent)


@pytest.mark.parametrize("step", [Fraction(7, 3), Fraction(4)], ids=str)
def test_a_coarser_grid_is_gdals_average(
    make_geotiff: Make, rng: np.random.Generator, step: Fraction
) -> None:
    """`gdalwarp -r average` on the same grid gives the same bytes, but for means just between two numbers."""
    image = rng.integers(0, 255, (203, 311, 3), np.uint8)
    path = make_geotiff("a.tif", image)
    found, valid = whole_of(path, step)
    with rasterio.open(path) as source:
        transform = source.transform @ rasterio.Affine.scale(float(step))
        options = {"crs": source.crs, "transform": transform, "resampling": Resampling.average}
        with WarpedVRT(source, **options, height=found.shape[0], width=found.shape[1]) as warped:
            expected = warped.read().transpose(1, 2, 0)
    # The last row and column reach beyond the raster, where GDAL takes others than the pixels under them.
    found, expected = found[:-1, :-1], expected[:-1, :-1]
    rows, cols, side = *found.shape[:2], int(step)
    if side == step:
        whole = image[: rows * side, : cols * side].reshape(rows, side, cols, side, 3)
        between = 2 * whole.sum(axis=(1, 3), dtype=np.int64) % (2 * side**2) == side**2
        assert (found[between] % 2 == 0).all()
        assert between.any() == (side % 2 == 0)
        found, expected = found[~between], expected[~between]
    np.testing.assert_array_equal(found, expected)
    assert valid.all()


@pytest.mark.parametrize(("step", "tiled"), [(Fraction(7, 3), True), (Fraction(2, 5), False)], ids=str)
def test_a_window_of_it_is_that_part_of_the_whole(
    make_geotiff: Make, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, step: Fraction, tiled: bool
) -> None:
    image = rng.integers(1, 255, (150, 131, 2), np.uint8)
    image[30:70, 40:90] = 0
    options = {"tiled": True, "blockxsize": 32, "blockysize": 16} if tiled else {}
    path = make_geotiff("a.tif", image, nodata=0, **options)
    image_HWC, valid = whole_of(path, step)
    monkeypatch.setattr("segmenter.raster.resampled._VALUES_AT_ONCE", 5000)
    with open_raster(path) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, step, step))
        assert raster.info.tiled == tiled
        for window in (Window(3, 5, 17, 11), Window(0, 0, 30, 27), Window(20, 9, *valid.shape)):
            found, there = seen.read(window)
            inside = window.intersection(seen.extent)
            part = inside.relative_to(window).slices()
            np.testing.assert_array_equal(found[part], image_HWC[inside.slices()])
            np.testing.assert_array_equal(there[part], valid[inside.slices()])
            assert there.sum() == there[part].sum()


@pytest.mark.parametrize("kind", ["mask", "nan"])
def test_what_has_no_data_counts_for_nothing(make_geotiff: Make, rng: np.random.Generator, kind: str) -> None:
    image = rng.integers(1, 200, (60, 60, 3)).astype(np.float32 if kind == "nan" else np.uint8)
    valid = rng.random((60, 60)) > 0.5
    valid[:10, :15] = False
    if kind == "mask":
        path = make_geotiff("a.tif", image, masks=valid.astype(np.uint8) * 255)
    else:
        path = make_geotiff("a.tif", np.where(valid[..., None], image, np.nan))
    found, there = whole_of(path, Fraction(5))
    cells = np.where(valid[..., None], image, 0).reshape(12, 5, 12, 5, 3).sum(axis=(1, 3), dtype=np.float64)
    counts = valid.reshape(12, 5, 12, 5).sum(axis=(1, 3))
    np.testing.assert_array_equal(there, counts > 0)
    mean = cells / np.maximum(counts, 1)[..., None]
    np.testing.assert_allclose(found, mean, atol=1e-4 if kind == "nan" else 0.5001)


def test_blocks_that_a_file_does_not_have_are_not_read(make_geotiff: Make, monkeypatch: Any) -> None:
    image = np.zeros((512, 512, 1), np.uint8)
    image[:64, :64] = 7
    options = {"tiled": True, "blockxsize": 64, "blockysize": 64, "sparse_ok": True, "nodata": 0}
    path = make_geotiff("a.tif", image, compress="deflate", **options)
    with open_raster(path) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, Fraction(4), Fraction(4)))
        assert seen.empty(Window(32, 32, 16, 16))
        assert not seen.empty(Window(0, 0, 4, 4))
        monkeypatch.setattr(raster, "read", None)
        _, there = seen.read(Window(32, 32, 16, 16))
        assert not there.any()


def test_memory_is_that_of_a_piece_however_much_lies_under_a_window(
    tmp_path: Path, make_geotiff: Make
) -> None:
    """Four windows side by side, each over 2,000² pixels: no more than a piece of some of them at a time."""
    path = make_geotiff("a.tif", np.ones((2000, 8000), np.uint8), tiled=True, compress="deflate")
    with open_raster(path) as raster:
        seen = ResampledRaster(raster, ModelGrid(raster.extent, Fraction(100), Fraction(100)))
        tracemalloc.start()
        found, there = seen.read(seen.extent)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found.shape == (20, 80, 1)
    assert (found == 1).all()
    assert there.all()
    assert peak < 4 * (1 << 22) * 3  # floats of a piece, and those that are added; not 16 million pixels'


def test_columns_of_a_grid_lie_over_those_of_the_raster() -> None:
    grid = ModelGrid(Window(-3, -5, 100, 1000), Fraction(7, 3), Fraction(7, 3))
    own = Columns(Window(10, 20, 60, 900), 256)
    columns = GridColumns(own, grid)
    heights = {over.height for over in columns.left(0)}
    assert heights == {columns.height}
    for mine, over in zip(own.left(0), columns.left(0), strict=True):
        assert grid.over(mine) == over
        assert grid.under(over).contains(mine)
    assert columns.pixels(0) == 0
    later = list(columns.left(columns.height + 4))
    assert later[0].row == grid.over(own.part).row + 4
    assert len(later) == len(list(columns.left(0))) - 1
    total = sum(over.size.pixels for over in columns.left(0))
    assert columns.pixels(columns.height + 4) + sum(o.size.pixels for o in later) == total


HERE = Affine(10, 0, 500_000, 0, -10, 5_600_000)


@pytest.fixture
def make_bands(make_geotiff: Make, rng: np.random.Generator) -> Make:
    def make_bands(name: str, height: int, width: int, side: float = 1, **options: Any) -> Path:
        values = rng.integers(1, 60_000, (height, width, options.pop("bands", 1))).astype(
            options.pop("dtype", "uint16")
        )
        values[options.pop("void", ...)] = options.get("nodata", values[0, 0])
        return make_geotiff(name, values, transform=HERE @ Affine.scale(side), **options)

    return make_bands


def _read(path: Path) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    with open_raster(path) as raster:
        return raster.read(Window.of(raster.info.size))


def _free(*shape: int) -> Any:
    return np.zeros(shape, np.bool_)


@pytest.mark.parametrize("rows", [7, 512])
def test_each_band_is_its_file_on_the_finest_grid(
    tmp_path: Path, make_bands: Make, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(band_stack, "BLOCK", rows)
    files = [
        make_bands("T_B11_20m.tif", 21, 24, 2, void=_free(21, 24)),
        make_bands("T_B02_10m.tif", 42, 48, 1, bands=2, void=_free(42, 48)),
        make_bands("T_B01_60m.tif", 7, 8, 6, void=_free(7, 8)),
    ]
    found = StackedImages(tmp_path / "made").image("T", files)
    info, (image, valid) = raster_info(found), _read(found)
    assert (info.size.height, info.size.width, info.count, info.dtype) == (42, 48, 4, "uint16")
    assert info.transform == HERE
    assert info.descriptions == ("B11_20m", "B02_10m_1", "B02_10m_2", "B01_60m")
    assert valid.all()
    assert (image[..., 1:3] == _read(files[1])[0]).all()
    for band, file, step in ((0, files[0], Fraction(1, 2)), (3, files[2], Fraction(1, 6))):
        values, has = _read(file)
        expected, _ = resampled(
            values, has, taps(0, 42, values.shape[0], step), taps(0, 48, values.shape[1], step)
        )
        off = image[..., band : band + 1].astype(int) - as_type(expected, "uint16")
        assert np.abs(off).max() <= 1  # halves are rounded either way
        assert (off == 0).mean() > 0.99


def test_a_finer_file_is_averaged_onto_the_grid_that_is_named(tmp_path: Path, make_bands: Make) -> None:
    files = [make_bands("a.tif", 12, 16, void=_free(12, 16)), make_bands("b.tif", 6, 8, 2, void=_free(6, 8))]
    image, _ = _read(StackedImages(tmp_path / "made", grid=1).image("s", files))
    mean = _read(files[0])[0].astype(float).reshape(6, 2, 8, 2).mean(axis=(1, 3))
    assert image.shape == (6, 8, 2)
    assert np.abs(image[..., 0] - mean).max() <= 0.5
    assert (image[..., 1:] == _read(files[1])[0]).all()


def test_grids_may_be_off_by_a_part_of_a_pixel(tmp_path: Path, make_geotiff: Make) -> None:
    """Landsat's panchromatic band begins half a pixel of its own beside the others: a plane stays a plane."""
    col, row = np.meshgrid(np.arange(40), np.arange(30))
    fine = make_geotiff("pan.tif", (100 + 10 * col + row).astype("f4"), transform=HERE)
    at = HERE @ Affine.translation(-0.5, -0.5) @ Affine.scale(2)
    c, r = np.meshgrid(np.arange(20) * 2.0, np.arange(15) * 2.0)  # its centres, in columns of the other
    coarse = make_geotiff("red.tif", (100 + 10 * c + r).astype("f4"), transform=at)
    image, valid = _read(StackedImages(tmp_path / "made").image("s", [fine, coarse]))
    assert valid.all()
    inner = image[:-1, :-1]
    assert np.abs(inner[..., 1] - inner[..., 0]).max() < 1e-3


@pytest.mark.parametrize(("dtype", "nodata"), [("uint16", 0), ("float32", None)])
def test_a_pixel_has_data_where_every_file_has(
    tmp_path: Path, make_geotiff: Make, dtype: str, nodata: float | None
) -> None:
    void = np.nan if nodata is None else nodata
    first, second = np.full((10, 12), 7, dtype), np.full((5, 6), 9, dtype)
    first[2, 3] = second[4, 5] = void
    given = {} if nodata is None else {"nodata": nodata}
    files = [
        make_geotiff("a.tif", first, transform=HERE, **given),
        make_geotiff("b.tif", second, transform=HERE @ Affine.scale(2), **given),
    ]
    image, valid = _read(StackedImages(tmp_path / "made").image("s", files))
    assert not valid[2, 3]
    assert not valid[9, 11]
    assert valid[:8].sum() == 95
    assert (image[valid] == (7, 9)).all()


def test_files_that_are_no_bands_of_one_scene_are_refused(tmp_path: Path, make_bands: Make) -> None:
    first = make_bands("a.tif", 12, 16)
    stacks = StackedImages(tmp_path / "made")
    for other, why in (
        (make_bands("b.tif", 12, 16, crs="EPSG:32632"), r"b\.tif: expected the place .* got EPSG:32632"),
        (make_bands("c.tif", 12, 18), r"c\.tif: expected the place .* corners up to 2\.0 of its pixels"),
        (
            make_bands("d.tif", 5, 8, crs=None),
            r"d\.tif: .* no CRS, against EPSG:25833|no georeference",
        ),
    ):
        with pytest.raises(DatasetError, match=why):
            stacks.image("s", [first, other])
    with refused(RasterError, where="a.tif", got="some in e.tif"):
        stacks.image("s", [first, make_bands("e.tif", 12, 16, nodata=5)])
    assert not list((tmp_path / "made").glob("*.tif"))


def test_a_scene_is_made_anew_when_any_of_its_files_changes(tmp_path: Path, make_bands: Make) -> None:
    files = [make_bands("a.tif", 12, 16), make_bands("b.tif", 6, 8, 2)]
    stacks = StackedImages(tmp_path / "made")
    first = stacks.image("s", files)
    assert StackedImages(tmp_path / "made").image("s", files) == first
    state = first.stat().st_mtime_ns, first.read_bytes()
    first.unlink()
    again = stacks.image("s", files)
    assert (again.stat().st_mtime_ns, again.read_bytes()) == state
    make_bands("b.tif", 6, 8, 2, compress="deflate")
    assert stacks.image("s", files) != first
