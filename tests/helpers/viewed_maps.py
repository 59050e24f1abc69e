"""Maps as predict.py writes them, made in no time, with image, label, confidence and probabilities."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.transform import Affine
from scipy.ndimage import gaussian_filter

from segmenter.grid.geometry import Size
from segmenter.raster import RasterSpec, write_raster

NAMES = ("water", "road", "building", "meadow")
COLOURS = ((0, 0, 255), (90, 90, 90), (210, 74, 60), (120, 200, 90))
CODES = (10, 20, 30, 40)
UTM = {"crs": CRS.from_epsg(25833), "transform": Affine(0.5, 0, 368000, 0, -0.5, 5808000)}
PLACES: dict[str, dict[str, Any]] = {
    "utm": UTM,
    "degrees": {"crs": CRS.from_epsg(4326), "transform": Affine(9e-5, 0, -59.7, 0, -9e-5, -9.6)},
    "rotated": {"crs": CRS.from_epsg(25833), "transform": Affine(0.4, 0.3, 368000, 0.3, -0.4, 5808000)},
    "southup": {"crs": CRS.from_epsg(32749), "transform": Affine(10, 0, 663840, 0, 10, 7378560)},
    "nowhere": {},
}
"""Georeferences of rasters, as keywords of `RasterSpec`."""
ODD = Size(301, 417)


class MadeMap(NamedTuple):
    """Files of a map and their contents: folders end with a map's, its images' and its labels' name."""

    map: Path
    image: Path
    label: Path
    image_HWC: NDArray[Any]
    label_HW: NDArray[np.uint8]
    ids_HW: NDArray[np.uint8]
    confidence_HW: NDArray[np.uint8]


def made_map(folder: Path, name: str = "a", size: Size = ODD, seed: int = 0, **place: Any) -> MadeMap:
    """Write `maps/NAME.tif` with its companions, `images/NAME.tif` and `labels/NAME.tif`, with codes."""
    rng = np.random.default_rng(seed)
    for each in ("maps", "images", "labels"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    shape = (size.height, size.width)
    fields = np.stack([gaussian_filter(rng.standard_normal(shape), 12) for _ in NAMES], axis=2)
    label_HW = fields.argmax(axis=2).astype(np.uint8)
    noisy = fields + 0.35 * fields.std() * np.stack(
        [gaussian_filter(rng.standard_normal(shape), 3) * 20 for _ in NAMES], axis=2
    )
    chances = np.exp(noisy / fields.std())
    chances /= chances.sum(axis=2, keepdims=True)
    ids_HW = chances.argmax(axis=2).astype(np.uint8)
    confidence_HW = np.maximum(1, np.rint(255 * chances.max(axis=2))).astype(np.uint8)
    ids_HW[:3, :5], confidence_HW[:3, :5] = 255, 0
    palette = np.array(COLOURS)
    image_HWC = np.clip(palette[label_HW] * 0.7 + rng.normal(40, 18, (*shape, 3)), 0, 255).astype(np.uint8)
    table = np.zeros((256, 3), np.uint8)
    table[: len(NAMES)] = COLOURS
    tags = {f"CLASS_{i}": each for i, each in enumerate(NAMES)} | {"SOURCE": f"{name}.tif", "RUN": "made"}
    tags |= {f"CODE_{i}": str(code) for i, code in enumerate(CODES)}
    maps = folder / "maps"
    probabilities = np.where(ids_HW[..., None] == 255, 255, np.minimum(254, np.rint(255 * chances)))
    for path, array, spec in (
        (maps / f"{name}.tif", ids_HW, RasterSpec(nodata=255, colour_table=table, tags=tags, **place)),
        (
            maps / f"{name}.confidence.tif",
            confidence_HW,
            RasterSpec(nodata=0, scale=1 / 255, tags=tags, **place),
        ),
        (
            maps / f"{name}.probabilities.tif",
            probabilities.astype(np.uint8),
            RasterSpec(bands=4, nodata=255, scale=1 / 255, descriptions=NAMES, tags=tags, **place),
        ),
        (folder / "images" / f"{name}.tif", image_HWC, RasterSpec(bands=3, **place)),
        (folder / "labels" / f"{name}.tif", np.array(CODES, np.uint8)[label_HW], RasterSpec(**place)),
    ):
        write_raster(path, array, spec)
    return MadeMap(
        maps / f"{name}.tif",
        folder / "images" / f"{name}.tif",
        folder / "labels" / f"{name}.tif",
        image_HWC,
        label_HW,
        ids_HW,
        confidence_HW,
    )
