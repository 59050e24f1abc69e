"""Tile files for `studies.input_peers`: images of 256² × 3 bytes and their labels, with deflate.

Rendering takes longest: a few tiles are rendered, turned, mirrored and rolled. Each has its place on a grid
with gaps, so that a sampler of places (torchgeo) finds tiles and not pieces of four.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from tqdm import tqdm

from datasets.synthetic.scene import render_country
from segmenter.grid.geometry import Size

CLASSES = 8
_RENDERED, _SIDE, _METRES = 64, 256, 0.5


def make_files(folder: Path, count: int) -> None:
    """Write `images/NNNNN.tif` and `labels/NNNNN.tif`: class ids from 0, one band."""
    rng = np.random.default_rng(0)
    rendered = [render_country(Size(_SIDE, _SIDE), 0.3 + 0.05 * i, rng) for i in range(min(count, _RENDERED))]
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    for number in tqdm(range(count), unit="tile", desc="files"):
        base, variant = rendered[number % len(rendered)], number // len(rendered)
        name, row, col = f"{number:05d}.tif", number // 64, number % 64
        corner = 300_000 + 2 * _SIDE * _METRES * col, 5_800_000 - 2 * _SIDE * _METRES * row
        place = Affine.translation(*corner) @ Affine.scale(_METRES, -_METRES)
        parts = base.image_HWC[..., :3], base.cover_HW.astype(np.uint8) % CLASSES
        for kind, part in zip(("images", "labels"), parts, strict=True):
            moved = np.roll(np.rot90(part, variant), 16 * (variant // 4), axis=1)
            bands_CHW = np.moveaxis(np.atleast_3d(moved), -1, 0)
            profile = {"height": _SIDE, "width": _SIDE, "count": len(bands_CHW), "dtype": "uint8"}
            profile |= {"crs": "EPSG:32633", "transform": place, "compress": "deflate", "interleave": "pixel"}
            with rasterio.open(folder / kind / name, "w", driver="GTiff", **profile) as file:
                file.write(bands_CHW)
