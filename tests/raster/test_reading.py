"""Reading rasters: pixels, labels, missing blocks, and what is refused, if need be from its header."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.windows import Window as GdalWindow

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.raster import (
    Raster,
    RasterSpec,
    open_raster,
    raster_info,
    read_label,
    write_raster,
)
from segmenter.raster.mosaic import Mosaic
from segmenter.raster.reading import check_size
from segmenter.raster.stamps import file_digest
from tests.helpers.exact_network import RADIUS, STRIDE, exact_network
from tests.helpers.made_rasters import PLACE, written
from tests.helpers.refusals import refused

Make = Callable[..., Path]
UTM = CRS.from_epsg(25833)


def everything(path: Path, bands: tuple[int, ...] | None = None) -> tuple[Any, Any]:
    with open_raster(path, bands) as raster:
        return raster.read(Window.of(raster.info.size))


def test_complex_numbers_are_refused(make_geotiff: Make) -> None:
    path = make_geotiff("a.tif", np.zeros((4, 4), np.complex64))
    with refused(RasterError, where="a.tif", got="complex64"):
        open_raster(path)


def test_only_local_images_are_opened(tmp_path: Path, make_geotiff: Make) -> None:
    source = make_geotiff("a.tif", np.zeros((4, 4), np.uint8))
    disguised = tmp_path / "innocent.tif"
    disguised.write_text('<VRTDataset rasterXSize="4" rasterYSize="4"/>')
    with refused(RasterError, expected="begins with b'<VRT'"):
        open_raster(disguised)
    for text in (f"/vsizip/{source}", f"GTIFF_DIR:1:{source}", "https://example.org/a.tif"):
        with refused(RasterError, expected="raster file"):
            open_raster(Path(text))
    with refused(RasterError, expected="raster file"):
        open_raster(tmp_path)


@pytest.mark.parametrize("drivers", [(), ("JP2OpenJPEG",)])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, drivers: tuple[str, ...]) -> None:
    (tmp_path / "a.jp2").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with refused(RasterError, where="a.jp2", expected="Git LFS"):
        open_raster(tmp_path / "a.jp2", drivers=drivers)


def test_the_intact_part_of_a_truncated_geotiff_can_be_read(tmp_path: Path, rng: np.random.Generator) -> None:
    pixels = rng.integers(0, 255, (1100, 512), np.uint8)
    write_raster(tmp_path / "a.tif", pixels)
    cut = tmp_path / "cut.tif"
    cut.write_bytes((tmp_path / "a.tif").read_bytes()[:540_000])
    with open_raster(cut) as raster:
        image, _ = raster.read(Window(0, 0, 512, 512))
        np.testing.assert_array_equal(image[..., 0], pixels[:512])
        with refused(RasterError, where="cut.tif", fault="rows 1024–1099, columns 0–511"):
            raster.read(Window(1024, 0, 76, 512))


def test_a_small_file_that_declares_too_much_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tif"
    profile = {"driver": "GTiff", "dtype": "uint8", "count": 1, "tiled": True, "sparse_ok": True}
    with rasterio.open(bomb, "w", width=1 << 17, height=1 << 17, blockxsize=4096, blockysize=4096, **profile):
        pass
    with refused(RasterError, fault="131072×131072 pixels"):
        open_raster(bomb)
    with open_raster(bomb, max_pixels=1 << 34) as raster:
        assert raster.info.size == Size(1 << 17, 1 << 17)
    with refused(RasterError, fault="1000000 allowed"):
        open_raster(bomb, max_pixels=1_000_000)


def test_blocks_that_do_not_fit_in_memory_are_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tif"
    profile = {"driver": "GTiff", "dtype": "uint8", "count": 5, "tiled": True, "compress": "deflate"}
    with rasterio.open(
        bomb, "w", width=20, height=20, blockxsize=1 << 14, blockysize=1 << 14, sparse_ok=True, **profile
    ):
        pass
    with refused(RasterError, fault="16384×16384 pixels (1280 MiB)"):
        open_raster(bomb)


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
    with refused(RasterError, where="l.png", got="8×8 pixels"):
        read_label(path, Window(4, 0, 8, 8))


def test_scale_and_offset_are_respected(make_geotiff: Make, rng: np.random.Generator) -> None:
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
    with refused(RasterError, where="a.tif", expected="beside it, a.tif.aux.xml"):
        open_raster(path)


def test_a_world_file_of_no_use_is_told(make_png: Make) -> None:
    path = make_png("a.png", np.ones((4, 5, 3), np.uint8))
    world = path.with_suffix(".pgw")
    world.write_text("2\n0\n0\n-2\n500000\n6000000\n", encoding="ascii")
    info = raster_info(path)
    assert (info.transform is not None, info.remarks) == (True, ())
    world.write_text("2\n0\n0\n", encoding="ascii")
    assert raster_info(path).remarks == ("its world file a.pgw holds no usable georeference",)


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


def jpeg(path: Path, height: int, width: int, **options: Any) -> Path:
    values = np.random.default_rng(1).integers(0, 255, (height, width, 3), np.uint8)
    return written(path, values, **options)


def test_a_progressive_jpeg_that_libjpeg_may_not_decode_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jpeg(tmp_path / "a.jpg", 1501, 2003, progressive=True)
    monkeypatch.setenv("JPEGMEM", "6M")
    with (
        open_raster(path) as raster,
        refused(RasterError, where="a.jpg", fault="is a progressive"),
    ):
        raster.read(Window(0, 0, 1501, 2003))
    with refused(RasterError, fault="progressive JPEG"):
        read_label(path)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(path: Path, height: int, width: int, *, interlaced: bool) -> Path:
    """A PNG of 16-bit RGBA whose few pixels are 0."""
    header = struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, interlaced)
    pixels = chunk(b"IDAT", zlib.compress(bytes(20_000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels)
    return path


def test_a_large_interlaced_png_is_refused(tmp_path: Path) -> None:
    with refused(RasterError, fault="256 are decoded"):
        open_raster(png(tmp_path / "a.png", 20_000, 20_000, interlaced=True))


def many_bands(path: Path, count: int) -> Path:
    """A TIFF of 4×4 pixels whose bands lie beside each other, of which each pixel is 0."""
    entries = [(256, 3, 1, 4), (257, 3, 1, 4), (258, 3, count, 122), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries += [(273, 4, 1, 122 + 2 * count), (277, 3, 1, count), (278, 3, 1, 4), (279, 4, 1, 16 * count)]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)
    assert len(head) == 122
    path.write_bytes(head + struct.pack("<H", 8) * count + bytes(16 * count))
    return path


def test_more_bands_than_can_be_read_are_to_be_named(tmp_path: Path) -> None:
    count = 5000
    path = many_bands(tmp_path / "a.tif", count)
    assert raster_info(path).count == count
    with refused(RasterError, expected="most 4096 bands"):
        open_raster(path)
    with open_raster(path, (1, count)) as raster:
        image, valid = raster.read(Window(0, 0, 4, 4))
        assert raster.thinned(Window(0, 0, 4, 4), Size(2, 2))[0].shape == (2, 2, 2)
    assert image.shape == (4, 4, 2)
    assert valid.all()
    assert (read_label(path) == 0).all()


@pytest.mark.parametrize("interlaced", [False, True])
def test_a_png_that_lacks_pixels_is_refused(tmp_path: Path, interlaced: bool) -> None:
    with (
        refused(RasterError, where="a.png", fault="cannot "),
        open_raster(png(tmp_path / "a.png", 61, 83, interlaced=interlaced)) as raster,
    ):
        raster.read(Window.of(raster.info.size))


BANDS = 3
THERE = (Window(96, 320, 40, 70), Window(470, 5, 30, 30))


def sparse(path: Path, size: tuple[int, int] = (531, 703), **options: Any) -> Path:
    """A GeoTIFF of which two corners are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    profile: dict[str, Any] = {"tiled": True, "blockxsize": 64, "blockysize": 48, "nodata": 0}
    profile |= {**PLACE, "count": BANDS, "dtype": "uint8", "SPARSE_OK": True, **options}
    pixels = np.random.default_rng(0).integers(1, 255, (profile["count"], 70, 70)).astype(profile["dtype"])
    with rasterio.open(path, "w", driver="GTiff", height=size[0], width=size[1], **profile) as file:
        for window in THERE:
            place = GdalWindow(window.col, window.row, window.width, window.height)
            file.write(pixels[:, : window.height, : window.width], window=place)
    return path


