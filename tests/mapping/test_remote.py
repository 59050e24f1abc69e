"""`--remote`: rasters behind an address, from a server of our own and out of an archive."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.base.errors import DatasetError
from segmenter.config.datasets import FolderConfig
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.mapping.request.inputs import find_inputs
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
