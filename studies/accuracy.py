"""Sample of a large map: processor time and memory. `python -m studies.accuracy [FOLDER]`."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rasterio

from datasets.commands.accuracy import main
from segmenter.grid.geometry import Size, Window
from segmenter.raster import RasterSpec, RasterWriter

_SIZE = Size(20_000, 100_000)
_SIDE = 2048


def make(path: Path) -> None:
    """Write a map of four classes in areas of 16 × 16 pixels."""
    rng = np.random.default_rng(0)
    areas = rng.choice(4, (_SIDE // 16, _SIDE // 16), p=[0.6, 0.3, 0.09, 0.01])
    row = np.tile(np.kron(areas, np.ones((16, 16))).astype(np.uint8), (1, -(-_SIZE.width // _SIDE)))
    spec = RasterSpec(
        nodata=255,
        crs=rasterio.CRS.from_epsg(32633),
        transform=rasterio.Affine(10, 0, 300_000, 0, -10, 6_000_000),
        tags={f"CLASS_{i}": name for i, name in enumerate("abcd")},
    )
    with RasterWriter(path, _SIZE, spec) as writer:
        for top in range(0, _SIZE.height, _SIDE):
            height = min(_SIDE, _SIZE.height - top)
            writer.write(Window(top, 0, height, _SIZE.width), row[:height, : _SIZE.width])


def measure(folder: Path) -> None:
    """Make the map if it is missing, sample it, and print time and memory."""
    path = folder / "large.tif"
    if not path.exists():
        make(path)
        print(f"{path}: made; run again, since making it takes memory, too")
        return
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    main(["sample", str(path), "--output", str(folder / "points.gpkg"), "--overwrite"])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{time.process_time() - start:.1f} s of the processor, {after >> 10} MiB ({before >> 10} before)")


if __name__ == "__main__":
    measure(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.gettempdir()))
