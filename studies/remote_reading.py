"""Requests and bytes that training tiles of 256² cost over HTTP: in place, and once they are packed.

Two datasets behind a server with ranges on loopback: files of 256² (DEFLATE, labels as PNG), and a tiled
GeoTIFF of `--side` pixels with its label. Counted are a first start (states, index, statistics, digests), a
further start, `--tiles` tiles at random that are read in place, packing, and the tiles out of the packs.
Baseline: the files themselves. Times are left out: they are those of a network, about requests × latency.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reading_tiles import large_scene, tile_files
from datasets.pack import pack_dataset
from datasets.remote import remote_files
from segmenter.config.recipe import TilesConfig
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import quiet_gdal
from segmenter.raster.remote.settings import RemotePath
from tests.helpers.forgotten_remote import forget_all
from segmenter.tiles.index import TileIndex, build_index
from segmenter.tiles.index import cache_folder
from segmenter.tiles.scene_files import scene_digests
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore
from tests.helpers.file_server import PROXIES, FileServer, serving

_TILE = 256
_CACHE = 1 << 21
"""Bytes that GDAL keeps of what it read, 16 MiB by default: small, as the data are here."""
Figures = dict[str, Any]


def main() -> None:
    """Make the data, serve them, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=64, help="of 256²")
    parser.add_argument("--side", type=int, default=3000, help="of the large GeoTIFF, in pixels")
    parser.add_argument("--tiles", type=int, default=200, help="that are read, at random")
    arguments = parser.parse_args()
    quiet_gdal()
    for name in PROXIES:
        os.environ.pop(name, None)
    os.environ["CPL_VSIL_CURL_CACHE_SIZE"] = str(_CACHE)
    rng = np.random.default_rng(0)
    kinds: dict[str, Callable[[Path], Dataset]] = {
        "files": lambda root: tile_files(root, arguments.files),
        "large": lambda root: large_scene(root, arguments.side, rng),
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data") as server:
        for kind, make in kinds.items():
            local = make(Path(folder) / "data" / kind)
            with contextlib.redirect_stdout(None):
                found[kind] = _counted(local, server, Path(folder) / f"{kind}-cache", arguments.tiles, rng)
    print(json.dumps({"benchmark": "remote_reading", "unit": "requests, and MB", **found}))


def _counted(
    local: Dataset, server: FileServer, cache: Path, tiles: int, rng: np.random.Generator
) -> Figures:
    """Requests and bytes of each step."""
    names = [path.relative_to(local.root).as_posix() for scene in local.scenes for path in _files(scene)]
    size = sum((local.root / name).stat().st_size for name in names)
    found: Figures = {"data": {"files": len(names), "MB": round(size / 1e6, 1), "tiles_read": tiles}}
    listed = cache.with_suffix(".txt")
    listed.write_text("\n".join(names))
    dataset = replace(_remote(local, server), cache=cache)
    for start in ("first_start", "next_start"):
        forget_all()
        with _counting(server, found, start):
            remote_files(dataset.root, listed)
            index = build_index(dataset, "train", TilesConfig(size=_TILE), progress=False)
            band_statistics(dataset, progress=False)
            scene_digests(dataset.scenes, cache_folder(dataset), progress=False)
    draws = rng.integers(0, len(index), tiles).tolist()
    forget_all()
    remote_files(dataset.root, listed)
    for way in ("in_place", "packed"):
        with _counting(server, found, f"{way}_opening"):
            store = SceneStore(dataset, index.scenes, _TILE, cache_folder(dataset), progress=False)
        with _counting(server, found, f"{way}_tiles"):
            _read(store, index, draws)
        if way == "in_place":
            with _counting(server, found, "packing"):
                for _ in pack_dataset(dataset, progress=False):
                    pass
    return found


def _read(store: SceneStore, index: TileIndex, draws: list[int]) -> None:
    for i in draws:
        store.read(int(index.scene_N[i]), index.window(i))


def _files(scene: Scene) -> list[Path]:
    return [scene.image] if scene.label is None else [scene.image, scene.label]


def _remote(local: Dataset, server: FileServer) -> Dataset:
    """The dataset behind its server."""
    root = RemotePath.of(server.url(local.root.name))

    def there(path: Path) -> Path:
        return root / path.relative_to(local.root).as_posix()

    scenes = tuple(
        replace(scene, image=there(scene.image), label=None if scene.label is None else there(scene.label))
        for scene in local.scenes
    )
    return replace(local, root=root, scenes=scenes)


@contextlib.contextmanager
def _counting(server: FileServer, found: Figures, name: str) -> Iterator[None]:
    server.asked.clear()
    yield
    found[name] = {
        "requests": len(server.asked),
        "MB": round(sum(asked.bytes for asked in server.asked) / 1e6, 2),
    }


if __name__ == "__main__":
    main()
