"""Where a raster has data, read down a column a few rows at a time: `ValidRows` against windows.

    python -m studies.valid_rows [--width 40000]

As `predict.py --gsd` reads it: of a tiled file of four 16-bit bands whose row of blocks takes more than
GDAL's cache. Prints processor seconds of both, and what the first takes of the second; both give the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning

from segmenter.grid.geometry import Window
from segmenter.inference.regridding import _VALUES_AT_ONCE
from segmenter.raster import open_raster
from segmenter.raster.resampled import ValidRows

CLASSES, BLOCK, BANDS = 7, 512, 4


def main() -> None:
    """Make the file, read it both ways, print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=40_000, help="pixels of the raster")
    width = parser.parse_args().width
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        path = _made(Path(folder) / "wide.tif", width)
        windows_s, expected = _timed(path, lambda raster: lambda window: raster.read(window)[1])
        valid_rows_s, found = _timed(path, lambda raster: ValidRows(raster).of)
    if found != expected:
        raise SystemExit(f"expected {expected} pixels with data, got {found}")
    line = {"row_of_blocks_MB": BLOCK * width * BANDS * 2 / 1e6, "windows_s": windows_s}
    line |= {"valid_rows_s": valid_rows_s, "ratio": valid_rows_s / windows_s}
    print(json.dumps({key: round(value, 3) for key, value in line.items()}))


def _made(path: Path, width: int) -> Path:
    rng = np.random.default_rng(0)
    profile = {"count": BANDS, "dtype": "uint16", "nodata": 0, "tiled": True, "blockxsize": BLOCK}
    profile |= {"blockysize": BLOCK, "compress": "deflate", "zlevel": 1, "interleave": "pixel"}
    with rasterio.open(path, "w", driver="GTiff", width=width, height=BLOCK, **profile) as file:
        for col in range(0, width, BLOCK):
            wide = min(BLOCK, width - col)
            pixels = rng.integers(0, 900, (BANDS, BLOCK, wide), np.uint16)
            pixels[:, rng.random((BLOCK, wide)) > 0.7] = 0
            file.write(pixels, window=rasterio.windows.Window(col, 0, wide, BLOCK))
    return path


def _timed(path: Path, way: Callable[[Any], Callable[[Window], NDArray[np.bool_]]]) -> tuple[float, int]:
    with open_raster(path) as raster:
        valid, size = way(raster), raster.info.size
        step = max(1, _VALUES_AT_ONCE // (CLASSES * size.width))
        began, found = time.process_time(), 0
        for row in range(0, size.height, step):
            found += int(valid(Window(row, 0, min(step, size.height - row), size.width)).sum())
        return time.process_time() - began, found


if __name__ == "__main__":
    main()
