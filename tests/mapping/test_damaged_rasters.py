"""Damaged rasters, strange names and what is no file: refused in one line, with nothing left behind."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio

from datasets.commands.predict import without_rasterio
from tests.helpers.maps import Call, Make, Verdict
from tests.helpers.raster_verdict import H, W, pixels, shape


def sources(make_geotiff: Make, make_png: Make, tmp_path: Path, rng: Any) -> dict[str, Path]:
    """Whole files of all formats."""
    values, blocks = pixels(rng), {"tiled": True, "blockxsize": 32, "blockysize": 32}
    jpeg = tmp_path / "in" / "e.jpg"
    files = [
        make_geotiff("in/a.tif", values),
        make_geotiff("in/b.tif", values, compress="deflate", masks=shape(rng), **blocks),
        make_geotiff("in/c.tif", values, compress="jpeg", photometric="ycbcr", nodata=5, **blocks),
        make_png("in/d.png", values),
    ]
    with rasterio.open(jpeg, "w", driver="JPEG", width=W, height=H, count=3, dtype="uint8") as file:
        file.write(np.moveaxis(values, 2, 0))
    return {path.name: path for path in [*files, jpeg]}


@pytest.mark.parametrize("name", ["a.tif", "b.tif", "c.tif", "d.png", "e.jpg"])
def test_wherever_a_file_is_cut_off(
    tmp_path: Path, make_geotiff: Make, make_png: Make, rng: Any, verdict: Verdict, name: str
) -> None:
    whole = sources(make_geotiff, make_png, tmp_path, rng)[name].read_bytes()
    path = tmp_path / name
    for left in (0, 3, 8, 60, 150, 200, *np.linspace(250, len(whole) - 20, 6).astype(int)):
        path.write_bytes(whole[:left])
        assert verdict(path, 3) is not None, left


@pytest.mark.parametrize("name", ["a.tif", "b.tif", "c.tif", "d.png", "e.jpg"])
def test_wherever_a_header_is_damaged(
    tmp_path: Path, make_geotiff: Make, make_png: Make, rng: Any, verdict: Verdict, name: str
) -> None:
    """What can still be read is mapped as GDAL reads it; no traceback, no line of GDAL's, no hang."""
    whole = sources(make_geotiff, make_png, tmp_path, rng)[name].read_bytes()
    for turn in range(10):
        data = bytearray(whole)
        for _ in range(3):
            data[int(rng.integers(4, 600))] = rng.choice([0, 1, 2, 127, 128, 255])
        path = tmp_path / f"{turn}{name}"
        path.write_bytes(data)
        if verdict(path, 3) is None:
            shutil.rmtree("maps")


def directory_of(data: bytes) -> tuple[int, int]:
    """Where a classic little-endian TIFF's first directory begins, and the number of its entries."""
    start = struct.unpack_from("<I", data, 4)[0]
    return start, struct.unpack_from("<H", data, start)[0]


def entry_of(data: bytes, tag: int) -> int:
    start, count = directory_of(data)
    places = (start + 2 + 12 * index for index in range(count))
    return next(place for place in places if struct.unpack_from("<H", data, place)[0] == tag)


@pytest.mark.parametrize(
    ("tag", "what"), [(33550, "GeoPixelScale"), (34735, "GeoKeyDirectory"), (42113, "GDALNoDataValue")]
)
def test_what_says_where_or_whether_is_not_lost_in_silence(
    make_geotiff: Make, rng: Any, verdict: Verdict, tag: int, what: str
) -> None:
    """GDAL passes with a remark over tags that it cannot read, and the file has no place or nodata."""
    path = make_geotiff("a.tif", pixels(rng, dtype="float32"), nodata=-9999.25)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, entry_of(data, tag) + 8, 1 << 30)
    path.write_bytes(data)
    refusal = str(verdict(path, 3))
    assert refusal.startswith("cannot read its header: ")
    assert what in refusal


def test_a_mask_cut_off_is_not_lost_in_silence(make_geotiff: Make, rng: Any, verdict: Verdict) -> None:
    path = make_geotiff("a.tif", pixels(rng), masks=shape(rng))
    data = bytearray(path.read_bytes())
    start, count = directory_of(data)
    struct.pack_into("<I", data, start + 2 + 12 * count, len(data) + 2)  # where the mask's directory begins
    path.write_bytes(data)
    assert str(verdict(path, 3)).startswith("cannot read its header: ")


def test_a_large_raster_that_fails_leaves_nothing(make_geotiff: Make, rng: Any, verdict: Verdict) -> None:
    """From a size on, what was chosen for a raster is noted before its first window is read."""
    path = make_geotiff("a.tif", rng.integers(0, 255, (2100, 2100), np.uint8))
    path.write_bytes(path.read_bytes()[:-100])
    assert "cannot read rows " in str(verdict(path, 1, "--memory", "8GB"))


