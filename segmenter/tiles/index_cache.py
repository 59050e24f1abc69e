"""Cache of the tile index: a Parquet file beside the data, written whole or not at all, checked when read."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from segmenter.base.errors import SegmenterError, plain, shortened
from segmenter.base.files import caches, write_whole
from segmenter.base.sealed import digest
from segmenter.base.terminal import say
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster.remote.settings import RemotePath
from segmenter.raster.stamps import stamp_of

_VERSION = 3
"""Version of the rules of counting; it is part of the key."""
_FORMAT = b"3"
"""Version of the file; 1 had no checksum of the whole, 2 ignored sidecars of images and labels."""
_DAMAGE = (
    *(pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError, IndexError),
    *(OverflowError, MemoryError, RecursionError),
)
"""Errors of pyarrow, JSON and NumPy about damaged files."""
Keys = tuple[str, str]
"""Keys of the stamps of an image and of its label."""


@dataclass(frozen=True)
class SceneTiles:
    """Tiles of one scene: (n,) top rows and left columns, (n, K) pixels of each class."""

    row_N: NDArray[np.int32]
    col_N: NDArray[np.int32]
    counts_NK: NDArray[np.int64]


Entries = dict[tuple[str, str], tuple[Keys, SceneTiles]]
"""(image, label), relative to the root → keys of the files' states, and the tiles."""


def cache_folder(dataset: Dataset) -> Path:
    """Return `.tile-index` in the dataset's root, or a folder in the user's cache if that is read-only.

    If the dataset names a `cache`, a subfolder for this dataset.

    Raises:
        SegmenterError: none of these is writable.
    """
    return _cache_folder(dataset.root.resolve(), dataset.cache)


@functools.cache
def _cache_folder(root: Path, wanted: Path | None) -> Path:
    name = f"{root.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:12]}"
    if wanted is not None:
        if not _writable(wanted / name):
            raise SegmenterError("dataset.cache", f"cannot write to {wanted}", remedy="name another folder")
        return wanted / name
    beside = root / ".tile-index"
    remote = isinstance(root, RemotePath)
    if not remote and _writable(beside):
        return beside
    elsewhere = caches() / name
    if not _writable(elsewhere):
        raise SegmenterError(
            root,
            f"cannot keep the tile index there nor in {elsewhere}",
            remedy="name a folder that can be written in dataset.cache",
        )
    why = "is remote: its tile index and packs are" if remote else "cannot be written to: the tile index is"
    more = "; dataset.cache names another folder" if remote else ""
    say(f"{root} {why} kept in {elsewhere}{more}", aside=True)
    return elsewhere


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def relative_paths(dataset: Dataset, scene: Scene) -> tuple[str, str]:
    """Return the paths of a scene's image and label as stored in the index."""
    image, label = (os.path.relpath(path, dataset.root) for path in (scene.image, scene.label or scene.image))
    return Path(image).as_posix(), Path(label).as_posix()


def keys_of(image: Path, label: Path) -> Keys:
    """Return the keys of two files' states, including their sidecars."""
    return stamp_of(image).key, stamp_of(label).key


def key_of(what: Mapping[str, Any]) -> str:
    """Return a short name for everything that a cached file's content depends on."""
    return digest({"version": _VERSION, **what}, 16)


def load_entries(path: Path, classes: int) -> Entries:
    """Load an index file; if damaged or of another format, return nothing and print a line on stderr."""
    if not path.exists():
        return {}
    try:
        return _entries(pq.read_table(path, page_checksum_verification=True), classes)
    except _DAMAGE as error:
        why = plain(shortened((str(error).splitlines() or [type(error).__name__])[0]))
        say(f"{path}: damaged, it is built anew ({why})", aside=True)
        return {}


def _entries(table: pa.Table, classes: int) -> Entries:
    metadata = table.schema.metadata or {}
    if metadata.get(b"format") != _FORMAT:
        raise ValueError(f"expected format {_FORMAT.decode()}, got {metadata.get(b'format', b'none')!r}")
    scene_N, row_N, col_N = (table[name].to_numpy() for name in ("scene", "row", "col"))
    flat = table["counts"].combine_chunks().flatten().to_numpy()
    if _checksum(metadata[b"scenes"], scene_N, row_N, col_N, flat) != metadata[b"sha256"]:
        raise ValueError("its SHA-256 is another")
    counts_NK = flat.reshape(len(scene_N), classes)
    scenes = json.loads(metadata[b"scenes"])
    cuts = np.searchsorted(scene_N, np.arange(len(scenes) + 1))
    entries: Entries = {}
    for i, (image, label, image_key, label_key) in enumerate(scenes):
        part = slice(int(cuts[i]), int(cuts[i + 1]))
        tiles = SceneTiles(row_N[part], col_N[part], counts_NK[part])
        entries[image, label] = (image_key, label_key), tiles
    return entries


def _checksum(scenes: bytes, *columns: NDArray[Any]) -> bytes:
    """Return the SHA-256 of an index: a page's CRC does not cover metadata and the columns' types."""
    total = hashlib.sha256(scenes)
    for column in columns:
        total.update(repr((column.dtype.str, column.shape)).encode())
        total.update(np.ascontiguousarray(column).data if column.size else b"")
    return total.hexdigest().encode()


def save_entries(path: Path, entries: Entries, classes: int) -> None:
    """Write an index file completely; if that fails, print a line on stderr and go on."""
    tiles = [one for _, one in entries.values()]
    lengths = [len(one.row_N) for one in tiles]
    counts = _joined([one.counts_NK.reshape(-1) for one in tiles], np.int64)
    scene = np.repeat(np.arange(len(tiles), dtype=np.int32), lengths)
    row = _joined([one.row_N for one in tiles], np.int32)
    col = _joined([one.col_N for one in tiles], np.int32)
    columns = {
        **{name: pa.array(column) for name, column in (("scene", scene), ("row", row), ("col", col))},
        "counts": pa.FixedSizeListArray.from_arrays(pa.array(counts), classes),
    }
    names = [[*files, *keys] for files, (keys, _) in entries.items()]
    scenes = json.dumps(names).encode()
    metadata = {"format": _FORMAT, "scenes": scenes, "sha256": _checksum(scenes, scene, row, col, counts)}
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    try:
        write_whole(path, sink.getvalue().to_pybytes())
    except SegmenterError as error:
        say(f"the tile index is not kept: {error}", aside=True)


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)
