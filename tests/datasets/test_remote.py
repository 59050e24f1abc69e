"""Datasets behind addresses: listed whole, read like files, kept out of sight where they are secret."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.check import check_dataset
from datasets.pack import pack_dataset
from segmenter.api.layouts import layout_of
from segmenter.base.errors import ConfigError, SegmenterError
from segmenter.config.reading import describe_recipe, dump_recipe, recipe_from
from segmenter.config.recipe import Recipe
from segmenter.raster import read_label
from segmenter.raster.remote import buckets
from segmenter.raster.remote.settings import RemotePath
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.scene_files import joint_digest, scene_digests
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore
from tests.helpers.file_server import FileServer
from tests.helpers.forgotten_remote import forget_all
from tests.helpers.refusals import refused
from tests.helpers.s3_server import Store

Make = Callable[..., Path]
BLOCKS = {"tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate"}
NAMES = [f"{folder}/s{i}.{ending}" for i in range(5) for folder, ending in (("i", "tif"), ("l", "png"))]


def recipe(root: str, **more: Any) -> Recipe:
    classes = [{"name": name, "code": code} for code, name in enumerate("abc")]
    dataset = {"kind": "folder", "root": root, "images": "i/{n}.tif", "labels": "l/{n}.png"}
    dataset |= {"classes": classes, "split": {"validation": ["s3"], "test": ["s4"]}, **more}
    return recipe_from({"name": "r", "dataset": dataset, "tiles": {"size": 32}}, "r")


def test_googles_buckets_are_listed_by_their_keys_for_s3(
    scenes: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_folder(scenes, "p/")
    monkeypatch.setenv("CPL_GS_ENDPOINT", f"{store.endpoint}/")
    for name in ("GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "made")
    (scene, *_) = load_dataset(recipe(f"gs://{store.bucket}/p")).scenes
    np.testing.assert_array_equal(read_label(scene.label), read_label(scenes / "l/s0.png"))
    monkeypatch.delenv("GS_ACCESS_KEY_ID")
    with refused(SegmenterError, fault="GS_NO_SIGN_REQUEST=YES where"):
        load_dataset(recipe(f"gs://{store.bucket}/p"))


@pytest.fixture
def scenes(tmp_path: Path, make_geotiff: Make, make_png: Make, rng: np.random.Generator) -> Path:
    """A folder of five scenes, large enough to be read in windows, with hidden files beside them."""
    for i in range(5):
        size = 97 + 3 * i, 131 - i
        make_geotiff(f"served/data/i/s{i}.tif", rng.integers(0, 255, (*size, 3), np.uint8), **BLOCKS)
        make_png(f"served/data/l/s{i}.png", rng.integers(0, 3, size, np.uint8))
    (tmp_path / "served/data/i/.s9.tif").write_text("hidden")
    (tmp_path / "files.txt").write_text("# a list\n\n" + "\n".join(NAMES) + "\n")
    return tmp_path / "served/data"


def all_of(given: Recipe, cache: Path) -> dict[str, Any]:
    """Facts of a dataset that a training and `segmenter check` find out."""
    dataset = replace(load_dataset(given), cache=cache)
    index = build_index(dataset, "train", given.tiles, progress=False)
    statistics = band_statistics(dataset, progress=False)
    digests = scene_digests(dataset.scenes, cache_folder(dataset), progress=False)
    store = SceneStore(dataset, index.scenes, given.tiles.size, cache_folder(dataset), progress=False)
    tiles = [store.read(int(index.scene_N[i]), index.window(i)) for i in range(len(index))]
    report = check_dataset(dataset, progress=False)
    return {
        "names": [(scene.name, scene.split) for scene in dataset.scenes],
        "index": index.fingerprint(),
        "mean": tuple(statistics.mean_C),
        "files": joint_digest(digests),
        "tiles": [part.tobytes() for tile in tiles for part in tile],
        "pixels": report.pixels_PK.tolist(),
        "findings": [(finding.kind, finding.pixels) for finding in report.findings],
    }


@pytest.mark.slow
def test_a_bucket_is_as_its_folder(scenes: Path, store: Store, tmp_path: Path) -> None:
    store.put_folder(scenes, "some/where/")
    local = all_of(recipe(str(scenes)), tmp_path / "local")
    assert all_of(recipe(f"s3://{store.bucket}/some/where"), tmp_path / "remote") == local
    assert {kind for kind, _ in local["findings"]} == {"leak"}  # all lie on the same ground
    listings = [path for method, path in store.asked if "list-type=2" in path]
    assert len(listings) == 1


def test_what_a_web_server_has_is_named_in_a_list(scenes: Path, server: FileServer, tmp_path: Path) -> None:
    local = all_of(recipe(str(scenes)), tmp_path / "local")
    root = server.url("data?signature=hidden")
    found = all_of(recipe(root, files=str(tmp_path / "files.txt")), tmp_path / "remote")
    assert found == local
    assert all(asked.path.endswith("?signature=hidden") for asked in server.asked)


@pytest.mark.slow
def test_after_packing_no_tile_is_asked_for(scenes: Path, store: Store, tmp_path: Path, capfd: Any) -> None:
    store.put_folder(scenes)
    given = recipe(f"s3://{store.bucket}")
    dataset = replace(load_dataset(given), cache=tmp_path / "cache")
    index = build_index(dataset, "train", given.tiles, progress=False)

    def tiles() -> list[bytes]:
        read = SceneStore(dataset, index.scenes, 32, cache_folder(dataset), progress=False)
        parts = [read.read(int(index.scene_N[i]), index.window(i)) for i in range(len(index))]
        return [part.tobytes() for tile in parts for part in tile]

    in_place = tiles()
    assert "images of 3 of 3 scenes are read from /vsis3/" in capfd.readouterr().out
    list(pack_dataset(dataset, progress=False))
    forget_all()
    dataset = replace(load_dataset(given), cache=tmp_path / "cache")
    store.asked.clear()
    assert tiles() == in_place
    assert store.asked == []


def test_a_second_training_asks_for_the_listing_alone(scenes: Path, store: Store, tmp_path: Path) -> None:
    store.put_folder(scenes)
    given = recipe(f"s3://{store.bucket}")

    def prepared() -> Any:
        dataset = replace(load_dataset(given), cache=tmp_path / "cache")
        index = build_index(dataset, "train", given.tiles, progress=False)
        band_statistics(dataset, progress=False)
        return index.fingerprint(), scene_digests(dataset.scenes, cache_folder(dataset), progress=False)

    before = prepared()
    forget_all()
    store.asked.clear()
    assert prepared() == before
    assert [method for method, _ in store.asked] == ["GET"]


def test_a_listing_that_fails_midway_is_no_shorter_one(
    scenes: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_folder(scenes)
    place = buckets.BucketPrefix("s3", store.bucket, "")
    monkeypatch.setattr(buckets, "payer", lambda: {"MaxKeys": 6})
    store.asked.clear()
    store.fault = lambda method, path: 503 if len(store.asked) == 1 else None
    assert sorted(one.name for one in buckets.listing(place)) == sorted([*NAMES, "i/.s9.tif"])
    store.fault = lambda method, path: 503 if "continuation" in path else None
    with refused(SegmenterError, where=f"s3://{store.bucket}", fault="503"):
        list(buckets.listing(place))


@pytest.mark.slow
def test_mistakes_are_one_line(
    scenes: Path, store: Store, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(root: str, **more: Any) -> str:
        with pytest.raises(SegmenterError) as raised:
            load_dataset(recipe(root, **more))
        return str(raised.value)

    store.put_folder(scenes)
    files = tmp_path / "files.txt"
    assert "such bucket" in said("s3://no-such-bucket/a")
    assert f"below s3://{store.bucket}/no" in said(f"s3://{store.bucket}/no/")
    assert "files in dataset.files" in said(server.url("data"))
    assert "expected http://" in said("ftp://a/b")
    files.write_text("i/s0.tif\nl/s0.png\ni/gone.tif\n")
    assert re.search("i/gone.tif: .* 404", said(server.url("data?a=b"), files=str(files)))
    files.write_text("i/s0.tif\n../x.tif\n")
    assert "files.txt, line 2" in said(server.url("data"), files=str(files))
    store.fault = lambda method, path: 403
    assert "access" in said(f"s3://{store.bucket}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert "credentials" in said(f"s3://{store.bucket}")
    with refused(ConfigError, where="dataset.files", fault="address"):
        recipe(str(scenes), files="files.txt")


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setenv("AWS_S3_ENDPOINT", "127.0.0.1:9")  # so that no client is known for it
    with refused(SegmenterError, fault="installed: make"):
        load_dataset(recipe("s3://some-bucket"))


def test_no_secret_leaves_the_recipe() -> None:
    given = recipe("https://me:word@host.org/data?sig=hidden")
    assert given.dataset.root == "https://me:word@host.org/data?sig=hidden"
    for text in (dump_recipe(given), describe_recipe(given), given.model_dump_json()):
        assert "https://host.org/data" in text
        assert not re.search("hidden|word", text)


def test_the_layout_knows_a_remote_scene() -> None:
    layout = layout_of(recipe("s3://bucket/some/where").dataset)
    assert layout.fields(RemotePath.of("s3://bucket/some/where/i/s4.tif")) == {"n": "s4"}
    assert layout.holds(RemotePath.of("s3://bucket/some/where/l/s4.png"))
    assert not layout.holds(RemotePath.of("s3://bucket/some/l/s4.png"))
