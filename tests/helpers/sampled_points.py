"""Sampled points of a made map, with its image, to be labelled."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rasterio

from datasets.commands.accuracy import main
from segmenter.grid.labels import IGNORE
from segmenter.raster import RasterSpec, write_raster

NAMES = ("water", "Wald ¼", "road")
MOVE = rasterio.Affine(2.0, 0, 368_000, 0, -2.0, 5_808_000)


def sampled_points(folder: Path, points: int = 60, seed: int = 0, names: Sequence[str] = NAMES) -> Path:
    """Write `maps/a.tif`, `images/a.tif` and `points.gpkg` below a folder; return the points."""
    rng = np.random.default_rng(seed)
    ids = rng.choice(3, (101, 203), p=[0.6, 0.3, 0.1]).astype(np.uint8)
    ids[:20, :70] = IGNORE
    where = {"crs": rasterio.CRS.from_epsg(25833), "transform": MOVE}
    tags = {f"CLASS_{i}": text for i, text in enumerate(names)}
    write_raster(folder / "maps" / "a.tif", ids, RasterSpec(nodata=IGNORE, tags=tags, **where))
    image = rng.integers(0, 255, (101, 203, 3), np.uint8)
    write_raster(folder / "images" / "a.tif", image, RasterSpec(bands=3, **where))
    path = folder / "points.gpkg"
    words = ["sample", str(folder / "maps"), "--points", str(points), "--floor", "4", "--output", str(path)]
    assert main(words) == 0
    return path
