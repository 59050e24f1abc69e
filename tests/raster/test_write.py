"""Writing rasters: geography stays, and nothing half-written is ever visible."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.transform import Affine

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.raster import (
    RasterSpec,
    RasterWriter,
    open_raster,
    raster_info,
    remove_leftovers,
    write_raster,
)
from tests.helpers.forbidden import small_files
from tests.helpers.refusals import refused

UTM = CRS.from_epsg(25833)
SOUTH_UP = Affine(10, 0, 663840, 0, 10, 7378560)
ROTATED = Affine(17.3, 5.0, 100, 10.0, -8.7, 200)


def test_a_fourth_band_is_not_called_alpha(tmp_path: Path) -> None:
    write_raster(
        tmp_path / "a.tif", np.zeros((8, 8, 4), np.uint8), RasterSpec(descriptions=("r", "g", "b", "nir"))
    )
    info = raster_info(tmp_path / "a.tif")
    assert info.alpha == ()
    assert info.descriptions == ("r", "g", "b", "nir")


def test_control_points_move_with_the_part(tmp_path: Path) -> None:
    points = [GroundControlPoint(r, c, 10 + c / 100, 50 - r / 100) for r in (0, 40) for c in (0, 30)]
    wgs84 = CRS.from_epsg(4326)
    with RasterWriter(tmp_path / "a.tif", Size(40, 30), RasterSpec(crs=wgs84, gcps=points)) as writer:
        writer.write(Window(0, 0, 40, 30), np.zeros((40, 30), np.uint8))
    info = raster_info(tmp_path / "a.tif")
    assert info.transform is None
    assert info.georeferenced
    part = info.georeference(Window(10, 20, 5, 5))
    assert part["crs"] == wgs84
    assert [(p.row, p.col, p.x, p.y) for p in part["gcps"]] == [
        (p.row - 10, p.col - 20, p.x, p.y) for p in points
    ]


def test_windows_may_come_in_any_order(tmp_path: Path, rng: np.random.Generator) -> None:
    pixels = rng.integers(0, 255, (1101, 203, 2), np.uint8)
    windows = [
        Window(r, c, min(97, 1101 - r), min(89, 203 - c))
        for r in range(0, 1101, 97)
        for c in range(0, 203, 89)
    ]
    with RasterWriter(tmp_path / "a.tif", Size(1101, 203), RasterSpec(bands=2)) as writer:
        for index in rng.permutation(len(windows)):
            writer.write(windows[index], pixels[windows[index].slices()])
    with open_raster(tmp_path / "a.tif") as raster:
        np.testing.assert_array_equal(raster.read(Window(0, 0, 1101, 203))[0], pixels)


@pytest.mark.parametrize(("overviews", "converted"), [(None, 1), ("nearest", 1 << 22)])
def test_half_floats_come_back(
    tmp_path: Path, rng: np.random.Generator, overviews: Any, converted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.raster.write._CONVERTED", converted)
    pixels = rng.random((600, 1100, 3)).astype(np.float16)
    pixels[5:9, 3:50] = np.nan
    with RasterWriter(
        tmp_path / "a.tif",
        Size(600, 1100),
        RasterSpec(dtype="float16", bands=3, nodata=np.nan, overviews=overviews),
    ) as writer:
        writer.write(Window(0, 0, 600, 1100), pixels)
    with rasterio.open(tmp_path / "a.tif") as written:
        assert written.dtypes == ("float32",) * 3
        assert written.tags(1, ns="IMAGE_STRUCTURE")["NBITS"] == "16"
        found = np.moveaxis(written.read(), 0, 2).astype(np.float16)
        np.testing.assert_array_equal(found.view(np.uint16), pixels.view(np.uint16))


def test_every_pixel_is_written_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    with (
        pytest.raises(ValueError, match="every pixel"),
        RasterWriter(path, Size(9, 9)) as writer,
    ):
        writer.write(Window(0, 0, 9, 4), np.zeros((9, 4), np.uint8))
    with RasterWriter(tmp_path / "b.tif", Size(9, 9)) as writer:
        writer.write(Window(0, 0, 9, 9), np.zeros((9, 9), np.uint8))
        with pytest.raises(ValueError, match="already written"):
            writer.write(Window(3, 3, 1, 1), np.zeros((1, 1), np.uint8))
    with pytest.raises(ValueError, match="fit"), RasterWriter(path, Size(9, 9)) as writer:
        writer.write(Window(0, 0, 10, 9), np.zeros((10, 9), np.uint8))
    with pytest.raises(ValueError, match="neither georeference"):
        RasterWriter(tmp_path / "a.png", Size(9, 9), RasterSpec(crs=UTM, driver="PNG"))
    assert [p.name for p in tmp_path.iterdir()] == ["b.tif"]


@pytest.mark.parametrize("overviews", [None, "nearest"])
def test_it_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overviews: Any
) -> None:
    """All of it: after a power cut a name without its bytes would be a map of zeros."""
    path, events = tmp_path / "a.tif", []
    fsync, rename = os.fsync, os.replace

    def synced(handle: int) -> None:
        fsync(handle)
        kept = os.fstat(handle)
        events.append((kept.st_ino, kept.st_size, path.exists()))

    def renamed(source: Any, target: Any) -> None:
        if Path(target) == path:  # not what GDAL's overviews were written to
            events.append((os.stat(source).st_ino, os.stat(source).st_size, "its name"))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_raster(path, np.ones((600, 700), np.uint8), RasterSpec(overviews=overviews))
    (named,) = (event for event in events if event[2] == "its name")
    before, after = events[: events.index(named)], events[events.index(named) + 1 :]
    assert (*named[:2], False) in before
    assert (tmp_path.stat().st_ino, True) in [(inode, there) for inode, _, there in after]


def test_what_did_not_reach_the_disk_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GDAL closes a file on a full disk without an error; here its last bytes become zeros at close."""
    close = RasterWriter._close

    def lossy(self: RasterWriter) -> None:
        was_open = self._dataset is not None
        close(self)
        if was_open:
            data = self._temp.read_bytes()
            self._temp.write_bytes(data[:-1500] + bytes(1500))

    monkeypatch.setattr(RasterWriter, "_close", lossy)
    pixels = np.random.default_rng(1).integers(0, 255, (100, 100), np.uint8)
    for name, driver in (("a.tif", "GTiff"), ("a.png", "PNG")):
        with refused(RasterError, fault="disk whole"):
            write_raster(tmp_path / name, pixels, RasterSpec(driver=driver))
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from segmenter.grid.geometry import Size, Window
from segmenter.raster import RasterWriter
with RasterWriter(Path(sys.argv[1]), Size(2200, 700)) as writer:
    pixels = np.random.default_rng(0).integers(0, 255, (1100, 700), np.uint8)
    writer.write(Window(0, 0, 1100, 700), pixels)
    os.kill(os.getpid(), signal.SIGKILL)
