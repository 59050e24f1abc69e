"""Rasters opened repeatedly: results of the first opening are reused while the file is unchanged.

Fully opening a small file costs as much as reading it: sidecars are searched, the CRS is parsed (0.7 ms).
This is done once for each state of a file. Later it is opened by its driver alone, without its
georeference, which pixels do not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rasterio.io import DatasetReader

from segmenter.grid.labels import ClassMap
from segmenter.raster.gdal.faults import naming
from segmenter.raster.gdal.files import own_env
from segmenter.raster.gdal.settings import MEANING
from segmenter.raster.header import RasterInfo
from segmenter.raster.kept import KeptPixels
from segmenter.raster.label import LabelRaster
from segmenter.raster.reading import Raster, open_raster
from segmenter.raster.remote.settings import patiently
from segmenter.raster.source import gdal_name
from segmenter.raster.stamps import Stamp, certain_stamp

_MOST = 1 << 20
_KEPT_PIXELS, _KEPT_BYTES = 1 << 20, 1 << 28
"""Pixels of a label that is kept, and bytes of all that are, packed."""
_Key = tuple[Path, tuple[int, ...] | Literal["label"] | None]
_PIXELS_ALONE = MEANING | {"GDAL_GEOREF_SOURCES": "NONE", "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}


@dataclass(frozen=True)
class _Found:
    """Facts of the first opening, without the path, so that many tiles share them."""

    info: RasterInfo
    bands: tuple[int, ...]
    alpha: tuple[int, ...]
    may_lack: bool = True


class KnownRasters:
    """Opener of images and labels for their pixels; the `info` of its rasters has no georeference.

    Facts are reused while the file's stamp is unchanged, and only if it has no sidecars. Safe for several
    threads; pickling keeps the facts.

    Args:
        labels: keep the pixels of small labels, too, so that each is read once; with their georeference.
    """

    def __init__(self, *, labels: bool = False) -> None:
        self._known: dict[_Key, tuple[Stamp, _Found]] = {}
        self._same: dict[_Found, _Found] = {}
        self._keeps_labels, self._bytes = labels, 0
        self._kept: dict[Path, tuple[Stamp, RasterInfo, KeptPixels]] = {}
        self._palettes: dict[Any, Any] = {}

    def image(self, path: Path, bands: tuple[int, ...] | None) -> Raster:
        """Open an image as `open_raster` does."""
        stamp = certain_stamp(path)
        if (facts := self._find((path, bands), stamp)) and (dataset := _open_known(path, facts)) is not None:
            return Raster(dataset, replace(facts.info, path=path), facts.bands, facts.alpha)
        raster = open_raster(path, bands)
        self.remember(raster, path, bands, stamp)
        return raster

    def remember(
        self, raster: Raster, path: Path, bands: tuple[int, ...] | None, stamp: Stamp | None
    ) -> None:
        """Keep the facts of an image that was opened while its file had this stamp."""
        found = _Found(_bare(raster.info), raster.bands, raster.alpha, raster.may_have_nodata)
        self._keep((path, bands), stamp, found)

    def is_whole(self, path: Path, bands: tuple[int, ...] | None) -> bool:
        """Return True if an image was opened before, and its header tells that all pixels have data."""
        facts = self._find((path, bands), certain_stamp(path))
        return facts is not None and not facts.may_lack

    def label(
        self,
        path: Path,
        classes: ClassMap | None = None,
        *,
        expand_palette: bool = False,
        drivers: Sequence[str] = (),
    ) -> LabelRaster:
        """Open a label as `LabelRaster` does."""
        stamp = certain_stamp(path)
        kept = self._kept.get(path)
        if kept is not None and kept[0] == stamp:
            return LabelRaster.checked(kept[2].open(), kept[1], classes, expand_palette)
        if (facts := self._find((path, "label"), stamp)) and (
            dataset := _open_known(path, facts)
        ) is not None:
            return LabelRaster.checked(dataset, replace(facts.info, path=path), classes, expand_palette)
        label = LabelRaster(path, classes, expand_palette=expand_palette, drivers=drivers)
        if self._keeps_labels and (kept_now := self._keep_pixels(path, stamp, label)) is not None:
            return LabelRaster.checked(kept_now.open(), label.info, classes, expand_palette)
        if not drivers:
            self._keep((path, "label"), stamp, _Found(_bare(label.info), (), ()))
        return label

    def _keep_pixels(self, path: Path, stamp: Stamp | None, label: LabelRaster) -> KeptPixels | None:
        """Keep the pixels of an open label and close it; None if it is large, masked or may change unseen."""
        if label.info.size.pixels > _KEPT_PIXELS or self._bytes > _KEPT_BYTES or stamp is None:
            return None
        kept = label.pack()
        if kept is None or certain_stamp(path) != stamp:
            return None
        label.close()
        if kept.palette is not None:  # most files of a folder share one
            kept = replace(kept, palette=self._palettes.setdefault(kept.palette, kept.palette))
        self._bytes += len(kept.data)
        self._kept[path] = stamp, label.info, kept
        return kept

    def _find(self, key: _Key, stamp: Stamp | None) -> _Found | None:
        entry = self._known.get(key)
        return entry[1] if entry is not None and entry[0] == stamp else None

    def _keep(self, key: _Key, stamp: Stamp | None, found: _Found) -> None:
        """Store facts found in an earlier state of a file, if it is still in that state."""
        if stamp is None or stamp.beside or len(self._known) >= _MOST or certain_stamp(key[0]) != stamp:
            self._known.pop(key, None)
            return
        self._known[key] = stamp, self._same.setdefault(found, found)


def _open_known(path: Path, found: _Found) -> Any:
    """Open a dataset for its pixels; None if it has changed."""
    info = found.info
    dataset = patiently(path, lambda: _dataset(path, info.driver))
    if dataset.shape == (info.size.height, info.size.width) and dataset.count == info.count:
        return dataset
    dataset.close()
    return None


def _dataset(path: Path, driver: str) -> Any:
    advice = "expected a GeoTIFF, PNG or JPEG that is whole"
    with naming(path, "cannot open it", advice), own_env(**_PIXELS_ALONE):
        dataset = DatasetReader(str(gdal_name(path)), driver=driver, sharing=False)
        dataset.mask_flag_enums  # noqa: B018 - now, and not at the first read, GDAL looks for a mask
        return dataset


def _bare(info: RasterInfo) -> RasterInfo:
    """Return a header without facts that differ from tile to tile and that pixels do not need."""
    nowhere: dict[str, Any] = {"crs": None, "transform": None, "gcps": (), "gcp_crs": None, "rpcs": None}
    return replace(info, path=Path(), metres_per_pixel=None, remarks=(), stamp=None, **nowhere)
