"""Rasters made of others: cut files, another grid (GDAL's average), stacked bands."""

import itertools
import tracemalloc
from collections.abc import Sequence
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
from segmenter.grid.geometry import Window
from segmenter.grid.resampling import as_type, resample, taps
from segmenter.raster import RasterSpec, band_stack, open_raster, raster_info, write_raster
from segmenter.raster.band_stack import StackedImages
from segmenter.raster.mosaic import Mosaic
from segmenter.raster.resampled import ModelGrid, ResampledRaster
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map
from tests.helpers.maps import Call, Make, ids
from tests.helpers.refusals import refused

GRIDS = {
    "north-up": Affine(0.5, 0, 368000, 0, -0.5, 5808000),
    "south-up": Affine(2, 0, 100, 0, 2, 50),
    "rotated": Affine(1.7, 0.5, 100, 1.0, -0.9, 200),
}
ROWS, COLS = (0, 61, 64, 131), (0, 77, 203)


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


def layers(folder: str, name: str) -> NDArray[Any]:
    """(2, H, W): ids and confidence of a map."""
    stem = Path(folder) / Path(name).stem
    return np.stack([ids(f"{stem}.tif"), ids(f"{stem}.confidence.tif")])


@pytest.mark.parametrize(
    ("name", "mode", "side"),
    [
        ("north-up", "exact", 40),
        ("south-up", "smooth", 72),
        ("rotated", "exact", 72),
        ("rotated", "smooth", 400),
    ],
)
def test_cut_is_uncut(call: Call, rng: np.random.Generator, name: str, mode: str, side: int) -> None:
    image, grid = rng.integers(0, 255, (131, 203, 3), np.uint8), GRIDS[name]
    crs = rasterio.CRS.from_epsg(25833)
    write_raster(Path("whole.tif"), image, RasterSpec(crs=crs, transform=grid))
    files = cut(Path("in"), image, grid)
    asked = ("--mode", mode, "--confidence", "--window-size", side, "--batch", 3)
    assert call("whole.tif", *asked, output="uncut") == 0
    assert call("in", "--mosaic", *asked) == 0
    assert call("in", *asked, output="alone") == 0
    whole, differ = layers("uncut", "whole.tif"), 0
    for path, window in files.items():
        part = (slice(None), *window.slices())
        np.testing.assert_array_equal(layers("maps", path.name), whole[part])
        differ += (layers("alone", path.name) != whole[part]).any()
    assert differ


def test_a_gap_between_files_holds_no_data(call: Call, rng: np.random.Generator) -> None:
    image = rng.integers(0, 255, (131, 203, 3), np.uint8)
    files = cut(Path("in"), image, GRIDS["north-up"])
    missing = list(files)[2]
    valid = np.ones((131, 203), np.bool_)
    valid[files.pop(missing).slices()] = False
    missing.unlink()
    expected = exact_map(image, valid, RADIUS, STRIDE)
    assert call("in", "--mosaic", "--confidence") == 0
    for path, window in files.items():
        np.testing.assert_array_equal(layers("maps", path.name)[0], expected[window.slices()])


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
    with refused(DatasetError, **fields):
        Mosaic([tmp_path / "a.tif", tmp_path / "b.tif"], open_raster)


def test_a_changed_file_changes_its_neighbours_maps_and_no_others(
    call: Call, rng: np.random.Generator, capsys: Any
) -> None:
    image = rng.integers(0, 255, (400, 64, 3), np.uint8)
    files = cut(Path("in"), image, GRIDS["north-up"], rows=(0, 100, 200, 300, 400), cols=(0, 64))
    assert call("in", "--mosaic") == 0
    first, changed = next(iter(files)), image.copy()
    changed[:100] = 255 - image[:100]
    with rasterio.open(first) as file:
        crs, place = file.crs, file.transform
    write_raster(first, changed[:100], RasterSpec(crs=crs, transform=place))
    capsys.readouterr()
    assert call("in", "--mosaic") == 0
    assert "2 of 4 maps are finished and unchanged" in capsys.readouterr().out
    expected = exact_map(changed, np.ones((400, 64), np.bool_), RADIUS, STRIDE)
    for path, window in files.items():
        with rasterio.open(Path("maps") / path.name) as found, rasterio.open(path) as source:
            np.testing.assert_array_equal(found.read(1), expected[window.slices()])
            assert found.transform == source.transform
    capsys.readouterr()
    assert call("in") == 0  # each file alone is another map
    assert "finished and unchanged" not in capsys.readouterr().out


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
        expected, _ = resample(
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


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint16", 0), ("float32", None), ("float32", float(np.finfo("f4").min))]
)
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
