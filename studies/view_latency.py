"""How long does `segmenter view` take to open and to pan in a large map, before and after its overviews?

    python -m studies.view_latency FOLDER [--side 30000]

Makes a map and an image of SIDE² pixels in FOLDER, if they are not there, starts the server, and asks for tiles
of 4 × 3 as a page does, six at a time: the median and the longest wait in milliseconds by level, and the peak of
the server's memory.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import rasterio
from rasterio.transform import from_origin
from rasterio.windows import Window

_NAMES = ("water", "wood", "road", "field")


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, default=30_000)
    given = parser.parse_args()
    if not (given.folder / "maps" / "a.tif").exists():
        _make(given.folder, given.side)
    _measure(given.folder, given.side)
    return 0


def _make(folder: Path, side: int) -> None:
    rng, crs = np.random.default_rng(0), "EPSG:25833"
    how = {"driver": "GTiff", "height": side, "width": side, "dtype": "uint8", "tiled": True, "blockxsize": 256}
    how |= {"blockysize": 256, "compress": "deflate", "zlevel": 1, "crs": crs, "bigtiff": "yes"}
    how["transform"] = from_origin(4e5, 5.8e6, 1, 1)
    for name in ("maps", "images"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    noise = rng.integers(0, 40, (1024, side), dtype=np.uint8)
    with (
        rasterio.open(folder / "maps/a.tif", "w", count=1, nodata=255, **how) as ids_file,
        rasterio.open(folder / "images/a.tif", "w", count=3, **how) as image_file,
    ):
        ids_file.update_tags(SOURCE="a.tif", RUN="x", **{f"CLASS_{i}": name for i, name in enumerate(_NAMES)})
        for row in range(0, side, 1024):
            height, at = min(1024, side - row), Window(0, row, side, min(1024, side - row))
            cells = rng.integers(0, 4, (16, -(-side // 50)))
            ids = np.kron(cells, np.ones((64, 50), np.uint8)).astype(np.uint8)[:height, :side]
            ids_file.write(ids[None], window=at)
            bands = [(ids * 50 + noise[:height] + 10 * k).astype(np.uint8) for k in range(3)]
            image_file.write(np.stack(bands), window=at)


def _measure(folder: Path, side: int) -> None:
    command = [sys.executable, "-m", "segmenter", "view", folder / "maps", "--images", folder / "images"]
    if (Path(sys.executable).parent / "segmenter").exists():
        command[:3] = [Path(sys.executable).parent / "segmenter"]
    started = time.monotonic()
    server = subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, text=True)
    address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
    print(f"address after {time.monotonic() - started:.2f} s")

    def ask(path: str) -> tuple[float, bytes]:
        begun = time.monotonic()
        content = urllib.request.urlopen(address + path).read()
        return time.monotonic() - begun, content

    def pan(level: int, seed: int) -> list[float]:
        rng, last = random.Random(seed), max(0, -(-side // (256 << level)) - 1)
        top, left = (rng.randrange(max(1, last - 2)) for _ in range(2))
        tiles = [(min(last, top + i % 3), min(last, left + i // 3)) for i in range(12)]
        paths = [f"tile/0/{layer}/{level}/{r}/{c}" for r, c in tiles for layer in ("image", "map")]
        with ThreadPoolExecutor(6) as pool:
            return [seconds for seconds, _ in pool.map(ask, paths)]

    levels = json.loads(ask("state")[1])["maps"][0]["levels"]
    pan(levels - 1, 0)
    print(f"first sight after {time.monotonic() - started:.2f} s")
    for when in ("before its overviews", "after them"):
        for level in range(levels):
            taken = sorted(1000 * each for seed in (7, 8) for each in pan(level, seed))
            print(f"{when}, level {level}: median {statistics.median(taken):.0f} ms, longest {taken[-1]:.0f} ms")
        begun = time.monotonic()
        while when[0] == "b" and time.monotonic() - begun < 900:
            making = json.loads(ask("alive")[1])["making"]
            if making and all(each["done"] == 1 for each in making):
                print(f"overviews after {time.monotonic() - begun:.0f} s")
                break
            time.sleep(2)
    peak = next(line for line in open(f"/proc/{server.pid}/status") if line.startswith("VmHWM"))
    print(f"peak of memory: {int(peak.split()[1]) // 1024} MB")
    server.terminate()


if __name__ == "__main__":
    sys.exit(main())
