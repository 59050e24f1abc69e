"""Cost of reading for prediction: how many megapixels a second one reader gives, by compression of the file.

One thread reads for all devices (`inference.reading.read_batches`); this is its processor time for windows as
`predict.py` takes them, halo and all, per pixel that is kept. What four GPUs need is worked out on
docs/prediction.md. `--image FILE` takes an image of yours, repeated to the size; without, noise on ramps is
made, which decodes more slowly than most imagery. `--readers N`: by N threads, each from a handle of its own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from datasets.commands.gpu.prediction import BLOCK, FileJob
from segmenter.grid.geometry import Size, Window
from segmenter.inference.events import Piece
from segmenter.inference.reading import Tiling, read_batches
from segmenter.raster import open_raster

PROFILES: dict[str, dict[str, Any]] = {
    "none": {},
    "deflate": {"compress": "deflate", "predictor": 2},
    "lzw": {"compress": "lzw", "predictor": 2},
    "zstd": {"compress": "zstd", "predictor": 2},
    "jpeg": {"compress": "jpeg", "photometric": "ycbcr"},
}


def main() -> None:
    """Write a raster in each compression, read it in windows, print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=6144, help="of the raster, in pixels")
    parser.add_argument("--image", type=Path, help="RGB image to repeat; default: made")
    parser.add_argument("--radius", type=int, default=107, help="of the model, in pixels")
    parser.add_argument("--window", type=int, default=1024, help="side of the model's windows")
    parser.add_argument("--readers", type=int, default=1, help="threads; processor time counts all of them")
    arguments = parser.parse_args()
    image = _image(arguments.image, arguments.side)
    tiling = Tiling(Size(arguments.window, arguments.window), arguments.radius, 16, 4)
    with tempfile.TemporaryDirectory() as folder:
        rates = {
            name: _rate(_write(Path(folder) / f"{name}.tif", image, options), tiling, arguments.readers)
            for name, options in PROFILES.items()
        }
    found = {"window": arguments.window, "readers": arguments.readers, "Mpixel_per_cpu_second": rates}
    print(json.dumps({"benchmark": "reading_windows", **found}))


def _image(path: Path | None, side: int) -> NDArray[np.uint8]:
    """(3, side, side) pixels."""
    if path is None:
        ramp = (np.arange(side) // 64 + np.arange(side)[:, None] // 64) % 200
        noise = np.random.default_rng(0).integers(0, 32, (3, side, side), np.uint8)
        return (noise + ramp.astype(np.uint8)).astype(np.uint8)
    with open_raster(path) as raster:
        size = raster.info.size
        pixels, _ = raster.read(Window.of(size))
    times = -(-side // size.height), -(-side // size.width), 1
    return np.ascontiguousarray(np.tile(pixels[..., :3], times)[:side, :side].transpose(2, 0, 1))


def _write(path: Path, image: NDArray[np.uint8], options: dict[str, Any]) -> Path:
    shape = {"count": 3, "height": image.shape[1], "width": image.shape[2], "dtype": "uint8"}
    blocks = {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK, "interleave": "pixel"}
    with rasterio.open(path, "w", driver="GTiff", **shape, **blocks, **options) as file:
        file.write(image)
    return path


def _rate(path: Path, tiling: Tiling, readers: int) -> float:
    """Megapixels that are kept, for each second of processor time."""
    kept = 0
    start = time.process_time()
    for batch in read_batches([FileJob(path)], tiling, readers):
        kept += sum(entry.valid.size for entry in batch.entries if isinstance(entry, Piece))
    return round(kept / 1e6 / (time.process_time() - start), 1)


if __name__ == "__main__":
    main()
