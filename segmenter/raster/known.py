"""Rasters that are opened again and again: what the first opening found holds while the file is unchanged.

Opening a small file in full costs as much as its pixels: sidecars are looked for, the CRS is parsed (0.7 ms),
a PNG is inflated to see that it is whole. All of that is done once for each state of a file. From then on it
is opened by its driver alone, and without its georeference, which no pixel depends on.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rasterio.io import DatasetReader

from segmenter.raster.faults import naming
from segmenter.raster.gdal_files import own_env
from segmenter.raster.header import RasterInfo
from segmenter.raster.label import LabelRaster
from segmenter.raster.reading import Raster, open_raster
from segmenter.raster.remote import RemotePath, as_gdal_takes
from segmenter.raster.served import patiently
from segmenter.raster.sidecars import anything_beside

_SETTLED_NS = 2_000_000_000
"""Age of a folder's last change from which on another one shows: clocks of file systems tick in up to 2 s."""
_MOST = 1 << 20
_Key = tuple[Path, tuple[int, ...] | Literal["label"] | None]
_PIXELS_ALONE = {"GDAL_GEOREF_SOURCES": "NONE", "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}


@dataclass(frozen=True)
class _Found:
    """What the first opening found, but for the path: many tiles share it."""

    info: RasterInfo
    bands: tuple[int, ...]
    alpha: tuple[int, ...]


class KnownRasters:
    """Opens images and labels for their pixels; `info` of what it opens has no georeference.

    A file is known while its size, its times, its inode and its folder's time stay as they were, and only
    where nothing lies beside it. Safe to use from several threads; pickled, another process knows them too.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[int, _Found]] = {}
        self._same: dict[_Found, _Found] = {}

    def image(self, path: Path, bands: tuple[int, ...] | None) -> Raster:
        """As `open_raster`."""
        state = _state(path)
        if (found := self._find((path, bands), state)) and (dataset := _opened(path, found)) is not None:
            return Raster(dataset, replace(found.info, path=path), found.bands, found.alpha)
        raster = open_raster(path, bands)
        self._keep((path, bands), state, _Found(_bare(raster.info), raster.bands, raster.alpha))
        return raster

    def label(self, path: Path, *, expand_palette: bool) -> LabelRaster:
        """As `LabelRaster`."""
        state = _state(path)
        if (found := self._find((path, "label"), state)) and (dataset := _opened(path, found)) is not None:
            info = replace(found.info, path=path)
            return LabelRaster.checked(dataset, info, expand_palette=expand_palette)
        label = LabelRaster(path, expand_palette=expand_palette)
        self._keep((path, "label"), state, _Found(_bare(label.info), (), ()))
        return label

    def _find(self, key: _Key, state: int | None) -> _Found | None:
        known = self._known.get(key)
        return known[1] if known is not None and known[0] == state else None

    def _keep(self, key: _Key, state: int | None, found: _Found) -> None:
        """Keep what was found in a state that was taken before, if it is still that."""
        beside = not isinstance(key[0], RemotePath) and anything_beside(key[0])
        if state is None or len(self._known) >= _MOST or beside or _state(key[0]) != state:
            self._known.pop(key, None)
            return
        self._known[key] = state, self._same.setdefault(found, found)


def _state(path: Path) -> int | None:
    """The state of a file and of its folder, in short; None where a change might not show in it.

    Of a remote file, what its server said once in this process: each look would be a request.
    """
    if isinstance(path, RemotePath):
        return path.known_state()
    try:
        file, folder = os.stat(path), os.stat(os.path.dirname(path) or ".")
    except OSError:
        return None
    if time.time_ns() - folder.st_mtime_ns < _SETTLED_NS:
        return None
    stamps = file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino, file.st_dev
    return hash((*stamps, folder.st_ino, folder.st_mtime_ns))


def _opened(path: Path, found: _Found) -> Any:
    """The dataset, for its pixels; None where it is not what it was."""
    info = found.info
    if isinstance(path, RemotePath):
        dataset = patiently(path.address, lambda: _dataset(path, info.driver))
    else:
        dataset = _dataset(path, info.driver)
    if dataset.shape == (info.size.height, info.size.width) and dataset.count == info.count:
        return dataset
    dataset.close()
    return None


def _dataset(path: Path, driver: str) -> Any:
    advice = "expected a GeoTIFF, PNG or JPEG that is whole"
    with naming(path, "cannot open it", advice), own_env(**_PIXELS_ALONE):
        dataset = DatasetReader(str(as_gdal_takes(path)), driver=driver, sharing=False)
        dataset.mask_flag_enums  # noqa: B018 - now, and not at the first read, GDAL looks for a mask
        return dataset


def _bare(info: RasterInfo) -> RasterInfo:
    """A header without what differs from tile to tile and no pixel depends on."""
    nowhere: dict[str, Any] = {"crs": None, "transform": None, "gcps": (), "gcp_crs": None, "rpcs": None}
    return replace(info, path=Path(), metres_per_pixel=None, remarks=(), **nowhere)
