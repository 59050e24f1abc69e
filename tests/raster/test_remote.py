"""Rasters behind addresses: patience with servers, one line where it ends, and nothing half-read."""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.addresses import joined, masked, masked_text
from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.raster import KnownRasters, open_raster, read_label
from segmenter.raster.remote.settings import RemotePath, set_up_remote
from tests.helpers.file_server import FileServer

Make = Callable[..., Path]


@pytest.fixture
def pixels_HWC(rng: np.random.Generator) -> Any:
    return rng.integers(0, 255, (301, 419, 3), np.uint8)


@pytest.fixture
def address(server: FileServer, make_geotiff: Make, pixels_HWC: Any) -> Iterator[RemotePath]:
    """A tiled raster, with a request for its header, for its first bytes and for its pixels."""
    make_geotiff("served/a b.tif", pixels_HWC, tiled=True, blockxsize=128, blockysize=128)
    return RemotePath.of(server.url()) / "a b.tif"


def read(path: Path) -> Any:
    with open_raster(path) as raster:
        return raster.read(Window.of(raster.info.size))[0]


@pytest.mark.parametrize("fault", [429, 500, 503, "cut"])
def test_what_passes_is_waited_for(
    address: RemotePath, server: FileServer, pixels_HWC: Any, fault: Any
) -> None:
    """Each second answer goes wrong, whatever it is of."""
    server.fault = lambda number, path: fault if number % 2 else None
    np.testing.assert_array_equal(read(address), pixels_HWC)
    assert len(server.asked) > 3


@pytest.mark.parametrize("fault", [503, "cut"])
def test_where_it_does_not_pass_a_line_names_the_address(
    address: RemotePath, server: FileServer, fault: Any
) -> None:
    server.fault = lambda number, path: fault
    with pytest.raises(RasterError, match=rf"^{address}: cannot open it: ") as raised:
        open_raster(address)
    # A port may hold the three digits, too.
    assert bool(re.search(r"\b503\b", str(raised.value))) == (fault == 503)
    assert 4 <= len(server.asked) <= 12


def test_pixels_that_do_not_come_are_no_pixels(address: RemotePath, server: FileServer) -> None:
    with open_raster(address) as raster:
        server.fault = lambda number, path: "cut"
        with pytest.raises(RasterError, match=r"cannot read .*the file is damaged or incomplete"):
            raster.read(Window(100, 0, 200, 400))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_is_final_is_told_at_once(address: RemotePath, server: FileServer, status: int) -> None:
    server.fault = lambda number, path: status
    with pytest.raises(RasterError, match=f"{address}: cannot open it: .*{status}"):
        open_raster(address)
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDAL_HTTP_RETRY_DELAY", "0.001")
    monkeypatch.setenv("GDAL_HTTP_MAX_RETRY", "2")
    with pytest.raises(RasterError, match=r"/vsicurl/http://127\.0\.0\.1:9/x\.tif: cannot open it: "):
        open_raster(RemotePath.of("http://127.0.0.1:9/x.tif"))


def test_an_answer_that_stands_still_is_given_up(
    address: RemotePath, server: FileServer, pixels_HWC: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDAL_HTTP_LOW_SPEED_TIME", "1")
    ended = threading.Event()

    def still(number: int, path: str) -> None:
        if number == 2:
            ended.wait()

    server.fault = still
    try:
        np.testing.assert_array_equal(read(address), pixels_HWC)
    finally:
        ended.set()


def test_labels_and_bytes_are_as_those_of_a_file(
    server: FileServer, make_png: Make, rng: np.random.Generator
) -> None:
    label = make_png("served/a.png", rng.integers(0, 9, (203, 101), np.uint8))
    path = RemotePath.of(server.url("a.png"))
    server.fault = lambda number, path: "cut" if number % 3 == 2 else None
    np.testing.assert_array_equal(read_label(path), read_label(label))
    with path.open_bytes() as file:
        assert file.read() == label.read_bytes()
        file.seek(-7, 2)
        assert file.read(4) == label.read_bytes()[-7:-3]
    assert path.stat().st_size == label.stat().st_size
    assert path.stat().st_mtime_ns == label.stat().st_mtime_ns // 10**9 * 10**9


def test_a_cut_png_is_refused_as_a_local_one(server: FileServer, make_png: Make, rng: Any) -> None:
    label = make_png("served/a.png", rng.integers(0, 255, (203, 101), np.uint8))
    label.write_bytes(label.read_bytes()[:-4000])
    with pytest.raises(RasterError, match=r"a\.png: cannot .*"):
        read_label(RemotePath.of(server.url("a.png")))


def test_a_known_raster_is_opened_without_a_request(address: RemotePath, server: FileServer) -> None:
    known = KnownRasters()
    for _ in range(2):
        with known.image(address, None) as raster:
            assert raster.info.size == Size(301, 419)
    count = len(server.asked)
    again = pickle.loads(pickle.dumps((known, address)))
    with again[0].image(again[1], None) as raster:
        assert raster.info.size == Size(301, 419)
    assert len(server.asked) == count


def test_secrets_are_in_no_text() -> None:
    signed = "https://me:word@host.org/c/d?sig=s%2Fcret&x=1"
    path = RemotePath.of(signed) / "a/b c.tif"
    assert path.address == "/vsicurl/https://me:word@host.org/c/d/a/b%20c.tif?sig=s%2Fcret&x=1"
    assert str(path) == f"{path}" == "/vsicurl/https://host.org/c/d/a/b%20c.tif"
    assert (path.name, path.suffix) == ("b%20c.tif", ".tif")
    assert pickle.loads(pickle.dumps(path)).address == path.address
    assert masked("s3://bucket/what?.tif") == "s3://bucket/what?.tif"
    assert masked_text(f"no {signed} there, nor /vsicurl/{signed}") == (
        "no https://host.org/c/d there, nor /vsicurl/https://host.org/c/d"
    )
    assert joined("/vsis3/b/p/", "q/a b.tif") == "/vsis3/b/p/q/a b.tif"


def test_gdal_gets_the_endpoint_that_amazons_tools_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_S3_ENDPOINT", "AWS_HTTPS", "AWS_VIRTUAL_HOSTING", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000/")
    set_up_remote()
    assert os.environ["AWS_S3_ENDPOINT"] == "minio:9000"
    assert (os.environ["AWS_HTTPS"], os.environ["AWS_VIRTUAL_HOSTING"]) == ("NO", "FALSE")
