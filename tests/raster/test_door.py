"""Files that say of themselves what GDAL does not follow: right, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.crs import CRS

from segmenter.base.errors import BandsError, RasterError
from segmenter.grid.geometry import Window
from segmenter.raster import LabelRaster, open_raster, raster_info
from segmenter.raster.crs_units import same_ground
from segmenter.raster.ground import alignment_errors

Make = Callable[..., Path]
SIZE = (14, 18)

Image = pytest.importorskip("PIL.Image", reason="Pillow writes the files of this test")


@pytest.fixture
def pixels(rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (*SIZE, 3), np.uint8)


def _oriented(folder: Path, kind: str, pixels: NDArray[np.uint8], orientation: int) -> Path:
    path, image = folder / f"x{orientation}.{kind}", Image.fromarray(pixels)
    if kind == "tif":
        image.save(path, tiffinfo={274: orientation})
    else:
        exif = Image.Exif()
        exif[274], exif.endian = orientation, "<" if orientation % 2 else ">"
        image.save(path, exif=exif)
    return path


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("kind", ["tif", "jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_that_are_stored_turned_are_refused_by_name(
    tmp_path: Path, pixels: NDArray[np.uint8], kind: str, orientation: int
) -> None:
    path = _oriented(tmp_path, kind, pixels, orientation)
    drivers = ("WEBP",) if kind == "webp" else ()
    if orientation == 1:
        open_raster(path, drivers=drivers).close()
        return
    with pytest.raises(RasterError, match=rf"x{orientation}\.{kind}.*orientation.*\({orientation}\)"):
        open_raster(path, drivers=drivers)
    if kind != "webp":
        with pytest.raises(RasterError, match="orientation"):
            LabelRaster(path)


def test_a_tag_that_no_viewer_follows_is_no_orientation(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    for orientation in (0, 9):
        open_raster(_oriented(tmp_path, "jpg", pixels, orientation)).close()


def _pages(path: Path, *pages: NDArray[np.uint8]) -> Path:
    first, *others = (Image.fromarray(page) for page in pages)
    first.save(path, save_all=True, append_images=others)
    return path


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_the_page_that_is_read_is_the_full_image(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    """A preview may come first or last; several pages of one size are refused, of images and labels."""
    band, small = np.ascontiguousarray(pixels[..., 0]), np.zeros((5, 6), np.uint8)
    for order in ((small, band), (band, small), (small, band, small)):
        path = _pages(tmp_path / "p.tif", *order)
        with open_raster(path) as raster:
            image, valid = raster.read(Window(0, 0, *SIZE))
        np.testing.assert_array_equal(image[..., 0], band)
        assert valid.all()
        with LabelRaster(path) as label:
            np.testing.assert_array_equal(label.stored()[0], band)
    for path in (_pages(tmp_path / "b.tif", band, band), _pages(tmp_path / "c.tif", small, band, band)):
        for opening in (open_raster, LabelRaster):
            with pytest.raises(RasterError, match=r"one page.*GTIFF_DIR:"):
                opening(path)


def test_overviews_and_masks_are_no_pages(make_geotiff: Make, rng: np.random.Generator) -> None:
    path = make_geotiff(
        "o.tif", rng.integers(0, 9, (600, 700), np.uint8), masks=np.full((600, 700), 255, np.uint8)
    )
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as dataset:
        dataset.build_overviews([2, 4])
    open_raster(path).close()


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_indices_of_a_palette_are_no_measurements(
    make_geotiff: Make, make_png: Make, rng: np.random.Generator
) -> None:
    """But where the band is named, and of a palette that is a ramp of grey."""
    indices = rng.integers(0, 4, SIZE, np.uint8)
    colours = {0: (9, 9, 9, 255), 1: (1, 2, 3, 255), 2: (200, 0, 0, 255), 3: (0, 200, 0, 255)}
    for path in (
        make_png("p.png", indices, colours=colours),
        make_geotiff("p.tif", indices, colours=colours),
    ):
        with pytest.raises(BandsError, match=r"palette.*-expand rgb.*bands"):
            open_raster(path)
        with open_raster(path, (1,)) as raster:
            assert any("palette" in remark for remark in raster.info.remarks)
    inverted = make_geotiff("bits.tif", indices % 2, nbits=1, photometric="MINISWHITE")
    with pytest.raises(BandsError, match="palette"):
        open_raster(inverted)
    grey = make_png("g.png", indices, colours={i: (i, i, i, 255) for i in range(256)})
    open_raster(grey).close()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("GDAL_DISABLE_READDIR_ON_OPEN", "EMPTY_DIR"),
        ("GDAL_PAM_ENABLED", "NO"),
        ("GDAL_PAM_PROXY_DIR", "/tmp/nowhere"),
        ("GDAL_GEOREF_SOURCES", "NONE"),
        ("GTIFF_POINT_GEO_IGNORE", "YES"),
        ("GTIFF_FORCE_RGBA", "YES"),
        ("GDAL_JPEG_TO_RGB", "NO"),
    ],
)
@pytest.mark.parametrize("within", ["environment", "Env"])
def test_settings_of_the_environment_do_not_change_what_a_file_means(
    make_geotiff: Make, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, within: str
) -> None:
    rng = np.random.default_rng(3)
    path = make_geotiff("x.tif", rng.integers(0, 9, (*SIZE, 3), np.uint8), AREA_OR_POINT="Point")
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(AREA_OR_POINT="Point")
    lossy = path.with_name("j.jpg")
    Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(lossy)
    path.with_name("x.tif.aux.xml").write_text(
        '<PAMDataset><PAMRasterBand band="1"><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>'
    )
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(path, "r+") as dataset:
        dataset.write_mask(np.eye(*SIZE, dtype=np.uint8) * 255)

    def seen() -> list[Any]:
        found: list[Any] = []
        for each in (path, lossy):
            with open_raster(each) as raster:
                image, valid = raster.read(Window.of(raster.info.size))
            info = raster.info
            found += [image.tolist(), valid.tolist(), info.nodata, info.crs, info.transform, info.count]
        return found

    expected = seen()
    assert expected[2] == (7.0, None, None)
    assert sum(map(sum, expected[1])) == SIZE[0]
    if within == "environment":
        monkeypatch.setenv(setting, value)
        assert seen() == expected
    else:
        with rasterio.Env(**{setting: value}):
            assert seen() == expected


def test_crs_that_differ_in_heights_or_a_null_shift_place_pixels_alike(make_geotiff: Make) -> None:
    epsg = CRS.from_epsg(25833)
    null = CRS.from_wkt(epsg.to_wkt().replace(',AUTHORITY["EPSG","7019"]]', "],TOWGS84[0,0,0,0,0,0,0]"))
    assert "TOWGS84" in null.to_wkt()
    assert same_ground(null, epsg)
    shifted = CRS.from_string("+proj=utm +zone=33 +ellps=GRS80 +towgs84=0,0,0,0,0,0,0 +units=m +no_defs")
    plain = CRS.from_string("+proj=utm +zone=33 +ellps=GRS80 +units=m +no_defs")
    moved = CRS.from_string("+proj=utm +zone=33 +ellps=GRS80 +towgs84=9,0,0,0,0,0,0 +units=m +no_defs")
    alike = [("EPSG:25833", "EPSG:25833+7837"), ("EPSG:4326", "EPSG:4979"), ("EPSG:4326", "OGC:CRS84")]
    for one, other in alike:
        assert same_ground(CRS.from_string(one), CRS.from_string(other)), (one, other)
    assert same_ground(plain, shifted)
    for one, other in (("EPSG:25833", "EPSG:25832+7837"), ("EPSG:4326", "EPSG:4258")):
        assert not same_ground(CRS.from_string(one), CRS.from_string(other)), (one, other)
    assert not same_ground(plain, moved)
    assert not same_ground(None, plain)
    image = raster_info(make_geotiff("i.tif", np.zeros(SIZE, np.uint8), crs="EPSG:25833+7837"))
    label = raster_info(make_geotiff("l.tif", np.zeros(SIZE, np.uint8), crs="EPSG:25833"))
    assert alignment_errors(image, label) == []


def test_a_file_of_subdatasets_alone_is_refused_naming_them(tmp_path: Path, make_geotiff: Make) -> None:
    path = tmp_path / "many.nc"
    rasterio.shutil.copy(make_geotiff("a.tif", np.full((16, 16, 2), 7, np.uint8)), path, driver="netCDF")
    with pytest.raises(RasterError, match=r"many\.nc.*subdatasets.*Band1"):
        open_raster(path, drivers=("netCDF",))
