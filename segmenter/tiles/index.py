"""Tile index: windows of all scenes with their class pixel counts, refreshed for changed files only.

The law of this module: **the counts are those of the labels as training reads them**: only pixels with image
data, no undefined values, each label as large as its image.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, SegmenterError, plain
from segmenter.base.files import caches, on_disk
from segmenter.base.keyed_folder import KeyedFolder
from segmenter.base.sealed import digest
from segmenter.base.terminal import say, warn
from segmenter.base.threads import Spread, in_threads
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.grid.windows import grid, row_strips
from segmenter.raster import KnownRasters, LabelRaster, Raster, RasterInfo, open_raster, raster_info
from segmenter.raster.ground import check_label
from segmenter.raster.stamps import stamp_of
from segmenter.sampling import TileStrata

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
    remote = not on_disk(root)
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
    return _below(scene.image, dataset.root), _below(scene.label or scene.image, dataset.root)


def _below(path: Path, root: Path) -> str:
    text, above = str(path), os.path.join(str(root), "")
    if text.startswith(above) and ".." not in text:  # as nearly all: ten times as fast as `relpath`
        return text.removeprefix(above)
    return Path(os.path.relpath(text, str(root))).as_posix()


def keys_of(image: Path, label: Path) -> Keys:
    """Return the keys of two files' states, including their sidecars."""
    return stamp_of(image).key, stamp_of(label).key


def key_of(what: Mapping[str, Any]) -> str:
    """Return a short name for everything that a cached file's content depends on."""
    return digest({"version": _VERSION, **what}, 16)


def load_entries(folder: KeyedFolder, name: str, classes: int) -> Entries:
    """Load an index file; nothing if it is missing, damaged or of another format."""

    def read(path: Path) -> Entries:
        return _entries(pq.read_table(path, page_checksum_verification=True), classes)

    return folder.load(name, read, _DAMAGE) or {}


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


def save_entries(folder: KeyedFolder, name: str, entries: Entries, classes: int) -> None:
    """Write an index file, if that is possible."""
    tiles = [one for _, one in entries.values()]
    lengths = [len(one.row_N) for one in tiles]
    counts = _flat([one.counts_NK.reshape(-1) for one in tiles], np.int64)
    scene = np.repeat(np.arange(len(tiles), dtype=np.int32), lengths)
    row = _flat([one.row_N for one in tiles], np.int32)
    col = _flat([one.col_N for one in tiles], np.int32)
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
    folder.save(name, sink.getvalue().to_pybytes())


