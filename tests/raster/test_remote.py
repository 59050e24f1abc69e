"""Rasters behind addresses: patience with servers, the bytes of one file, or a refusal."""

import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.addresses import join_address, mask_secrets, masked_text
from segmenter.base.errors import ChangedInputError, RasterError
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.raster import KnownRasters, open_raster, read_label
from segmenter.raster.remote.settings import RemotePath, set_up_remote
from tests.helpers.file_server import FileServer
from tests.helpers.forgotten_remote import forget_all
from tests.helpers.refusals import refused
from tests.helpers.s3_server import Store

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


@pytest.mark.parametrize("fault", [503, "cut"])
def test_what_passes_is_waited_for(
    address: RemotePath, server: FileServer, pixels_HWC: Any, fault: Any
) -> None:
    server.fault = lambda number, path: fault if number % 2 else None
    np.testing.assert_array_equal(read(address), pixels_HWC)
    assert len(server.asked) > 3


@pytest.mark.parametrize("fault", [503, "cut"])
def test_where_it_does_not_pass_a_line_names_the_address(
    address: RemotePath, server: FileServer, fault: Any
) -> None:
    server.fault = lambda number, path: fault
    with refused(RasterError, fault="cannot open") as raised:
        open_raster(address)
    # A port may hold the three digits, too.
    assert bool(re.search(r"\b503\b", str(raised.value))) == (fault == 503)
    assert 4 <= len(server.asked) <= 12


def test_pixels_that_do_not_come_are_no_pixels(address: RemotePath, server: FileServer) -> None:
    with open_raster(address) as raster:
        server.fault = lambda number, path: "cut"
        with refused(RasterError, fault="cannot read", remedy="incomplete"):
            raster.read(Window(100, 0, 200, 400))


@pytest.mark.parametrize("status", [403, 404])
def test_what_is_final_is_told_at_once(address: RemotePath, server: FileServer, status: int) -> None:
    server.fault = lambda number, path: status
    with refused(RasterError, where=str(address), fault=f"{status}"):
        open_raster(address)
    assert len(server.asked) == 1


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


def test_secrets_are_in_no_text() -> None:
    signed = "https://me:word@host.org/c/d?sig=s%2Fcret&x=1"
    path = RemotePath.of(signed) / "a/b c.tif"
    assert path.address == "/vsicurl/https://me:word@host.org/c/d/a/b%20c.tif?sig=s%2Fcret&x=1"
    assert str(path) == f"{path}" == "/vsicurl/https://host.org/c/d/a/b%20c.tif"
    assert (path.name, path.suffix) == ("b%20c.tif", ".tif")
    assert pickle.loads(pickle.dumps(path)).address == path.address
    assert mask_secrets("s3://bucket/what?.tif") == "s3://bucket/what?.tif"
    assert masked_text(f"no {signed} there, nor /vsicurl/{signed}") == (
        "no https://host.org/c/d there, nor /vsicurl/https://host.org/c/d"
    )
    assert join_address("/vsis3/b/p/", "q/a b.tif") == "/vsis3/b/p/q/a b.tif"


def test_an_address_is_no_path_of_a_disk() -> None:
    """Whatever opens files by name refuses it, and opens nothing of the masked name."""
    signed = RemotePath.of("https://host/a/b.tif?token=secret")
    for opener in (os.fspath, open, Path, os.stat, os.path.realpath):
        with pytest.raises(TypeError):
            opener(signed)  # type: ignore[operator]
    assert (signed.exists(), signed.is_file(), signed.is_dir()) == (False, False, False)
    with pytest.raises(AttributeError, match="no file of a disk"):
        signed.unlink()
    root = RemotePath.of("https://host/a")
    assert (root / "b.tif").relative_to(root).as_posix() == "b.tif"
    assert (root / "b.tif").is_relative_to(root)
    assert sorted([Path("/z"), root / "b", Path("/a"), root]) == [Path("/a"), root, root / "b", Path("/z")]
    assert ((root / "b.tif").name, (root / "b.tif").stem, (root / "b.tif").suffix) == ("b.tif", "b", ".tif")
    other = RemotePath.of("https://host/a/b.tif?token=another")
    assert str(other) == str(signed)
    assert other != signed
    assert pickle.loads(pickle.dumps(signed)) == signed
    assert signed.absolute() == signed.resolve() == signed


