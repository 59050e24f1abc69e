"""Rasters behind an address, and maps that go into a bucket: whole, once, whoever else writes there."""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.base.errors import DatasetError
from segmenter.config.datasets import FolderConfig
from segmenter.extras import upload
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.mapping.request.inputs import find_inputs
from tests.helpers.child_predict import without_styles
from tests.helpers.exact_network import fake_run
from tests.helpers.file_server import FileServer
from tests.helpers.forgotten_remote import forget_all
from tests.helpers.maps import Call, Make
from tests.helpers.refusals import refused
from tests.helpers.s3_server import Store


def test_a_served_raster(server: FileServer, make_geotiff: Make, rng: Any, call: Call, capfd: Any) -> None:
    source = make_geotiff("served/a.tif", rng.integers(0, 255, (61, 83, 3), np.uint8), compress="deflate")
    assert call(source, output="local") == 0
    for address in (server.url("a.tif?signed=secret"), "/vsicurl/" + server.url("a.tif")):
        assert call(address, "--remote", "--redo") == 0
        with rasterio.open("maps/a.tif") as mine, rasterio.open("local/a.tif") as theirs:
            np.testing.assert_array_equal(mine.read(), theirs.read())
            assert (mine.crs, mine.transform) == (theirs.crs, theirs.transform)
    said = capfd.readouterr()
    assert "maps/a.tif: made anew: asked for by --redo" in said.out
    assert said.err == ""
    assert not any(end in asked.path for asked in server.asked for end in (".msk", ".ovr", ".aux"))
    assert "secret" not in Path("maps/.journal.jsonl").read_text()


def test_what_a_server_does_not_give_is_one_line_each(
    server: FileServer, make_geotiff: Make, rng: Any, call: Call, capfd: Any
) -> None:
    source = make_geotiff("served/a.tif", rng.integers(0, 255, (300, 300, 3), np.uint8), tiled=True)
    Path("served/cut.tif").write_bytes(source.read_bytes()[:150_000])
    Path("served/text.tif").write_text("no raster")
    Path("served/b.vrt").write_text("<VRTDataset rasterXSize='1' rasterYSize='1'/>")
    names = ["a.tif", "cut.tif", "gone.tif", "text.tif", "b.vrt"]
    assert call(*(server.url(f"{name}?signed=secret") for name in names), "--remote") == 1
    lines = capfd.readouterr().err.splitlines()
    assert not any("secret" in line for line in lines)
    assert sorted(lines) == sorted(line for line in lines if line.startswith("error: /vsicurl/http://127."))
    assert sorted(line.split(": ")[1].rpartition("/")[2] for line in lines) == sorted(names[1:])
    assert sorted(path.name for path in Path("maps").glob("[!.]*")) == ["a.qml", "a.tif", "a.tif.aux.xml"]


def test_a_file_in_an_archive(make_geotiff: Make, rng: Any, call: Call, tmp_path: Path) -> None:
    source = make_geotiff("in/a.tif", rng.integers(0, 255, (61, 83, 3), np.uint8))
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.write(source, "inner/a.tif")
    assert call(f"/vsizip/{tmp_path}/a.zip/inner/a.tif", "--remote") == 0
    with rasterio.open("maps/a.tif") as found:
        assert found.shape == (61, 83)


@pytest.mark.parametrize("address", ["file:///a.tif", "VRT://a.tif"])
def test_other_schemes_are_refused(call: Call, capfd: Any, address: str) -> None:
    assert call(address, "--remote") == 2
    assert capfd.readouterr().err.startswith(f"error: {address}: expected http://, https://, s3://")


def test_a_map_of_an_address_is_kept_until_the_file_changes(
    server: FileServer, make_geotiff: Make, rng: Any, call: Call, capfd: Any
) -> None:
    """Whatever signature it is asked for with."""
    make_geotiff("served/a.tif", rng.integers(0, 255, (61, 83, 3), np.uint8))
    assert call(server.url("a.tif?signature=1"), "--remote") == 0
    assert call(server.url("a.tif?signature=2"), "--remote", predictor=None) == 0
    assert "1 of 1 maps are finished and unchanged" in capfd.readouterr().out
    make_geotiff("served/a.tif", rng.integers(0, 9, (67, 83, 3), np.uint8))
    forget_all()
    assert call(server.url("a.tif?signature=2"), "--remote") == 0
    assert "made anew: the input has changed" in capfd.readouterr().out