def _flat(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


STRIP_PIXELS = 1 << 22
"""Pixels read at once: decoding colours takes some 25 bytes a pixel, 100 MiB a thread."""

_REMARKS = 10
"""On images, that are printed one by one."""


@dataclass(frozen=True)
class TileIndex:
    """The tiles of one split.

    Attributes:
        scenes: scenes of the split; `scene_N` are indices into it.
        row_N, col_N: top left corner of each tile in its scene; a tile may reach beyond a small scene.
        labelled_N: number of pixels in the tile with a class and image data.
        counts_NK: (N, K) pixels of each class among these.
        tile: size of all tiles in pixels.
        left_out: number of tiles excluded for fewer labelled pixels than `min_labelled`.
        metres_S: metres a pixel of each scene; None if not needed.
        strata: strata of the scenes' scale, if the plan needs them.
    """

    scenes: tuple[Scene, ...]
    scene_N: NDArray[np.int32]
    row_N: NDArray[np.int32]
    col_N: NDArray[np.int32]
    labelled_N: NDArray[np.int64]
    counts_NK: NDArray[np.int64]
    tile: Size
    left_out: int
    metres_S: NDArray[np.float64] | None = None
    strata: TileStrata | None = None

    def __len__(self) -> int:
        return len(self.scene_N)

    def window(self, i: int) -> Window:
        """Return the window of tile `i` in its scene."""
        return Window(int(self.row_N[i]), int(self.col_N[i]), self.tile.height, self.tile.width)

    def fingerprint(self) -> str:
        """Return a digest of everything that plans depend on: positions and counts of all tiles."""
        content = hashlib.sha256()
        for array in (self.scene_N, self.row_N, self.col_N, self.counts_NK):
            content.update(np.ascontiguousarray(array).data)
        if self.metres_S is not None:
            content.update(np.ascontiguousarray(self.metres_S).data)
        return content.hexdigest()[:32]

    def shares(self) -> NDArray[np.float64]:
        """Return each class's share (K,) of the labelled pixels of all tiles; 0 if there are none."""
        total = self.counts_NK.sum(axis=0)
        return total / max(1, int(total.sum()))


def build_index(
    dataset: Dataset,
    split: Split,
    tiles: TilesConfig,
    *,
    progress: bool = True,
    spread: Spread = in_threads,
    files: KnownRasters | None = None,
) -> TileIndex:
    """Index the tiles of a split; read only files that changed since the last call.

    Scenes indexed before an error or interruption are kept.

    Args:
        spread: runs the work over the scenes.
        files: opener that knows files which were read before; None: none was.

    Raises:
        DatasetError: a label does not match its image, or no tile has enough labelled pixels.
        LabelError: a label has a value that is not in the class map.
        RasterError: a file cannot be read.
    """
    scenes, tile = dataset.of(split), Size(tiles.size, tiles.size)
    folder, name = KeyedFolder(cache_folder(dataset)), f"tiles-{_key(dataset, tiles)}.parquet"
    before = load_entries(folder, name, len(dataset.classes))
    keys = {relative_paths(dataset, s): keys_of(s.image, s.label or s.image) for s in scenes}
    entries = _still_there(before, dataset, keys)
    missing = [s for s in scenes if relative_paths(dataset, s) not in entries]
    try:
        _measure(dataset, missing, tiles, keys, entries, progress, spread, files)
    finally:
        if entries.keys() != before.keys() or missing:
            save_entries(folder, name, entries, len(dataset.classes))
    per_scene = [entries[relative_paths(dataset, scene)][1] for scene in scenes]
    return _join_scenes(scenes, per_scene, tile, tiles.min_labelled, len(dataset.classes))


def _key(dataset: Dataset, tiles: TilesConfig) -> str:
    what = {"size": tiles.size, "overlap": tiles.overlap, "bands": dataset.bands}
    return key_of(what | {"classes": dataset.classes.to_dict()})


def _still_there(before: Entries, dataset: Dataset, now: dict[tuple[str, str], Keys]) -> Entries:
    """Return the entries whose files are unchanged, also those of other splits and recipes."""
    return {
        files: (keys, tiles)
        for files, (keys, tiles) in before.items()
        if keys == (now.get(files) or keys_of(dataset.root / files[0], dataset.root / files[1]))
    }


def _measure(
    dataset: Dataset,
    scenes: list[Scene],
    tiles: TilesConfig,
    keys: dict[tuple[str, str], Keys],
    entries: Entries,
    progress: bool,
    spread: Spread,
    files: KnownRasters | None,
) -> None:
    remarks: list[str] = []

    def count(scene: Scene) -> tuple[SceneTiles, list[str]]:
        notes: list[str] = []
        size = Size(tiles.size, tiles.size)
        return tile_counts(dataset, scene, size, tiles.overlap, notes.append, files), notes

    results = spread(count, scenes, description="indexing", unit="scene", progress=progress)
    for scene, (scene_tiles, notes) in zip(scenes, results, strict=True):
        remarks += notes
        paths = relative_paths(dataset, scene)
        entries[paths] = keys[paths], scene_tiles
    for remark in sorted(remarks)[:_REMARKS]:
        warn(plain(remark))
    if len(remarks) > _REMARKS:
        warn(f"and so in {len(remarks) - _REMARKS} more images")


def _join_scenes(
    scenes: tuple[Scene, ...], tiles_S: list[SceneTiles], tile: Size, min_labelled: float, classes: int
) -> TileIndex:
    """Join all scenes' tiles to one index, leaving out tiles with too few labelled pixels."""
    empty = np.zeros(0, np.int32)
    scene_N = np.repeat(np.arange(len(tiles_S), dtype=np.int32), [len(f.row_N) for f in tiles_S])
    row_N = np.concatenate([empty, *(f.row_N for f in tiles_S)])
    col_N = np.concatenate([empty, *(f.col_N for f in tiles_S)])
    counts_NK = np.concatenate([np.zeros((0, classes), np.int64), *(f.counts_NK for f in tiles_S)])
    labelled_N = counts_NK.sum(axis=1)
    enough = labelled_N >= min_labelled * tile.pixels
    if len(enough) and not enough.any():
        raise DatasetError(
            scenes[0].split,
            expected=f"tiles with at least {min_labelled:.1%} labelled pixels with data, none of "
            f"{len(enough)} has so many",
            remedy="lower tiles.min_labelled or tiles.size, or look at the labels",
        )
    return TileIndex(
        scenes=scenes,
        scene_N=scene_N[enough],
        row_N=row_N[enough],
        col_N=col_N[enough],
        labelled_N=labelled_N[enough],
        counts_NK=counts_NK[enough],
        tile=tile,
        left_out=int((~enough).sum()),
    )


def tile_counts(
    dataset: Dataset,
    scene: Scene,
    tile: Size,
    overlap: int,
    say: Callable[[str], object] = lambda _: None,
    files: KnownRasters | None = None,
) -> SceneTiles:
    """Count class pixels in all tiles of a scene; decode each pixel once, whatever the overlap.

    Args:
        say: called with each warning about the image.
        files: see `build_index`.

    Raises:
        DatasetError, LabelError, RasterError: a file is invalid; the message names it.
    """
    with contextlib.ExitStack() as stack:
        raster = None
        if files is None or not files.is_whole(scene.image, dataset.bands):
            raster = stack.enter_context(open_raster(scene.image, dataset.bands))
        info = raster_info(scene.image) if raster is None else raster.info
        check_fit(scene, info)
        cells = _Cells(info.size, tile, overlap, len(dataset.classes))
        for strip in row_strips(info.size, STRIP_PIXELS):
            cells.add(strip.row, class_ids(dataset, scene, raster, strip, files))
        if raster is not None and raster.partial_remark is not None:
            say(raster.partial_remark)
    return cells.tiles()


class _Cells:
    """Class counts in the cells between all tile borders, summed to tiles at the end."""

    def __init__(self, size: Size, tile: Size, overlap: int, classes: int) -> None:
        self._windows = [placement.read for placement in grid(size, tile, overlap)]
        area = Window.of(size)
        inside = [window.intersection(area) for window in self._windows]
        self._inside = np.array([(w.row, w.row_stop, w.col, w.col_stop) for w in inside]).reshape(-1, 4)
        self._rows = np.unique([0, size.height, *self._inside[:, :2].flat])
        self._cols = np.unique([0, size.width, *self._inside[:, 2:].flat])
        self._bins = classes + 1  # the last is for pixels that count nowhere
        cell_W = np.searchsorted(self._cols, np.arange(size.width), side="right") - 1
        self._offset_W = cell_W * self._bins
        self._counts = np.zeros((len(self._rows) - 1, len(self._cols) - 1, self._bins), np.int64)

    def add(self, top: int, ids_HW: NDArray[np.uint8]) -> None:
        """Count full-width rows of class ids; their first is row `top` of the scene."""
        bottom = top + ids_HW.shape[0]
        for i, (first, stop) in enumerate(zip(self._rows[:-1], self._rows[1:], strict=True)):
            part = ids_HW[max(first, top) - top : max(stop, top) - top]
            if first < bottom and len(part):
                key_HW = np.minimum(part, self._bins - 1) + self._offset_W
                counts = np.bincount(key_HW.reshape(-1), minlength=self._counts[i].size)
                self._counts[i] += counts.reshape(self._counts[i].shape)

    def tiles(self) -> SceneTiles:
        """Return counts of each tile, by a summed-area table over the cells."""
        table = np.zeros((len(self._rows), len(self._cols), self._bins - 1), np.int64)
        table[1:, 1:] = self._counts[..., :-1].cumsum(axis=0).cumsum(axis=1)
        top, bottom = np.searchsorted(self._rows, self._inside[:, :2]).T
        left, right = np.searchsorted(self._cols, self._inside[:, 2:]).T
        counts = table[bottom, right] - table[top, right] - table[bottom, left] + table[top, left]
        corners = np.array([(w.row, w.col) for w in self._windows], np.int32).reshape(-1, 2)
        return SceneTiles(corners[:, 0].copy(), corners[:, 1].copy(), counts)


def check_fit(scene: Scene, image: RasterInfo) -> None:
    """Run `check_label` on a scene (DatasetError: also if there is no label)."""
    if scene.label is None:
        raise DatasetError(scene.image, expected=f"a label for scene {scene.name}, there is none")
    check_label(scene.label, image)


def class_ids(
    dataset: Dataset,
    scene: Scene,
    raster: Raster | None,
    window: Window,
    files: KnownRasters | None = None,
) -> NDArray[np.uint8]:
    """Return (H, W) class ids; `IGNORE` also where the image has no data, read only if it may lack some.

    Args:
        raster: the image; None: it has data everywhere.
        files: see `build_index`.
    """
    assert scene.label is not None, "check_fit comes first"
    with (LabelRaster if files is None else files.label)(scene.label, dataset.classes) as label:
        ids = label.ids(window)
    if raster is not None and raster.may_have_nodata:
        ids[~raster.read(window)[1]] = IGNORE
    return ids
