"""Made files in the layout of Sentinel-2 products and of a WorldCover tile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine
from rasterio.warp import transform

CODES = np.array([10, 20, 30, 40, 50, 60, 80, 90], np.uint8)
_BANDS = {10: ("B02", "B03", "B04", "B08"), 20: ("B11", "B12")}
_STEP = 1 / 12_000
_WEST, _NORTH = 14.995, 50.56


def land(longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.intp]:
    """Class numbers of fields some 150 m wide."""
    east, north = np.floor(longitude * 400).astype(int), np.floor(latitude * 700).astype(int)
    return (east * 3 + north * 5) % len(CODES)


def product(root: Path, tile: str, x: float, y: float, pixels: int, seed: int) -> Path:
    """A product of six bands in EPSG:32633; its last columns hold 0, as at the end of an orbit."""
    name = f"S2B_MSIL2A_20230610T101609_N0509_R065_{tile}_20230610T132509.SAFE"
    data = root / name / "GRANULE" / f"L2A_{tile}_A032710" / "IMG_DATA"
    rng = np.random.default_rng(seed)
    for side, bands in _BANDS.items():
        n, at = pixels * 10 // side, Affine(side, 0, x, 0, -side, y)
        cols, rows = np.meshgrid(np.arange(n) + 0.5, np.arange(n) + 0.5)
        lon, lat = transform("EPSG:32633", "EPSG:4326", *(at @ (cols.ravel(), rows.ravel())))
        kind = land(np.array(lon), np.array(lat)).reshape(n, n)
        for i, band in enumerate(bands):
            values = 1500 + 900 * ((kind * (i + 3)) % 8) + rng.integers(-99, 99, kind.shape)
            values[:, n - 80 // side :] = 0
            path = data / f"R{side}m" / f"{tile}_20230610T101609_{band}_{side}m.jp2"
            path.parent.mkdir(parents=True, exist_ok=True)
            with rasterio.open(
                path, "w", driver="JP2OpenJPEG", width=n, height=n, count=1, dtype="uint16",
                crs="EPSG:32633", transform=at, QUALITY="100", REVERSIBLE="YES",
            ) as file:  # fmt: skip
                file.write(values.astype(np.uint16), 1)
    return root / name


def worldcover(root: Path, width: int, height: int) -> Path:
    """A tile of the map, from 14.995° E and 50.56° N on."""
    lon, lat = _WEST + (np.arange(width) + 0.5) * _STEP, _NORTH - (np.arange(height) + 0.5) * _STEP
    path = root / "ESA_WorldCover_10m_2021_v200_N48E015_Map.tif"
    with rasterio.open(
        path, "w", driver="GTiff", width=width, height=height, count=1, dtype="uint8", nodata=0,
        crs="EPSG:4326", transform=Affine(_STEP, 0, _WEST, 0, -_STEP, _NORTH), tiled=True,
    ) as file:  # fmt: skip
        file.write(CODES[land(*np.meshgrid(lon, lat))], 1)
    return path
