"""Files that are replaced at their server while they are read: the bytes of one of them, or a refusal."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.pack import pack_dataset
from segmenter.base.errors import ChangedInputError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.raster import KnownRasters, open_raster, read_label
from segmenter.raster.remote.settings import RemotePath, forget_all
from segmenter.tiles.index_cache import cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.file_server import FileServer
from tests.helpers.s3_server import Store

Make = Callable[..., Path]
TILED = {"tiled": True, "blockxsize": 64, "blockysize": 64}
SIZE = 331, 277
WINDOWS = [Window(row, col, 61, 67) for row in (0, 200, 270) for col in (0, 100, 210)]
CODES = ClassMap((LandCoverClass("a", (1, 2, 3), 0),))
PARTS = ("i", "tif"), ("l", "png")
KINDS = {"conditions": (True, True), "tags alone": (True, False), "times alone": (False, False)}
"""Of servers: whether answers have an ETag, and whether `If-Match` counts."""


@pytest.fixture(params=KINDS)
def server_of_a_kind(request: Any, server: FileServer) -> FileServer:
    server.tags, server.conditions = KINDS[request.param]
    return server


def two_versions(make: Make, name: str, rng: Any, **options: Any) -> tuple[Any, Path, bytes]:
    """The pixels of a file, the file, and the bytes of another of the same size and header."""
    old, new = (rng.integers(0, 255, (*SIZE, 3), np.uint8) for _ in range(2))
    later = make(f"later/{name}", new, **options).read_bytes()
    return old, make(f"served/{name}", old, **options), later


def replace_at(server: FileServer, number: int, file: Path, content: bytes) -> None:
    """Replace a file just before the nth request for it is answered; its date is another."""
    asked = itertools.count(1)

    def swap(_: int, path: str) -> None:
        if path.endswith(file.name) and next(asked) == number:
            file.write_bytes(content)
            os.utime(file, (1e9, 1e9))

    server.fault = swap


def windows_of(path: Path, pixels: Any) -> None:
    """Read windows one after the other; those that are given are of the first version."""
    with open_raster(path) as raster:
        for window in WINDOWS:
            np.testing.assert_array_equal(raster.read(window)[0], pixels[window.slices()])


def recipe(root: str, files: Path) -> Recipe:
    classes = [{"name": name, "code": code} for code, name in enumerate("abc")]
    dataset = {"kind": "folder", "root": root, "images": "i/{n}.tif", "labels": "l/{n}.png"}
    dataset |= {"classes": classes, "split": {"validation": ["b"], "test": ["c"]}, "files": str(files)}
    return recipe_from({"name": "r", "dataset": dataset, "tiles": {"size": 32}}, "r")


def test_windows_are_of_one_file(server_of_a_kind: FileServer, make_geotiff: Make, rng: Any) -> None:
    server, refused = server_of_a_kind, 0
    for number in range(2, 9):
        pixels, file, later = two_versions(make_geotiff, "x.tif", rng, **TILED)
        forget_all()
        replace_at(server, number, file, later)
        try:
            windows_of(RemotePath.of(server.url("x.tif")), pixels)
        except ChangedInputError:
            refused += 1
    assert refused >= 4


def test_what_has_changed_is_read_as_it_is_now_by_the_next_call(
    server_of_a_kind: FileServer, make_geotiff: Make, rng: Any
) -> None:
    server = server_of_a_kind
    pixels, file, later = two_versions(make_geotiff, "x.tif", rng, **TILED)
    path = RemotePath.of(server.url("x.tif"))
    windows_of(path, pixels)
    file.write_bytes(later)
    os.utime(file, (1e9, 1e9))
    with pytest.raises(ChangedInputError, match=r"^/vsicurl/http://.* has changed on its server"):
        windows_of(path, pixels)
    with open_raster(path) as raster, open_raster(file) as local:
        whole = Window.of(local.info.size)
        np.testing.assert_array_equal(raster.read(whole)[0], local.read(whole)[0])


@pytest.mark.parametrize("kind", ["image", "label"])
def test_files_that_are_opened_again_and_again_stay_the_same(
    kind: str, server_of_a_kind: FileServer, make_geotiff: Make, rng: Any
) -> None:
    """As tiles of a training are read."""
    server = server_of_a_kind
    pixels, file, later = two_versions(make_geotiff, "x.tif", rng, **TILED)
    path, known = RemotePath.of(server.url("x.tif")), KnownRasters()
    replace_at(server, 7, file, later)

    def look() -> None:
        for window in WINDOWS * 2:
            opened: Any = known.image(path, None) if kind == "image" else known.label(path, CODES)
            with opened as raster:
                found = (raster.read(window) if kind == "image" else raster.stored(window))[0]
            np.testing.assert_array_equal(found, pixels[window.slices()])

    with pytest.raises(ChangedInputError):
        look()


def test_bytes_and_labels_are_of_one_file(
    server_of_a_kind: FileServer, make_png: Make, rng: np.random.Generator
) -> None:
    server = server_of_a_kind
    for number in range(2, 7):
        pixels, file, later = two_versions(make_png, "x.png", rng)
        path, before = RemotePath.of(server.url("x.png")), file.read_bytes()
        for read, expected in ((lambda p: p.open_bytes().read(), before), (read_label, pixels)):
            file.write_bytes(before)
            forget_all()
            replace_at(server, number, file, later)
            try:
                found = read(path)
            except ChangedInputError:
                continue
            np.testing.assert_array_equal(
                np.frombuffer(found, np.uint8) if isinstance(found, bytes) else found,
                np.frombuffer(expected, np.uint8) if isinstance(expected, bytes) else expected,
            )


def test_packs_and_tiles_from_a_server_are_of_one_file(
    server_of_a_kind: FileServer, make_geotiff: Make, make_png: Make, rng: Any, tmp_path: Path
) -> None:
    """Whenever it is replaced; what was refused is packed by the next call."""
    server, names = server_of_a_kind, [f"{part}/{n}.{end}" for n in "abc" for part, end in PARTS]
    label = rng.integers(0, 3, SIZE, np.uint8)
    for name in names[2:]:
        make = make_geotiff if name.endswith("tif") else make_png
        make(f"served/{name}", np.stack([label] * 3, 2) if name[0] == "i" else label)
    (tmp_path / "files.txt").write_text("\n".join(names))
    make_png("served/l/a.png", label)
    refused = 0
    for number in range(2, 11):
        pixels, file, later = two_versions(make_geotiff, "i/a.tif", rng, **TILED)
        forget_all()
        replace_at(server, number, file, later)
        given = recipe(server.url().rstrip("/"), tmp_path / "files.txt")
        cache = tmp_path / f"cache-{number}"

        def tiles(given: Any = given, cache: Path = cache) -> Any:
            dataset = replace(load_dataset(given), cache=cache)
            list(pack_dataset(dataset, progress=False))
            scenes = [scene for scene in dataset.scenes if scene.name == "a"]
            store = SceneStore(dataset, scenes, 32, cache_folder(dataset), progress=False)
            return store.read(0, Window(0, 0, *SIZE))[0]

        try:
            np.testing.assert_array_equal(tiles(), pixels)
        except ChangedInputError:
            refused += 1
            with open_raster(file) as raster:
                pixels = raster.read(Window(0, 0, *SIZE))[0]
            forget_all()
            np.testing.assert_array_equal(tiles(), pixels)
    assert refused  # at which request depends on how many GDAL asks ahead


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