def test_folders_and_patterns_in_a_bucket(store: Store, make_geotiff: Make, rng: Any, tmp_path: Path) -> None:
    for name in ("in/a", "in/b", "in/deep/c"):
        make_geotiff(f"bucket/{name}.tif", rng.integers(0, 255, (31, 33, 3), np.uint8))
    (tmp_path / "bucket/in/notes.txt").write_text("no image")
    store.put_folder(tmp_path / "bucket")
    there = {"in/": "ab", "in/*.tif": "ab", "**/*.tif": "abc", "in/**/*.tif": "abc", "in/[bc].tif": "b"}
    for given, names in there.items():
        found = find_inputs([f"s3://{store.bucket}/{given}"], remote=True).files
        assert [path.stem for path in found] == list(names), given
    with refused(DatasetError, where=f"s3://{store.bucket}/in/b?.tif", expected="bucket"):
        find_inputs([f"s3://{store.bucket}/in/b?.tif"], remote=True)


def test_a_foreign_recipe_is_no_reason_to_ask_a_server(call: Call, capfd: Any) -> None:
    recipe = fake_run(ClassMap((LandCoverClass("a", (0, 0, 0), 0),), "codes")).recipe
    recipe.dataset = FolderConfig(
        kind="folder",
        root="https://host.org/x?signature=hidden",
        images="{n}.tif",
        labels="{n}.png",
        classes=({"name": "a", "code": 0},),
    )
    assert call("--split", "test", recipe=recipe) == 2
    said = capfd.readouterr().err
    assert said.endswith("with --remote\n")
    assert "hidden" not in said


@pytest.fixture
def scenes(make_geotiff: Make, rng: Any) -> list[Path]:
    return [make_geotiff(f"in/{n}.tif", rng.integers(0, 255, (61, 83, 3), np.uint8)) for n in "ab"]


