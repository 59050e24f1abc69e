"""Polygons of a large class map: processor time and memory, beside GDAL's polygonizing of the whole raster.

    python -m studies.vectorise [--side 10000] [--classes 8] [--noise 0.002]

The map is made: blobs of eight classes, and single pixels of others strewn over them. Each way is a process
of its own; its largest memory is what the system counted. Baseline, in the same run:
`rasterio.features.shapes` over the whole band, each polygon only counted, which writes no file. The way back,
`labels_of_polygons`, rasterises the GeoPackage as a label; the result must be the map.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rasterio
from scipy.ndimage import gaussian_filter

from segmenter.raster import RasterSpec, quiet_gdal, write_raster

_COARSE = 8
"""Pixels of the map for one of the noise that its blobs are made of."""
_SHAPES = (
    "import sys, rasterio; from rasterio.features import shapes\n"
    "with rasterio.open(sys.argv[1]) as one: print(sum(1 for _ in shapes(rasterio.band(one, 1))))"
)
_LABELS = """
import sys, numpy as np
from pathlib import Path
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.raster import read_label
from segmenter.extras.written_map import WrittenMap
from segmenter.grid.components import STRIP_PIXELS
from segmenter.grid.windows import row_strips
from segmenter.extras.vectors.label_files import LabelFiles
from segmenter.extras.vectors.rule import BurnRule
path, polygons = map(Path, sys.argv[1:])
named = enumerate(WrittenMap(path).classes)
classes = ClassMap(tuple(LandCoverClass(c.name, (i, i, i), c.code) for i, c in named))
rule = BurnRule.of(None, classes)
label = LabelFiles(path.parent / "labels", rule).label("map", path, polygons, shared=True)
for window in row_strips(WrittenMap(path).info.size, STRIP_PIXELS):
    assert np.array_equal(rule.classes.decode(read_label(label, window)), read_label(path, window))
print(path.stat().st_size)
"""


def main() -> None:
    """Make the map, run all ways, print a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--noise", type=float, default=0.002, help="share of pixels of another class")
    arguments = parser.parse_args()
    quiet_gdal()
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "map.tif", Path(folder) / "map.gpkg"
        # In a process of its own: what it held would count as the largest memory of those that follow.
        wanted = (path, arguments.side, arguments.classes, arguments.noise)
        maker = multiprocessing.get_context("spawn").Process(target=_make, args=wanted)
        maker.start()
        maker.join()
        ours = ["-m", "segmenter.extras.vectors", str(path), "--overwrite", "--output"]
        ways = {
            "shapes": ["-c", _SHAPES, str(path)],
            "gpkg": [*ours, str(output)],
            "labels_of_polygons": ["-c", _LABELS, str(path), str(output)],
            "parquet": [*ours, str(output.with_suffix(".parquet"))],
            "min_area": [*ours, str(output), "--min-area", "4"],
            "min_area_and_simplify": [*ours, str(output), "--min-area", "4", "--simplify", "1"],
        }
        found = {name: _measured(command) for name, command in ways.items()}
        found["gpkg"]["MiB of the file"] = round(output.stat().st_size / 2**20)
    for one in found.values():
        one["ratio"] = round(one["processor_s"] / found["shapes"]["processor_s"], 2)
    print(json.dumps({"benchmark": "vectorise", "side": arguments.side, "ways": found}))


def _make(path: Path, side: int, classes: int, noise: float) -> None:
    rng = np.random.default_rng(0)
    coarse = -(-side // _COARSE)
    fields = [gaussian_filter(rng.normal(size=(coarse, coarse)), 6) for _ in range(classes)]
    ids = np.argmax(fields, axis=0).astype(np.uint8)
    ids = ids.repeat(_COARSE, 0).repeat(_COARSE, 1)[:side, :side]
    strewn = rng.random((side, side), np.float32) < noise
    ids[strewn] = rng.integers(0, classes, int(strewn.sum()), np.uint8)
    tags = {f"CLASS_{i}": f"class {i}" for i in range(classes)}
    place = {"crs": rasterio.CRS.from_epsg(25833), "transform": rasterio.Affine(1, 0, 4e5, 0, -1, 5.8e6)}
    write_raster(path, np.ascontiguousarray(ids), RasterSpec(nodata=255, tags=tags, **place))


def _measured(command: list[str]) -> dict[str, float]:
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)}: ended with {code}")
    count = next(int(word.replace(",", "")) for word in said.split() if word.replace(",", "").isdigit())
    return {
        "polygons": count,
        "processor_s": round(used.ru_utime + used.ru_stime, 1),
        "clock_s": round(time.monotonic() - started, 1),
        "MiB": round(used.ru_maxrss / 1024),
    }


if __name__ == "__main__":
    main()