def test_directories_in_a_circle(make_geotiff: Make, rng: Any, verdict: Verdict) -> None:
    path = make_geotiff("a.tif", pixels(rng))
    data = bytearray(path.read_bytes())
    start, count = directory_of(data)
    struct.pack_into("<I", data, start + 2 + 12 * count, start)
    path.write_bytes(data)
    verdict(path, 3)


@pytest.mark.parametrize(("bands", "options"), [(1, {}), (4, {}), (3, {"dtype": "uint16"})])
def test_a_png_with_fewer_rows_than_it_declares(
    make_png: Make, rng: Any, verdict: Verdict, bands: int, options: Any
) -> None:
    """Read as a whole, GDAL gives zeros for them, or fails, by what happens to lie in memory."""
    values = pixels(rng, bands, options.get("dtype", "uint8"))
    values[..., 3:] = 255
    path = make_png("a.png", values)
    assert verdict(path, bands - (bands == 4)) is None
    shutil.rmtree("maps")
    data = bytearray(path.read_bytes())
    for rows in (H + 1, 4 * H):
        struct.pack_into(">I", data, 20, rows)
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
        path.write_bytes(data)
        assert "damaged or incomplete" in str(verdict(path, bands - (bands == 4)))


def test_what_rasterio_prints_of_text_that_is_no_utf8_is_dropped() -> None:
    """It quotes a damaged file in a place where nothing can be raised."""
    printed: list[Any] = []
    unraisable, uncaught = without_rasterio(printed.append, lambda *error: printed.append(error))
    unraisable(SimpleNamespace(object="rasterio._env.log_error"))
    uncaught(UnicodeDecodeError, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), None)
    assert printed == []
    unraisable(SimpleNamespace(object="another.module"))
    uncaught(ValueError, ValueError(), None)
    assert len(printed) == 2


def test_a_jpeg_with_broken_code_is_not_grey(
    make_geotiff: Make, make_png: Make, tmp_path: Path, rng: Any, verdict: Verdict
) -> None:
    """libjpeg fills up what it cannot decode, and only remarks on it."""
    for name in ("e.jpg", "c.tif"):
        path = sources(make_geotiff, make_png, tmp_path, rng)[name]
        data = bytearray(path.read_bytes())
        middle = len(data) // 2 if name == "e.jpg" else data.index(b"\xff\xda", len(data) // 2) + 40
        data[middle : middle + 200] = b"\xff\xd9" * 100
        path.write_bytes(data)
        assert str(verdict(path, 3)).startswith("cannot read rows ")


@pytest.mark.parametrize(
    "name",
    ["new\nline.tif", "esc\x1b[31mred.tif", "a:b.tif", "GTIFF_DIR:1:a.tif", "per%cent%20 ?#'\".tif", "→.tif"],
)
def test_every_name(
    make_geotiff: Make, rng: Any, verdict: Verdict, call: Call, capfd: Any, name: str
) -> None:
    """Control characters are escaped in every line."""
    make_geotiff("a.tif", pixels(rng) + 1)
    path = make_geotiff(name, pixels(rng)).relative_to(Path.cwd())
    assert call(path, "--output", "one", band_count=1) == 1
    (line,) = capfd.readouterr().err.splitlines()
    shown = name.replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert line.startswith(f"error: {shown}: expected 1")
    assert verdict(path, 3) is None


def test_a_name_that_leaves_no_room_for_ours(make_geotiff: Make, rng: Any, verdict: Verdict) -> None:
    path = make_geotiff("a.tif", pixels(rng)).rename("n" * 219 + ".tif")
    assert "too long" in str(verdict(path, 3))


def test_what_is_called_an_image_and_is_no_file(
    tmp_path: Path, make_geotiff: Make, rng: Any, call: Call, capfd: Any
) -> None:
    """Each is told, by folder, pattern or name; none of them is waited for."""
    make_geotiff("in/a.tif", pixels(rng))
    folder = tmp_path / "in"
    os.mkfifo(folder / "pipe.tif")
    (folder / "nowhere.tif").symlink_to(folder / "gone")
    (folder / "circle.tif").symlink_to(folder / "circle.tif")
    (folder / "folder.tif").mkdir()
    (folder / "zero.tif").symlink_to("/dev/zero")
    os.chdir(folder)  # a socket's name must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.tif")
        os.chdir(tmp_path)
        for given in (["in"], ["in/*.tif"]):
            assert call(*given) == 1
            said = capfd.readouterr()
            told = sorted(line.removeprefix("error: in/").split(":")[0] for line in said.err.splitlines())
            assert told == ["circle.tif", "nowhere.tif", "pipe.tif", "socket.tif", "zero.tif"]
            assert all("expected a raster file, " in line for line in said.err.splitlines())
            assert Path("maps/a.tif").exists()
    assert [call(given) for given in ("in/circle.tif", "in/folder.tif", "in/f*.tif")] == [1, 2, 2]
    assert len(capfd.readouterr().err.splitlines()) == 3