@pytest.fixture
def to_bucket(scenes: Any, call: Call, store: Store, tmp_path: Path, monkeypatch: Any) -> Call:
    """`call` with its maps in the bucket, below `maps`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call_it(*arguments: Any, **changes: Any) -> int:
        return call(*arguments, output=f"s3://{store.bucket}/maps", **changes)

    return call_it


def written(store: Store) -> list[str]:
    """Keys that were written to, in order."""
    return [path.split("?")[0].rpartition("/")[2] for method, path in store.asked if method == "PUT"]


def test_what_is_uploaded_is_what_a_folder_gets(
    call: Call, to_bucket: Call, store: Store, capfd: Any
) -> None:
    assert call("in", output="local") == 0
    capfd.readouterr()
    assert to_bucket("in", "--confidence") == 0
    said = capfd.readouterr()
    kinds = ("confidence.qml", "confidence.tif", "qml", "tif", "tif.aux.xml")
    assert store.keys() == [f"maps/{n}.{kind}" for n in "ab" for kind in kinds]
    for name in ("tif", "qml", "tif.aux.xml"):
        assert store.get(f"maps/a.{name}") == Path(f"local/a.{name}").read_bytes()
    assert f"10 files uploaded to s3://{store.bucket}/maps: " in said.out
    assert said.err == ""
    left = [path.name for path in Path("cache").rglob("*") if path.is_file()]
    assert left == []


@pytest.mark.slow
def test_the_same_command_does_nothing_twice(
    to_bucket: Call, store: Store, capfd: Any, make_geotiff: Make
) -> None:
    """Neither beside its working folder nor on another machine; what changed is made anew, and replaced."""
    assert to_bucket("in") == 0
    for _ in range(2):
        store.asked.clear()
        assert to_bucket("in", predictor=None) == 0
        assert written(store) == []
        assert "2 of 2 maps are finished and unchanged" in capfd.readouterr().out
        shutil.rmtree(Path("cache"))
    make_geotiff("in/b.tif", np.zeros((61, 83, 3), np.uint8))
    store.asked.clear()
    assert to_bucket("in") == 0
    assert written(store) == ["b.tif", "b.qml", "b.tif.aux.xml"]


@pytest.mark.slow
def test_scores_and_pictures_of_maps_that_are_there_already(
    scenes: list[Path], to_bucket: Call, store: Store, make_png: Make, rng: Any
) -> None:
    scenes[1].unlink()
    make_png("truth/a.png", rng.integers(0, 7, (61, 83), np.uint8))
    assert to_bucket("in") == 0
    store.asked.clear()
    arguments = ("in", "--labels", "truth/{stem}.png", "--pictures")
    assert to_bucket(*arguments, predictor=None) == 0
    assert sorted(written(store)) == sorted(["a.view.png", "scores.json", "confusion.png"])
    assert len(json.loads(store.get("maps/scores.json"))["per_scene"]) == 1


@pytest.mark.slow
def test_a_busy_store_gets_all(to_bucket: Call, store: Store, capfd: Any) -> None:
    refused = set()

    def busy(method: str, path: str) -> int | None:
        """Each write is refused once."""
        if method == "PUT" and path not in refused:
            refused.add(path)
            return 503 if "a.tif" in path else 429
        return None

    store.fault = busy
    assert to_bucket("in") == 0
    assert len(store.keys()) == len(refused) == 6
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_what_is_refused_stays_for_the_next_call(to_bucket: Call, store: Store, capfd: Any) -> None:
    store.fault = lambda method, path: 403 if method == "PUT" and path.endswith("b.tif") else None
    assert to_bucket("in") == 1
    said = capfd.readouterr().err
    assert said.count("error: ") == 1
    assert f"error: s3://{store.bucket}/maps/b.tif: cannot be" in said
    assert "same command" in said
    assert without_styles(store.keys()) == ["maps/a.tif"]
    assert [path.name for path in Path("cache").rglob("*.tif")] == ["b.tif"]
    store.fault = lambda method, path: None
    assert to_bucket("in", predictor=None) == 0
    assert without_styles(store.keys()) == ["maps/a.tif", "maps/b.tif"]


def test_large_files_go_in_parts_and_appear_last(to_bucket: Call, store: Store, monkeypatch: Any) -> None:
    """The store takes parts from 5 MiB on; the last may be smaller."""
    monkeypatch.setattr(upload, "PART_BYTES", 5 << 20)
    content = os.urandom((11 << 20) + 7)
    Path("large.tif").write_bytes(content)
    uploads = upload.Uploads(f"s3://{store.bucket}/maps")
    store.fault = lambda method, path: 403 if "partNumber=3" in path else None
    uploads.add([Path("large.tif")])
    (error,) = uploads.wait()
    assert str(error).startswith(f"s3://{store.bucket}/maps/large.tif: ")
    assert "access" in str(error)
    assert store.keys() == []
    assert store.unfinished() == []
    assert Path("large.tif").exists()
    store.fault = lambda method, path: 503 if "partNumber=2" in path and len(store.asked) % 2 else None
    uploads = upload.Uploads(f"s3://{store.bucket}/maps")
    uploads.add([Path("large.tif")])
    assert uploads.wait() == []
    assert store.get("maps/large.tif") == content
    assert (uploads.sent, uploads.sent_bytes) == (1, len(content))


@pytest.mark.slow
@pytest.mark.parametrize("equal", [False, True])
def test_of_two_callers_the_first_to_finish_wins(
    to_bucket: Call, store: Store, capfd: Any, monkeypatch: Any, equal: bool
) -> None:
    """Between this caller's look and its write another one puts a map there: another map, or the same."""
    real = upload.Uploads._write

    def later(self: Any, path: Path, *more: Any) -> None:
        if equal:
            real(self, path, *more)
        else:
            store.client.put_object(Bucket=store.bucket, Key=f"maps/{path.name}", Body=b"theirs")
        real(self, path, *more)

    monkeypatch.setattr(upload.Uploads, "_write", later)
    assert to_bucket("in/a.tif") == (0 if equal else 1)
    if equal:
        with rasterio.open(io.BytesIO(store.get("maps/a.tif"))) as found:
            assert found.shape == (61, 83)
    else:
        assert "maps/a.tif: was written" in capfd.readouterr().err
        assert store.get("maps/a.tif") == b"theirs"


def test_mistakes_are_one_line_before_anything_is_computed(
    scenes: Any, call: Call, store: Store, capfd: Any, monkeypatch: Any
) -> None:
    def said(*arguments: Any, **changes: Any) -> str:
        assert call("in", *arguments, predictor=None, **changes) in (1, 2)
        err = str(capfd.readouterr().err)
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    assert "there is no such bucket" in said(output="s3://no-such-bucket/x")
    address = said(output="https://host.org/x?key=secret")
    assert "expected a folder or s3://BUCKET/PREFIX" in address
    assert "secret" not in address
    assert "--work w: is for an --output in a bucket" in said("--work", "w", output="maps")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    full = said("--work", "w", output=f"s3://{store.bucket}/x")
    assert "w: the largest map may take" in full