"""


# 200 bytes: the header does not fit; 300,000: fails in a write; 60,000 of 70,000: only when closing.
@pytest.mark.parametrize(
    ("name", "limit", "rows"),
    [("a.tif", 200, 100), ("a.tif", 300_000, 1100), ("a.tif", 60_000, 100), ("a.png", 60_000, 100)],
)
def test_a_full_disk_is_an_error_and_leaves_the_older_file(
    tmp_path: Path, name: str, limit: int, rows: int
) -> None:
    path = tmp_path / name
    path.write_bytes(b"older")
    pixels = np.random.default_rng(0).integers(0, 255, (rows, 700), np.uint8)
    with small_files(limit), refused(RasterError, where=name, remedy="nothing was left"):
        write_raster(path, pixels, RasterSpec(driver="PNG" if path.suffix == ".png" else "GTiff"))
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    command = [sys.executable, "-c", KILLED, str(path)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -signal.SIGKILL
    assert not path.exists()
    (leftover,) = tmp_path.iterdir()
    assert remove_leftovers(tmp_path) == 0, "touched a moment ago: its writer may live on another machine"
    os.utime(leftover, (0, 0))
    assert remove_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_lies_beside_an_old_raster_goes_with_it(tmp_path: Path) -> None:
    """Overviews that a viewer made would show the old pixels."""
    path, small = tmp_path / "map.tif", (32, 32)
    write_raster(path, np.full((64, 64), 1, np.uint8))
    write_raster(tmp_path / "small.tif", np.full(small, 2, np.uint8))
    (tmp_path / "small.tif").rename(tmp_path / "map.tif.ovr")
    with rasterio.open(path) as file:
        assert (file.read(1, out_shape=small) == 2).all()  # they do
    write_raster(path, np.full((64, 64), 3, np.uint8))
    with rasterio.open(path) as file:
        assert (file.read(1, out_shape=small) == 3).all()
