"""Side files and tags: followed or refused by name; no raster chooses what else is opened."""

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.crs import CRS

from segmenter.base.errors import BandsError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.raster import LabelRaster, open_raster, raster_info
from segmenter.raster.crs_units import same_ground
from segmenter.raster.gdal.sidecars import check_beside
from segmenter.raster.ground import alignment_errors
from tests.helpers.made_rasters import written
from tests.helpers.refusals import refused

Make = Callable[..., Path]
H, W = 70, 90
OWN, OTHER = 50, 222


@pytest.fixture
def secret(make_geotiff: Make) -> Path:
    """A file of half the size, such as GDAL takes for overviews."""
    return make_geotiff("other/secret.tif", np.full((H // 2, W // 2, 3), OTHER, np.uint8), crs=None)


@pytest.fixture
def image(make_geotiff: Make) -> Path:
    return make_geotiff("in/a.tif", np.full((H, W, 3), OWN, np.uint8), crs=None)


def thinned(path: Path) -> Any:
    with open_raster(path) as raster:
        return raster.thinned(Window(0, 0, H, W), Size(H // 5, W // 5))[0]


def naming(other: object) -> str:
    """An `.aux.xml` that names another file as overviews."""
    item = f'<MDI key="overview_file">{other}</MDI>'
    return f'<PAMDataset><Metadata domain="Overviews">{item}</Metadata></PAMDataset>'


@pytest.mark.parametrize("target", ["{}", "/vsicurl/http://127.0.0.1:9/x.tif", ":::BASE:::../other/x.vrt"])
def test_a_tiff_that_names_its_overviews_is_refused(image: Path, secret: Path, target: str) -> None:
    with rasterio.open(image, "r+") as file:
        file.update_tags(ns="OVERVIEWS", OVERVIEW_FILE=target.format(secret))
    with refused(RasterError, where="a.tif", fault="names another"):
        thinned(image)
    with refused(RasterError, fault="names another"):
        raster_info(image)


@pytest.mark.parametrize("suffix", [".tif", ".png", ".jpg"])
def test_so_is_a_file_beside_an_image_that_names_them(tmp_path: Path, secret: Path, suffix: str) -> None:
    path = written(tmp_path / f"a{suffix}", np.full((H, W, 3), OWN, np.uint8))
    path.with_name(path.name + ".aux.xml").write_text(naming(secret))
    with rasterio.open(path) as file:  # the door is there
        assert file.read(1, out_shape=(H // 5, W // 5)).max() == OTHER
    with refused(RasterError, fault="names another"):
        thinned(path)


@pytest.mark.parametrize("beside", [".ovr", ".MSK", ".ovr.ovr", ".msk.ovr"])
def test_so_is_one_whose_overviews_or_mask_name_further_ones(image: Path, secret: Path, beside: str) -> None:
    kept = image.with_name(image.name + beside)
    shutil.copy(secret, kept)
    if len(beside) > 4:
        shutil.copy(secret, image.with_name(image.name + beside[:4]))
    kept.with_name(kept.name + ".aux.xml").write_text(naming(secret))
    with refused(RasterError, where=f"a.tif{beside}", fault="names"):
        thinned(image)


@pytest.mark.parametrize("ending", [".OVR", ".msk.ovr"])
def test_overviews_and_masks_are_of_a_tiff_under_each_name(image: Path, secret: Path, ending: str) -> None:
    if len(ending) > 4:
        shutil.copy(secret, image.with_name(image.name + ending[:4]))
    image.with_name(image.name + ending).write_text('<VRTDataset rasterXSize="9" rasterYSize="9"/>')
    with refused(RasterError, expected="begins with b'<VRT'"):
        thinned(image)


@pytest.mark.parametrize("external", [False, True])
def test_the_own_overviews_of_a_file_serve_pictures(image: Path, external: bool) -> None:
    with rasterio.Env(TIFF_USE_OVR=external), rasterio.open(image, "r+") as file:
        file.build_overviews([2, 4])
    with rasterio.open(image) as file:
        assert file.overviews(1) == [2, 4]
    assert image.with_name("a.tif.ovr").exists() is external
    if not external:
        with rasterio.open(image, "r+") as file:
            file.write(np.full((3, H, W), 9, np.uint8))  # the overviews stay as they were
    assert (thinned(image) == OWN).all()


def test_metadata_of_imagine_beside_an_image_are_refused(image: Path) -> None:
    """They may name further files of any form, and are taken for overviews."""
    with rasterio.Env(USE_RRD=True), rasterio.open(image, "r+") as file:
        file.build_overviews([2])
    assert image.with_name("a.aux").exists()
    with rasterio.open(image) as file:
        assert file.overviews(1) == [2]
    with refused(RasterError, fault="a.aux beside"):
        thinned(image)
    image.with_name("a.aux").write_text("\\relax")  # TeX's
    assert (thinned(image) == OWN).all()


GRIDS = CRS.from_string("+proj=utm +zone=33 +ellps=bessel +nadgrids=@nowhere +type=crs")
DATUM = 'DATUM["d",SPHEROID["B",6377397.155,299.15],EXTENSION["PROJ4_GRIDS","{}"]]'
WKT = 'GEOGCS["x",' + DATUM + ',PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]'


@pytest.mark.parametrize(
    "crs",
    [
        "+proj=utm +zone=33 +nadgrids={}",
        "+proj=utm +zone=33 +n&#97;dgrids={}",
        GRIDS.to_wkt(version="WKT2_2019").replace("@nowhere", "{}"),
        WKT,
        "+init={}:1234",
        "{}",
        "ESRI::{}",
        "+proj=pipeline +step +proj=tinshift +file={}",
    ],
)
def test_a_crs_beside_an_image_names_no_file(image: Path, secret: Path, crs: str) -> None:
    """Nor that of its control points; nor the WKT of other programs."""
    text = crs.replace("{}", str(secret)).replace('"', "&quot;")
    places = [f'<GCPList Projection="{text}"></GCPList>', f"<sRS mapping='1,2'>{text}</sRS>"]
    if crs is WKT:
        esri = f"<GeodataXform><SpatialReference><WKT>{text}</WKT></SpatialReference></GeodataXform>"
        places.append(f'<Metadata domain="xml:ESRI" format="xml">{esri}</Metadata>')
    for place in places:
        image.with_name("a.tif.aux.xml").write_text(f"<PAMDataset>{place}</PAMDataset>")
        with refused(RasterError, where="in/a.tif", expected="a.tif.aux.xml that names"):
            open_raster(image)


def test_a_text_that_is_no_crs_may_say_anything(image: Path) -> None:
    item = '<MDI key="DESCRIPTION">file = grids of init = 3 (pipeline)</MDI>'
    image.with_name("a.tif.aux.xml").write_text(f"<PAMDataset><Metadata>{item}</Metadata></PAMDataset>")
    open_raster(image).close()


@pytest.mark.parametrize("crs", ["", "EPSG:25833", CRS.from_epsg(25833).to_wkt(), "+proj=utm +zone=33"])
def test_any_other_crs_beside_an_image_counts(image: Path, crs: str) -> None:
    text = crs.replace('"', "&quot;")
    image.with_name("a.tif.aux.xml").write_text(f"<PAMDataset><SRS>{text}</SRS></PAMDataset>")
    assert (raster_info(image).crs is not None) is bool(crs)


@pytest.mark.parametrize("options", [{}, {"bigtiff": "YES", "endianness": "BIG"}])
def test_a_crs_in_a_geotiff_names_no_file(make_geotiff: Make, secret: Path, options: Any) -> None:
    """GeoTIFF keys can hold WKT, and with it what PROJ opens as soon as the raster is."""
    crs = CRS.from_string("+proj=merc +lat_ts=11.5 +x_0=111 +y_0=222 +ellps=bessel +type=crs")
    path = make_geotiff("a.tif", np.ones((4, 5), np.uint8), crs=crs, geotiff_keys_flavor="ESRI_PE", **options)
    assert raster_info(path).crs is not None
    data = path.read_bytes()
    start = data.index(b"ESRI PE String = ") + 17
    stop = data.index(b"|", start)
    named = WKT.format("/nowhere/g.gsb").encode()
    path.write_bytes(data[:start] + named.ljust(stop - start) + data[stop:])
    assert len(named) <= stop - start
    with refused(RasterError, where="a.tif", got="'PE String ="):
        open_raster(path)


BESIDE = ["a.tif.aux.xml", "a.tif.msk", "a.tif.ovr", "a.tif.OVR", "a.aux", "a.tfw", "a.wld", "a.TAB", "a.xml"]
BESIDE += ["a_RPC.TXT", "a.IMD", "a_metadata.txt", "METADATA.DIM", "RPC.txt", "a.tif.msk.aux.xml"]


@pytest.mark.parametrize("name", BESIDE)
def test_a_pipe_or_device_beside_an_image_is_refused(image: Path, secret: Path, name: str) -> None:
    """A pipe is waited for without end, a device read until memory ends."""
    if name.startswith("a.tif.msk."):
        shutil.copy(secret, image.with_name("a.tif.msk"))
    beside = image.with_name(name)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(beside)
        with refused(RasterError, expected=f"as {name}, it"):
            open_raster(image)
        beside.unlink()


@pytest.mark.parametrize("name", ["a.tif.aux.xml", "a.xml"])
def test_a_text_beside_an_image_is_of_a_bearable_size(image: Path, name: str) -> None:
    with image.with_name(name).open("wb") as file:
        file.truncate((16 << 20) + 1)
    with refused(RasterError, expected=f"16 MiB in {name}", got="16,777,217 bytes"):
        open_raster(image)


class Asked:
    """Where GDAL opens files: in the file system, keeping what it asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def open(self, path: str, mode: str = "r", **_: Any) -> Any:
        self.names.add(path)
        return open(path, "rb")

    def isfile(self, path: str) -> bool:
        self.names.add(path)
        return os.path.isfile(path)

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def ls(self, path: str) -> list[str]:
        raise AssertionError("a folder of 100,000 tiles is not listed at each open")

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(os.path.getmtime(path))

    def size(self, path: str) -> int:
        return os.path.getsize(path)


NAMES = ["a.tif", "a.png", "a.jpg", "a", "LC08_L1TP_B4.TIF", "x_rgb_000.tif", "09NOV_R01C1-P.TIF"]
NAMES += ["IMG-HH-ALPSR_F.tif", "IMG_PHR1A_P_2012.tif", "eros.1.tif", "K3_2013_R.tif", "2010-01_RE1_3A.tiff"]


@pytest.mark.parametrize("name", NAMES)
def test_all_that_gdal_looks_for_beside_an_image_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, asked, seen = tmp_path / name, Asked(), set()
    driver = {"png": "PNG", "jpg": "JPEG"}.get(name[-3:], "GTiff")
    written(path, np.ones((H, W, 3), np.uint8), driver)
    if name == NAMES[0]:
        for ending in (".ovr", ".msk", ".msk.ovr"):
            shutil.copy(path, path.with_name(name + ending))
    with rasterio.open(str(path), opener=asked, driver=driver) as file:
        _ = file.rpcs, file.gcps, file.mask_flag_enums, file.crs, file.tags()
        file.read(out_shape=(3, H // 5, W // 5))
        file.read_masks(out_shape=(3, H // 5, W // 5))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: seen.add(path) or access(path, mode))
    check_beside(path)
    assert {each for each in asked.names if each.startswith(str(tmp_path))} - seen == {str(path)}
    assert len(asked.names) > 10


SMALL = (14, 18)

Image = pytest.importorskip("PIL.Image", reason="Pillow writes the files of this test")


@pytest.fixture
def pixels(rng: np.random.Generator) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (*SMALL, 3), np.uint8)


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
@pytest.mark.parametrize("orientation", [1, 3, 8])
def test_pixels_that_are_stored_turned_are_refused_by_name(
    tmp_path: Path, pixels: NDArray[np.uint8], kind: str, orientation: int
) -> None:
    path = _oriented(tmp_path, kind, pixels, orientation)
    drivers = ("WEBP",) if kind == "webp" else ()
    if orientation == 1:
        open_raster(path, drivers=drivers).close()
        open_raster(_oriented(tmp_path, "jpg", pixels, 9)).close()  # which no viewer follows
        return
    with pytest.raises(RasterError, match=rf"x{orientation}\.{kind}.*orientation.*\({orientation}\)"):
        open_raster(path, drivers=drivers)
    if kind != "webp":
        with pytest.raises(RasterError, match="orientation"):
            LabelRaster(path)


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
            image, valid = raster.read(Window(0, 0, *SMALL))
        np.testing.assert_array_equal(image[..., 0], band)
        assert valid.all()
        with LabelRaster(path) as label:
            np.testing.assert_array_equal(label.stored_values()[0], band)
    for path in (_pages(tmp_path / "b.tif", band, band), _pages(tmp_path / "c.tif", small, band, band)):
        for opening in (open_raster, LabelRaster):
            with pytest.raises(RasterError, match=r"one page.*GTIFF_DIR:"):
                opening(path)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_indices_of_a_palette_are_no_measurements(
    make_geotiff: Make, make_png: Make, rng: np.random.Generator
) -> None:
    indices = rng.integers(0, 4, SMALL, np.uint8)
    colours = {0: (9, 9, 9, 255), 1: (1, 2, 3, 255), 2: (200, 0, 0, 255), 3: (0, 200, 0, 255)}
    for path in (
        make_png("p.png", indices, colours=colours),
        make_geotiff("p.tif", indices, colours=colours),
    ):
        with refused(BandsError, remedy="-expand rgb"):
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
def test_settings_of_the_environment_do_not_change_what_a_file_means(
    make_geotiff: Make, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    rng = np.random.default_rng(3)
    path = make_geotiff("x.tif", rng.integers(0, 9, (*SMALL, 3), np.uint8), AREA_OR_POINT="Point")
    with rasterio.open(path, "r+") as dataset:
        dataset.update_tags(AREA_OR_POINT="Point")
    lossy = path.with_name("j.jpg")
    Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(lossy)
    path.with_name("x.tif.aux.xml").write_text(
        '<PAMDataset><PAMRasterBand band="1"><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>'
    )
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(path, "r+") as dataset:
        dataset.write_mask(np.eye(*SMALL, dtype=np.uint8) * 255)

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
    assert sum(map(sum, expected[1])) == SMALL[0]
    with rasterio.Env(**{setting: value}):
        assert seen() == expected
    monkeypatch.setenv(setting, value)
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
    image = raster_info(make_geotiff("i.tif", np.zeros(SMALL, np.uint8), crs="EPSG:25833+7837"))
    label = raster_info(make_geotiff("l.tif", np.zeros(SMALL, np.uint8), crs="EPSG:25833"))
    assert alignment_errors(image, label) == []


def test_a_file_of_subdatasets_alone_is_refused_naming_them(tmp_path: Path, make_geotiff: Make) -> None:
    path = tmp_path / "many.nc"
    rasterio.shutil.copy(make_geotiff("a.tif", np.full((16, 16, 2), 7, np.uint8)), path, driver="netCDF")
    with refused(RasterError, where="many.nc"):
        open_raster(path, drivers=("netCDF",))