def test_gdal_gets_the_endpoint_that_amazons_tools_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_S3_ENDPOINT", "AWS_HTTPS", "AWS_VIRTUAL_HOSTING", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000/")
    set_up_remote()
    assert os.environ["AWS_S3_ENDPOINT"] == "minio:9000"
    assert (os.environ["AWS_HTTPS"], os.environ["AWS_VIRTUAL_HOSTING"]) == ("NO", "FALSE")


TILED = {"tiled": True, "blockxsize": 64, "blockysize": 64}
SIZE = 331, 277
WINDOWS = [Window(row, col, 61, 67) for row in (0, 200, 270) for col in (0, 100, 210)]
CODES = ClassMap((LandCoverClass("a", (1, 2, 3), 0),))
KINDS = {"conditions": (True, True), "tags alone": (True, False), "times alone": (False, False)}
"""Servers: with or without an ETag in answers, with or without regard for `If-Match`."""


@pytest.fixture(params=KINDS)
def server_of_a_kind(request: Any, server: FileServer) -> FileServer:
    server.tags, server.conditions = KINDS[request.param]
    return server


def two_versions(make: Make, name: str, rng: Any, **options: Any) -> tuple[Any, Path, bytes]:
    """The pixels of a file, the file, and the bytes of another of the same size and header."""
    old, new = (rng.integers(0, 255, (*SIZE, 3), np.uint8) for _ in range(2))
    later = make(f"later/{name}", new, **options).read_bytes()
    return old, make(f"served/{name}", old, **options), later


def windows_of(path: Path, pixels: Any) -> None:
    with open_raster(path) as raster:
        for window in WINDOWS:
            np.testing.assert_array_equal(raster.read(window)[0], pixels[window.slices()])


def test_windows_are_of_one_file(server_of_a_kind: FileServer, make_geotiff: Make, rng: Any) -> None:
    server, refused = server_of_a_kind, 0
    for number in (2, 3, 5, 8):
        pixels, file, later = two_versions(make_geotiff, "x.tif", rng, **TILED)
        forget_all()
        server.replace_at(number, file, later)
        try:
            windows_of(RemotePath.of(server.url("x.tif")), pixels)
        except ChangedInputError:
            refused += 1
    assert refused >= 2


def test_what_has_changed_is_read_as_it_is_now_by_the_next_call(
    server_of_a_kind: FileServer, make_geotiff: Make, rng: Any
) -> None:
    server = server_of_a_kind
    pixels, file, later = two_versions(make_geotiff, "x.tif", rng, **TILED)
    path = RemotePath.of(server.url("x.tif"))
    windows_of(path, pixels)
    file.write_bytes(later)
    os.utime(file, (1e9, 1e9))
    with refused(ChangedInputError, where="changed"):
        windows_of(path, pixels)
    with open_raster(path) as raster, open_raster(file) as local:
        whole = Window.of(local.info.size)
        np.testing.assert_array_equal(raster.read(whole)[0], local.read(whole)[0])


@pytest.mark.parametrize("kind", ["image", "label"])
def test_files_that_are_opened_again_and_again_stay_the_same(
    kind: str, server_of_a_kind: FileServer, make_geotiff: Make, rng: Any
) -> None:
    server = server_of_a_kind
    pixels, file, later = two_versions(make_geotiff, "x.tif", rng, **TILED)
    path, known = RemotePath.of(server.url("x.tif")), KnownRasters()
    server.replace_at(7, file, later)

    def look() -> None:
        for window in WINDOWS * 2:
            opened: Any = known.image(path, None) if kind == "image" else known.label(path, CODES)
            with opened as raster:
                found = (raster.read(window) if kind == "image" else raster.stored_values(window))[0]
            np.testing.assert_array_equal(found, pixels[window.slices()])

    with pytest.raises(ChangedInputError):
        look()


def test_objects_of_a_bucket_are_read_on_condition(
    store: Store, make_geotiff: Make, rng: Any, tmp_path: Path
) -> None:
    _, _, later = two_versions(make_geotiff, "x.tif", rng, **TILED)
    store.put_folder(tmp_path / "served")
    path = RemotePath.of(f"s3://{store.bucket}/x.tif")
    with open_raster(path) as raster:
        raster.read(WINDOWS[0])
        store.client.put_object(Bucket=store.bucket, Key="x.tif", Body=later)
        with pytest.raises(ChangedInputError, match=rf"{store.bucket}/x\.tif"):
            raster.read(WINDOWS[-1])
