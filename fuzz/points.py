"""Labelled points of a map, in a GeoPackage and in tables."""

from __future__ import annotations

import contextlib
import io
import sqlite3
from pathlib import Path

import numpy as np

from fuzz.target import Facts
from segmenter.raster import RasterSpec, write_raster

_SIDE = 24


def make_points(folder: Path) -> None:
    """Labelled points of a small map, and tables of others."""
    from datasets.commands.accuracy import main

    ids = np.indices((_SIDE, _SIDE)).sum(axis=0).astype(np.uint8) // 9 % 3
    spec = RasterSpec(tags={f"CLASS_{i}": name for i, name in enumerate("abc")})
    write_raster(folder / "map.tif", ids, spec)
    with contextlib.redirect_stdout(io.StringIO()):
        main(["sample", str(folder / "map.tif"), "--points", "40", "--output", str(folder / "points.gpkg")])
    with contextlib.closing(sqlite3.connect(folder / "points.gpkg")) as file:
        for name in ("ST_IsEmpty", "ST_MinX", "ST_MaxX", "ST_MinY", "ST_MaxY"):  # of GDAL, in triggers
            file.create_function(name, 1, lambda _: 0)
        file.execute("update points set reference = mapped")
        file.commit()
    rows = [f"{name},{name},{other}" for name in "abc" for other in ("a", "b", "c", name)]
    (folder / "points.csv").write_text("\n".join(["stratum,mapped,reference", *rows]))
    (folder / "areas.csv").write_text("stratum,area,pixels\na,200,200\nb,300,300\nc,76,76\n")


def read_points(path: Path) -> Facts:
    """The estimates from them."""
    from datasets.commands.accuracy import main

    words = ["--areas", str(path.with_name("areas.csv"))] if path.suffix == ".csv" else []
    points = path.with_name("points.csv") if path.suffix == ".csv" else path
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        main(["estimate", str(points), *words, "--json"])
    return [said.getvalue()]
