"""Targets among rasters: seeds, and every way to use one: opened, read, thinned, its place given to a map."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.rpc import RPC

from fuzz.target import Facts, digest
from segmenter.grid.geometry import Size, Window
from segmenter.mapping.jobs import Bounds
from segmenter.raster import RasterSpec, RasterWriter, open_raster, read_label

_PLACE = {"crs": "EPSG:25833", "transform": rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000)}
_BOX = Bounds(368003, 5807980, 368010, 5807995)
_TIFFS: dict[str, dict[str, Any]] = {
    "tiled": {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "deflate", **_PLACE},
    "lzw": {"compress": "lzw", "predictor": 2, "dtype": "uint16", "nodata": 0, **_PLACE},
    "planes": {
        "interleave": "band",
        "compress": "packbits",
        "count": 4,
        "photometric": "rgb",
        "alpha": "yes",
    },
    "jpeg": {"compress": "jpeg", "photometric": "ycbcr", "tiled": True, "blockxsize": 16, "blockysize": 16},
    "floats": {"dtype": "float32", "nodata": float("nan"), "compress": "zstd", "predictor": 3, **_PLACE},
    "bits": {"count": 1, "nbits": 1, "compress": "ccittfax4"},
    "signed": {"dtype": "int16", "count": 1, "nodata": -9999, **_PLACE},
    "big": {"bigtiff": "yes", "endianness": "big", "dtype": "float64", "count": 2, **_PLACE},
    "points": {"crs": "EPSG:4326", "count": 1},
    "camera": {"count": 1, "dtype": "uint16"},
    "scaled": {"dtype": "int16", "count": 2, "compress": "lzma", **_PLACE},
    "masked": {"tiled": True, "blockxsize": 16, "blockysize": 16, **_PLACE},
    "palette": {"count": 1, **_PLACE},
    "overviews": {
        "count": 3,
        "tiled": True,
        "blockxsize": 16,
        "blockysize": 16,
        "compress": "deflate",
        **_PLACE,
    },
}
_AXES = ("height", "lat", "line", "long", "samp")
_RPC: dict[str, Any] = {
    **{f"{axis}_{part}": 100.0 for axis in _AXES for part in ("off", "scale")},
    **{f"{axis}_{part}_coeff": [1.0] + [1e-4] * 19 for axis in ("line", "samp") for part in ("num", "den")},
}
AUX = """<PAMDataset><SRS>EPSG:25833</SRS><GeoTransform>368000, 0.5, 0, 5808000, 0, -0.5</GeoTransform>
<Metadata domain="OVERVIEWS"><MDI key="OVERVIEW_FILE">secret.tif</MDI></Metadata>
<Metadata><MDI key="AREA_OR_POINT">Area</MDI></Metadata>
<PAMRasterBand band="1"><NoDataValue>7</NoDataValue><Scale>2</Scale><Offset>1</Offset>
<Description>red</Description><ColorInterp>Alpha</ColorInterp></PAMRasterBand></PAMDataset>
"""


def make_tiffs(folder: Path) -> None:
    """Small GeoTIFFs, one of each kind that GDAL stores otherwise."""
    for name, options in _TIFFS.items():
        _write(folder / f"{name}.tif", **options)


def make_pictures(folder: Path, driver: str) -> None:
    """PNG or JPEG files."""
    ending = driver.lower()
    for count in (1, 3) if driver == "JPEG" else (1, 2, 3, 4):
        _write(folder / f"{count}.{ending}", driver=driver, count=count)
    if driver == "PNG":
        _write(folder / "palette.png", driver=driver, count=1)
        _write(folder / "deep.png", driver=driver, dtype="uint16")
    else:
        _write(folder / "progressive.jpeg", driver=driver, progressive="on", quality=50)


def make_sidecars(folder: Path) -> None:
    """A raster of each driver with all that GDAL looks for beside it."""
    for name, driver in (("a.tif", "GTiff"), ("b.png", "PNG"), ("c.jpg", "JPEG")):
        _write(folder / name, driver=driver)
        (folder / f"{name}.aux.xml").write_text(AUX)
        (folder / name).with_suffix(".wld").write_text("0.5\n0\n0\n-0.5\n368000\n5808000\n")
    _write(folder / "secret.tif")
    _write(folder / "m.tif")
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(folder / "m.tif", "r+") as file:
        file.write_mask(np.eye(37, 41, dtype=bool))
    with rasterio.Env(TIFF_USE_OVR="YES"), rasterio.open(folder / "m.tif", "r+") as file:
        file.build_overviews([2, 4])


def _write(path: Path, **options: Any) -> None:
    profile = {"driver": "GTiff", "height": 37, "width": 41, "count": 3, "dtype": "uint8", **options}
    high = {"uint8": 256, "int16": 3000, "uint16": 4000}.get(profile["dtype"], 100)
    high = 2 if profile.get("nbits") == 1 else high
    rng = np.random.default_rng(5)
    coarse = rng.integers(0, high, (profile["count"], 10, 11))
    pixels = coarse.repeat(4, 1).repeat(4, 2)[:, :37, :41].astype(profile["dtype"])
    with warnings.catch_warnings(), rasterio.Env(GDAL_PAM_ENABLED=False, GDAL_TIFF_INTERNAL_MASK=True):
        warnings.simplefilter("ignore")
        with rasterio.open(path, "w", **profile) as file:
            file.write(pixels)
            _describe(file, path.stem)
        if path.stem == "overviews":
            with rasterio.open(path, "r+") as file:
                file.build_overviews([2, 4])


def _describe(file: Any, kind: str) -> None:
    if kind == "points":
        corners = ((0, 0), (0, 41), (37, 0), (37, 41))
        file.gcps = [GroundControlPoint(r, c, 13 + c / 9, 52 - r / 9) for r, c in corners], file.crs
    elif kind == "camera":
        file.rpcs = RPC(**_RPC)
    elif kind == "scaled":
        file.scales, file.offsets = (0.5, 2.0), (0.0, -3.0)
    elif kind == "masked":
        file.write_mask(np.arange(37 * 41).reshape(37, 41) % 3 > 0)
        file.descriptions = ("red", "green", "blue")
    elif kind == "palette":
        file.write_colormap(1, {i: (i, 255 - i, 0, 255) for i in range(256)})


def read_raster(path: Path) -> Facts:
    """What predict.py and a picture read of it, and where its map would lie."""
    with open_raster(path) as raster:
        info = raster.info
        facts = [digest(info.size, info.dtype, info.nodata, info.scaling, info.metres_per_pixel)]
        facts.append(digest(raster.may_have_nodata))
        for window in (Window(0, 0, 20, 24), Window(25, 30, 30, 30), Window(0, info.size.width // 2, 5, 5)):
            facts.append(digest(*raster.read(window)))
        shape = Size(min(16, info.size.height), min(16, info.size.width))
        facts.append(digest(*raster.thinned(Window.of(info.size), shape)))
        if info.transform is not None:
            facts.append(digest(_BOX.window(info)))
        return [*facts, _map(path.with_name("map.tif"), info, Window(2, 3, 5, 7))]


def _map(path: Path, info: Any, part: Window) -> str:
    """A map of a part of it is written, and is where the raster is."""
    place = info.georeference(part)
    with RasterWriter(path, part.size, RasterSpec(**place)) as writer:
        writer.write(Window.of(part.size), np.zeros((part.height, part.width), np.uint8))
    with rasterio.open(path) as file:
        return digest(file.crs, file.transform, len(file.gcps[0]), bool(file.rpcs))


def read_labels(path: Path) -> Facts:
    """As codes, as colours, and for a picture."""
    shape = Size(8, 9)
    return [digest(read_label(path, expand_palette=p, shape=s)) for p in (False, True) for s in (None, shape)]


def read_beside(path: Path) -> Facts:
    """The raster that a sidecar belongs to."""
    stem = path.name.partition(".")[0]
    (raster,) = (p for p in path.parent.glob(f"{stem}.*") if p.suffix in (".tif", ".png", ".jpg"))
    return read_raster(raster)
