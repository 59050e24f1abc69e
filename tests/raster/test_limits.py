"""Rasters that would take memory or time out of all proportion are refused from their headers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.raster import open_raster, raster_info, read_label, reading

Make = Callable[..., Path]

# --------------------------------------------------------------------------------------- JPEG


def jpeg(path: Path, height: int, width: int, **options: Any) -> Path:
    values = np.random.default_rng(1).integers(0, 255, (3, height, width), np.uint8)
    size = {"height": height, "width": width, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="JPEG", **size, **options) as file:
        file.write(values)
    return path


def test_a_progressive_jpeg_that_libjpeg_may_not_decode_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jpeg(tmp_path / "a.jpg", 1501, 2003, progressive=True)
    monkeypatch.setenv("JPEGMEM", "6M")
    with (
        open_raster(path) as raster,
        pytest.raises(RasterError, match=r"a.jpg: is a progressive JPEG, .* set JPEGMEM="),
    ):
        raster.read(Window(0, 0, 1501, 2003))
    with pytest.raises(RasterError, match="is a progressive JPEG"):
        read_label(path)


# ---------------------------------------------------------------------------------------- PNG


def png(path: Path, height: int, width: int, *, interlaced: bool) -> Path:
    """A PNG of 16-bit RGBA that ends after its header, or holds all of its pixels, which are 0."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, interlaced)
    pixels = chunk(b"IDAT", zlib.compress(bytes(20_000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels)
    return path


def test_a_large_interlaced_png_is_refused_before_it_is_inflated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.raster.gdal.png._fault", lambda *_: pytest.fail("it is inflated"))
    with pytest.raises(RasterError, match=r"is an interlaced PNG of 305\d MiB, at most 256 are decoded"):
        open_raster(png(tmp_path / "a.png", 20_000, 20_000, interlaced=True))


def test_a_small_one_is_read(tmp_path: Path) -> None:
    with open_raster(png(tmp_path / "a.png", 30, 40, interlaced=True), (1, 2, 3, 4)) as raster:
        assert raster.read(Window(0, 0, 30, 40))[0].shape == (30, 40, 4)


# ---------------------------------------------------------------------------------------- bands


def many_bands(path: Path, count: int) -> Path:
    """A TIFF of 4×4 pixels whose bands lie beside each other, of which each pixel is 0."""
    entries = [(256, 3, 1, 4), (257, 3, 1, 4), (258, 3, count, 122), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries += [(273, 4, 1, 122 + 2 * count), (277, 3, 1, count), (278, 3, 1, 4), (279, 4, 1, 16 * count)]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)
    assert len(head) == 122
    path.write_bytes(head + struct.pack("<H", 8) * count + bytes(16 * count))
    return path


@pytest.mark.parametrize("count", [30_000, 65_535])
def test_more_bands_than_can_be_read_are_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = many_bands(tmp_path / "a.tif", count)
    assert raster_info(path).count == count
    with pytest.raises(RasterError, match=rf"expected at most 4096 bands to read at once, got {count}; say"):
        open_raster(path)
    with open_raster(path, (1, count)) as raster:
        image, valid = raster.read(Window(0, 0, 4, 4))
        assert raster.thinned(Window(0, 0, 4, 4), Size(2, 2))[0].shape == (2, 2, 2)
    assert image.shape == (4, 4, 2)
    assert valid.all()
    assert (read_label(path) == 0).all()


def test_the_header_of_many_bands_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of rasterio's lists is of all bands: once a band takes the square of their number."""
    asked: list[str] = []
    real = reading.open_dataset

    class Counting:
        def __init__(self, dataset: Any) -> None:
            self._dataset = dataset

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(self._dataset, name)

    def counting(*given: Any) -> Any:
        opened = real(*given)
        return opened._replace(dataset=Counting(opened.dataset))

    monkeypatch.setattr(reading, "open_dataset", counting)
    counts = []
    for count in (20, 200):
        asked.clear()
        with open_raster(many_bands(tmp_path / f"{count}.tif", count)) as raster:
            raster.read(Window(0, 0, 4, 4))
        counts.append(len(asked))
    assert counts[0] == counts[1]