def dense(path: Path, source: Path) -> Path:
    with rasterio.open(source) as file:
        profile, pixels = file.profile, file.read()
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(path, "w", **profile) as file:
        file.write(pixels)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Window]:
    found: list[Window] = []
    read = Raster._read_inside

    def counting(self: Raster, window: Window) -> Any:
        found.append(window)
        return read(self, window)

    monkeypatch.setattr(Raster, "_read_inside", counting)
    return found


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("exact", {"compress": "deflate", "interleave": "band"}),
        ("smooth", {"dtype": "float32", "nodata": -9999.0}),
    ],
)
def test_missing_blocks_are_not_read_and_the_map_is_the_dense_files(
    tmp_path: Path, call: Callable[..., int], reads: list[Window], mode: str, options: Any
) -> None:
    batches: list[int] = []

    def model(wanted: Any = None, **_: Any) -> Any:
        return exact_network(RADIUS, STRIDE, batches, wanted)

    maps, computed, pixels = [], [], []
    source = sparse(tmp_path / "sparse" / "a.tif", **options)
    for path in (source, dense(tmp_path / "dense" / "a.tif", source)):
        del reads[:], batches[:]
        name = f"{path.parent.name}-maps"
        arguments = (path, "--mode", mode, "--confidence", "--window-size", 64, "--batch", 5)
        assert call(*arguments, predictor=model, dtype=options.get("dtype", "uint8"), output=name) == 0
        pixels.append(sum(window.size.pixels for window in reads))
        computed.append(sum(batches))
        image = file_digest(path).encode()  # each map names the file that it is of
        maps.append({p.name: p.read_bytes().replace(image, b"") for p in (tmp_path / name).glob("*.tif")})
    assert maps[0] == maps[1]
    assert len(maps[0]) == 2
    assert computed[0] == computed[1] > 0
    assert pixels[0] < pixels[1] / 3


