"""Bands of several files as one raster: each value is the file's own, or that of the resampling's law."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rasterio.transform import Affine

from segmenter.base.errors import DatasetError, RasterError
from segmenter.grid.geometry import Window
from segmenter.grid.resampling import as_type, resampled, taps
from segmenter.raster import open_raster, raster_info, stacked
from segmenter.raster.stacked import StackedImages

Make = Callable[..., Path]
HERE = Affine(10, 0, 500_000, 0, -10, 5_600_000)


@pytest.fixture
def make(make_geotiff: Make, rng: np.random.Generator) -> Make:
    def make(name: str, height: int, width: int, side: float = 1, **options: Any) -> Path:
        values = rng.integers(1, 60_000, (height, width, options.pop("bands", 1))).astype(
            options.pop("dtype", "uint16")
        )
        values[options.pop("void", ...)] = options.get("nodata", values[0, 0])
        return make_geotiff(name, values, transform=HERE @ Affine.scale(side), **options)

    return make


def _read(path: Path) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    with open_raster(path) as raster:
        return raster.read(Window.of(raster.info.size))


def _free(*shape: int) -> Any:
    return np.zeros(shape, np.bool_)


@pytest.mark.parametrize("rows", [7, 512])
def test_each_band_is_its_file_on_the_finest_grid(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Files of the grid as they are; coarser ones as `resampling` says, whatever the strips."""
    monkeypatch.setattr(stacked, "BLOCK", rows)
    files = [
        make("T_B11_20m.tif", 21, 24, 2, void=_free(21, 24)),
        make("T_B02_10m.tif", 42, 48, 1, bands=2, void=_free(42, 48)),
        make("T_B01_60m.tif", 7, 8, 6, void=_free(7, 8)),
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


def test_a_finer_file_is_averaged_onto_the_grid_that_is_named(tmp_path: Path, make: Make) -> None:
    files = [make("a.tif", 12, 16, void=_free(12, 16)), make("b.tif", 6, 8, 2, void=_free(6, 8))]
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


@pytest.mark.parametrize(("dtype", "nodata"), [("uint16", 0), ("float32", -9999), ("float32", None)])
def test_a_pixel_has_data_where_every_file_has(
    tmp_path: Path, make_geotiff: Make, dtype: str, nodata: float | None
) -> None:
    """Values without data are mixed into no other pixel."""
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


def test_files_that_are_no_bands_of_one_scene_are_refused(tmp_path: Path, make: Make) -> None:
    first = make("a.tif", 12, 16)
    stacks = StackedImages(tmp_path / "made")
    for other, why in (
        (make("b.tif", 12, 16, crs="EPSG:32632"), r"b\.tif: expected the place .* got EPSG:32632"),
        (make("c.tif", 12, 18), r"c\.tif: expected the place .* corners up to 2\.0 of its pixels"),
        (make("d.tif", 5, 8, crs=None), r"d\.tif: .* no CRS, against EPSG:25833|d\.tif: .* no georeference"),
    ):
        with pytest.raises(DatasetError, match=why):
            stacks.image("s", [first, other])
    with pytest.raises(RasterError, match=r"expected files of a scene that all declare one nodata value"):
        stacks.image("s", [first, make("e.tif", 12, 16, nodata=5)])
    assert not list((tmp_path / "made").glob("*.tif"))


def test_a_scene_is_made_anew_when_any_of_its_files_changes(tmp_path: Path, make: Make) -> None:
    """And made again of the same files it is the same: bytes and time."""
    files = [make("a.tif", 12, 16), make("b.tif", 6, 8, 2)]
    stacks = StackedImages(tmp_path / "made")
    first = stacks.image("s", files)
    assert StackedImages(tmp_path / "made").image("s", files) == first
    state = first.stat().st_mtime_ns, first.read_bytes()
    first.unlink()
    again = stacks.image("s", files)
    assert (again.stat().st_mtime_ns, again.read_bytes()) == state
    make("b.tif", 6, 8, 2, compress="deflate")
    assert stacks.image("s", files) != first
