"""Reading rasters: what is valid, and what is refused."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.transform import Affine

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.raster import (
    RasterSpec,
    open_raster,
    raster_info,
    read_label,
    write_raster,
)

Make = Callable[..., Path]
UTM = CRS.from_epsg(25833)


def everything(path: Path, bands: tuple[int, ...] | None = None) -> tuple[Any, Any]:
    with open_raster(path, bands) as raster:
        return raster.read(Window.of(raster.info.size))


# --------------------------------------------------------------------------------------- reading


def test_a_window_beyond_the_raster_is_padded_and_invalid(
    make_geotiff: Make, rng: np.random.Generator
) -> None:
    pixels = rng.integers(1, 255, (13, 17, 3), np.uint8)
    with open_raster(make_geotiff("a.tif", pixels)) as raster:
        image, valid = raster.read(Window(-2, 5, 20, 20))
        nothing, none = raster.read(Window(50, 50, 4, 4))
    np.testing.assert_array_equal(image[2:15, :12], pixels[:, 5:])
    assert valid[2:15, :12].all()
    assert valid.sum() == 13 * 12
    assert image.sum() == pixels[:, 5:].sum()
    assert not none.any()
    assert not nothing.any()


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"]
)
def test_every_real_type_is_read_as_it_is(make_geotiff: Make, rng: np.random.Generator, dtype: str) -> None:
    pixels = rng.integers(0, 120, (9, 11, 2)).astype(dtype)
    image, valid = everything(make_geotiff("a.tif", pixels))
    assert image.dtype == dtype
    assert valid.all()
    np.testing.assert_array_equal(image, pixels)


def test_complex_numbers_are_refused(make_geotiff: Make) -> None:
    path = make_geotiff("a.tif", np.zeros((4, 4), np.complex64))
    with pytest.raises(RasterError, match="expected real numbers, got complex64"):
        open_raster(path)


@pytest.mark.parametrize("band", [0, 4, -1])
def test_a_missing_band_is_named(make_geotiff: Make, band: int) -> None:
    path = make_geotiff("a.tif", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(RasterError, match=f"expected band {band} .*the raster has 3"):
        open_raster(path, (1, band))


def test_the_header_is_complete(make_geotiff: Make) -> None:
    pixels = np.zeros((4, 6, 2), np.uint16)
    info = raster_info(make_geotiff("a.tif", pixels, nodata=7, descriptions=("red", "nir")))
    assert (info.size, info.count, info.dtype, info.driver) == (Size(4, 6), 2, "uint16", "GTiff")
    assert info.crs == UTM
    assert info.nodata == (7, 7)
    assert info.descriptions == ("red", "nir")
    assert info.metres_per_pixel == pytest.approx(0.5)
    assert info.georeferenced
    plain = raster_info(make_geotiff("b.tif", pixels, crs=None))
    assert (plain.transform, plain.crs, plain.metres_per_pixel, plain.georeferenced) == (
        None,
        None,
        None,
        False,
    )


def test_metres_per_pixel_of_degrees_and_feet(tmp_path: Path) -> None:
    pixels = np.zeros((10, 10), np.uint8)
    degrees = Affine(0.001, 0, 11, 0, -0.001, 60.005)
    write_raster(tmp_path / "d.tif", pixels, RasterSpec(crs=CRS.from_epsg(4326), transform=degrees))
    write_raster(
        tmp_path / "f.tif",
        pixels,
        RasterSpec(crs=CRS.from_epsg(2263), transform=Affine(2, 0, 9e5, 0, -2, 2e5)),
    )
    # A degree of longitude at 60° is half as long: the side of a square of the same area is 1/√2.
    assert raster_info(tmp_path / "d.tif").metres_per_pixel == pytest.approx(111.32 / 2**0.5, rel=1e-3)
    assert raster_info(tmp_path / "f.tif").metres_per_pixel == pytest.approx(2 * 0.3048006, rel=1e-5)


def test_each_thread_opens_its_own(make_geotiff: Make, rng: np.random.Generator) -> None:
    pixels = rng.integers(0, 255, (64, 64, 3), np.uint8)
    path, wrong = make_geotiff("a.tif", pixels, tiled=True, blockxsize=16, blockysize=16), []

    def read() -> None:
        for start in range(0, 48, 3):
            with open_raster(path) as raster:
                image, _ = raster.read(Window(start, start, 16, 16))
            if not (image == pixels[start : start + 16, start : start + 16]).all():
                wrong.append(start)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --------------------------------------------------------------------------------------- refusals


def test_only_local_images_are_opened(tmp_path: Path, make_geotiff: Make) -> None:
    source = make_geotiff("a.tif", np.zeros((4, 4), np.uint8))
    vrt = tmp_path / "a.tif.vrt"
    vrt.write_text(
        f'<VRTDataset rasterXSize="4" rasterYSize="4"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        f"<SourceFilename>{source}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"
    )
    disguised = tmp_path / "innocent.tif"
    disguised.write_bytes(vrt.read_bytes())
    for path in (vrt, disguised):
        with pytest.raises(
            RasterError, match="expected a GeoTIFF, PNG or JPEG, the file begins with b'<VRT'"
        ):
            open_raster(path)
    for text in (f"/vsizip/{source}", f"GTIFF_DIR:1:{source}", "https://example.org/a.tif"):
        with pytest.raises(RasterError, match="expected a raster file, there is none"):
            open_raster(Path(text))
    with pytest.raises(RasterError, match="expected a raster file, got a folder, pipe or device"):
        open_raster(tmp_path)


def test_an_empty_file_and_a_damaged_header_are_refused(tmp_path: Path, make_geotiff: Make) -> None:
    empty = tmp_path / "empty.tif"
    empty.touch()
    with pytest.raises(RasterError, match=r"empty\.tif: expected a GeoTIFF, PNG or JPEG"):
        open_raster(empty)
    headless = tmp_path / "headless.tif"
    headless.write_bytes(make_geotiff("a.tif", np.zeros((4, 4), np.uint8)).read_bytes()[:6])
    with pytest.raises(RasterError, match=r"headless\.tif: cannot open it"):
        open_raster(headless)


@pytest.mark.parametrize("suffix", [".tif", ".png", ".jpg"])
def test_a_truncated_image_names_file_and_window(
    tmp_path: Path, rng: np.random.Generator, suffix: str
) -> None:
    whole, cut = tmp_path / f"a{suffix}", tmp_path / f"cut{suffix}"
    driver = {".tif": "GTiff", ".png": "PNG", ".jpg": "JPEG"}[suffix]
    write_raster(whole, rng.integers(0, 255, (600, 40, 3), np.uint8), RasterSpec(driver=driver))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    with (
        pytest.raises(RasterError, match=rf"cut\{suffix}: cannot (read rows 0–599, columns 0–39|open it)"),
        open_raster(cut) as raster,
    ):
        raster.read(Window.of(raster.info.size))


def test_the_intact_part_of_a_truncated_geotiff_can_be_read(tmp_path: Path, rng: np.random.Generator) -> None:
    pixels = rng.integers(0, 255, (1100, 512), np.uint8)
    write_raster(tmp_path / "a.tif", pixels)
    cut = tmp_path / "cut.tif"
    cut.write_bytes((tmp_path / "a.tif").read_bytes()[:540_000])
    with open_raster(cut) as raster:
        image, _ = raster.read(Window(0, 0, 512, 512))
        np.testing.assert_array_equal(image[..., 0], pixels[:512])
        with pytest.raises(RasterError, match=r"cannot read rows 1024–1099, columns 0–511"):
            raster.read(Window(1024, 0, 76, 512))


def test_a_small_file_that_declares_too_much_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tif"
    profile = {"driver": "GTiff", "dtype": "uint8", "count": 1, "tiled": True, "sparse_ok": True}
    with rasterio.open(bomb, "w", width=1 << 17, height=1 << 17, blockxsize=4096, blockysize=4096, **profile):
        pass
    with pytest.raises(
        RasterError, match=r"declares 131072×131072 pixels in a file of \d+ bytes.*--max-pixels"
    ):
        open_raster(bomb)
    with open_raster(bomb, max_pixels=1 << 34) as raster:
        assert raster.info.size == Size(1 << 17, 1 << 17)
    with pytest.raises(RasterError, match="more than the 1000000 allowed"):
        open_raster(bomb, max_pixels=1_000_000)


def test_blocks_that_do_not_fit_in_memory_are_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tif"
    profile = {"driver": "GTiff", "dtype": "uint8", "count": 5, "tiled": True, "compress": "deflate"}
    with rasterio.open(
        bomb, "w", width=20, height=20, blockxsize=1 << 14, blockysize=1 << 14, sparse_ok=True, **profile
    ):
        pass
    with pytest.raises(RasterError, match=r"blocks of 16384×16384 pixels \(1280 MiB\).*TILED=YES"):
        open_raster(bomb)


# ----------------------------------------------------------------------------------------- labels


def test_labels_come_raw(make_geotiff: Make, make_png: Make, rng: np.random.Generator) -> None:
    codes = rng.integers(0, 900, (9, 7), np.uint16)
    np.testing.assert_array_equal(read_label(make_png("c.png", codes)), codes)
    colours = rng.integers(0, 255, (9, 7, 4), np.uint8)
    got = read_label(make_geotiff("d.tif", colours), Window(2, 3, 4, 4))
    np.testing.assert_array_equal(got, colours[2:6, 3:7, :3])


def test_a_palette_is_indices_or_colours(make_png: Make) -> None:
    indices = np.array([[0, 1], [2, 1]], np.uint8)
    table = {0: (10, 20, 30, 255), 1: (40, 50, 60, 255), 2: (40, 50, 60, 255)}
    path = make_png("p.png", indices, colours=table)
    assert raster_info(path).has_palette
    np.testing.assert_array_equal(read_label(path), indices)
    expanded = read_label(path, expand_palette=True)
    assert expanded.tolist() == [[[10, 20, 30], [40, 50, 60]], [[40, 50, 60], [40, 50, 60]]]
    grey = read_label(make_png("g.png", indices), expand_palette=True)
    np.testing.assert_array_equal(grey, np.stack([indices] * 3, axis=2))


def test_a_label_smaller_than_the_window_is_refused(make_png: Make) -> None:
    path = make_png("l.png", np.zeros((8, 8), np.uint8))
    with pytest.raises(RasterError, match=r"at least rows 4–11, columns 0–7, got one of 8×8 pixels"):
        read_label(path, Window(4, 0, 8, 8))


def test_scale_and_offset_are_respected(make_geotiff: Make, rng: np.random.Generator) -> None:
    """Nodata is a stored value; each band is scaled on its own, in whatever order they are asked for."""
    stored = rng.integers(1, 1000, (9, 11, 2), np.uint16)
    stored[2, 3] = 0
    path = make_geotiff("a.tif", stored, nodata=0)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (0.5, 0.001), (-3.0, 7.0)
    with open_raster(path, (2, 1)) as raster:
        assert raster.info.dtype == "float32"
        image, valid = raster.read(Window(0, 0, 12, 11))
        coarse, _ = raster.thinned(Window(0, 0, 9, 11), Size(9, 11))
    expected = np.stack([stored[..., 1] * 0.001 + 7, stored[..., 0] * 0.5 - 3], axis=2).astype(np.float32)
    np.testing.assert_array_equal(coarse, expected)
    expected[2, 3] = 0
    np.testing.assert_array_equal(image[:9], expected)
    assert image.dtype == np.float32
    assert not valid[2, 3]
    assert valid[:9].sum() == 98


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-30], lambda text: b"", lambda text: b"\0" * len(text)],
    ids=["cut", "empty", "0"],
)
def test_a_damaged_sidecar_is_refused(make_geotiff: Make, damage: Callable[[bytes], bytes]) -> None:
    """GDAL goes on without all that it says, in silence."""
    path = make_geotiff("a.tif", np.full((8, 9, 3), 7, np.uint8))
    sidecar = path.with_name("a.tif.aux.xml")
    bands = "".join(
        f'<PAMRasterBand band="{b}"><NoDataValue>7</NoDataValue></PAMRasterBand>' for b in (1, 2, 3)
    )
    sidecar.write_text(f"<PAMDataset>{bands}</PAMDataset>\n", encoding="utf-8")
    assert not everything(path)[1].any()
    sidecar.write_bytes(damage(sidecar.read_bytes()))
    with pytest.raises(RasterError, match=r"a\.tif: expected XML beside it, a\.tif\.aux\.xml is none"):
        open_raster(path)


def test_a_world_file_of_no_use_is_told(make_png: Make) -> None:
    path = make_png("a.png", np.ones((4, 5, 3), np.uint8))
    world = path.with_suffix(".pgw")
    world.write_text("2\n0\n0\n-2\n500000\n6000000\n", encoding="ascii")
    info = raster_info(path)
    assert (info.transform is not None, info.remarks) == (True, ())
    world.write_text("2\n0\n0\n", encoding="ascii")
    assert raster_info(path).remarks == ("its world file a.pgw tells no place",)


def test_a_text_with_more_zeros_behind_it_than_one_is_no_damage(tmp_path: Path) -> None:
    """Some programs pad the texts in TIFF tags."""
    path = tmp_path / "a.tif"
    write_raster(path, np.arange(12, dtype=np.uint8).reshape(3, 4), RasterSpec(nodata=3))
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<HHI", 42113, 2, 2))  # GDAL_NODATA: text, 2 bytes, in place
    data[at + 4 : at + 12] = struct.pack("<I4s", 4, b"3\0\0\0")
    path.write_bytes(data)
    assert everything(path)[1].sum() == 11
    assert any("null byte" in remark for remark in raster_info(path).remarks)


def test_a_png_is_refused_by_its_size_before_it_is_read(
    make_png: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_png("a.png", np.ones((40, 50, 3), np.uint8))
    monkeypatch.setattr("segmenter.raster.opening.check_png", lambda *_: pytest.fail("it is inflated"))
    with pytest.raises(RasterError, match="declares 50×40 pixels"):
        open_raster(path, max_pixels=1000)