@pytest.mark.parametrize("options", [{}, {"compress": "lzw", "dtype": "float32"}], ids=str)
def test_without_a_nodata_value_missing_blocks_are_zeros_and_computed(tmp_path: Path, options: Any) -> None:
    with open_raster(sparse(tmp_path / "a.tif", nodata=None, **options)) as raster:
        nowhere = Window(200, 100, 40, 40)
        assert not raster.empty(nowhere)
        image, valid = raster.read(nowhere)
        assert valid.all()
        assert not image.any()


def test_what_is_called_empty_reads_as_empty(tmp_path: Path, rng: np.random.Generator) -> None:
    found = set()
    kinds: list[dict[str, Any]] = [
        {},
        {"count": 4, "photometric": "RGB", "alpha": "YES", "nodata": None},
        {"tiled": False, "blockysize": 7},
        {"tiled": False, "blockysize": 1},
        {"tiled": False, "blockysize": 531},
        {"tiled": False, "blockysize": 16, "compress": "lzw", "interleave": "band"},
    ]
    for number, options in enumerate(kinds):
        with open_raster(sparse(tmp_path / f"{number}.tif", **options), (1, 2, 3)) as raster:
            for _ in range(60):
                row, col = int(rng.integers(-40, 531)), int(rng.integers(-40, 703))
                window = Window(row, col, *(int(side) for side in rng.integers(1, 150, 2)))
                empty = raster.empty(window)
                found.add((number, empty))
                if empty:
                    assert not raster.read(window)[1].any()
    assert {(0, True), (0, False), (1, True), (2, True), (5, True), (5, False)} <= found


def test_a_mask_decides_itself(tmp_path: Path) -> None:
    path = sparse(tmp_path / "a.tif")
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(np.ones(file.shape, np.bool_))
    with open_raster(path) as raster:
        assert not raster.empty(Window(200, 100, 40, 40))


def test_a_mosaic_knows_of_all_its_files(tmp_path: Path) -> None:
    left = sparse(tmp_path / "a.tif")
    right = sparse(tmp_path / "b.tif", transform=rasterio.Affine(0.5, 0, 368000 + 703 / 2, 0, -0.5, 5808000))
    with Mosaic([left, right], open_raster).view(left) as view:
        for window in (Window(200, 680, 40, 40), Window(-9, 680, 600, 40), Window(90, 1000, 40, 70)):
            empty = window.row != 90 and window.height < 600
            assert view.empty(window) == empty == (not view.read(window)[1].any())


def test_a_file_that_goes_while_it_is_opened_is_refused(make_geotiff: Callable[..., Path]) -> None:
    path = make_geotiff("gone.tif", np.zeros((5, 7, 3), np.uint8))
    info = raster_info(path)
    with rasterio.open(path) as dataset:
        path.unlink()
        with refused(RasterError, where="gone.tif"):
            check_size(info, dataset)
