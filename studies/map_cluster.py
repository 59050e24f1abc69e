"""Maps by 1, 2 and 4 local Dask workers against one process: time, bytes, and what a piece costs to deal.

The baseline of the maps is one process in the same run; on two cores several workers share them, so that the
ratio shows the overhead and not a speed-up. With `--confidence --probabilities uint8`, so that a difference
in the last bits would be seen; `equal` says whether all files are those of one process, byte for byte.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets.commands.gpu.prediction import make_raster
from segmenter.devices.setup import load_tensorflow
from segmenter.extras.dask.connect import connect_workers
from segmenter.extras.dask.options import ClusterOptions
from segmenter.mapping.request.map_request import MapRequest

MODELS = {"cheap": {"depth": 1, "width": 2}, "real": {"depth": 4, "width": 16}}
CLASSES = [{"name": name, "code": code} for code, name in enumerate("abcdefgh")]


def main() -> None:
    """Measure both models with each number of workers, then dealing alone; one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs=2, default=(6000, 1500), help="of the rasters, in pixels")
    parser.add_argument("--workers", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--items", type=int, default=400, help="dealt without work, to time dealing")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--make-run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make_run:
        make_run(Path(given.make_run[0]), given.make_run[1])
    elif given.child:
        print(json.dumps(mapped(*given.child)))
    else:
        for line in _lines(given):
            print(json.dumps({"benchmark": "map_cluster", **line}), flush=True)


def _lines(given: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory() as name:
        for model, side in zip(MODELS, given.sides, strict=True):
            folder = Path(name) / model
            (folder / "in").mkdir(parents=True)
            make_raster(folder / "in" / "a.tif", side, side)
            _child("--make-run", str(folder / "run"), model)
            found = {n: _child("--child", str(folder), f"maps{n}", str(n)) for n in (0, *given.workers)}
            alone = found.pop(0)
            yield {
                "model": model,
                "Mpixel": round(side * side / 1e6, 1),
                "one_process_s": round(alone["seconds"], 1),
                **{f"workers_{n}_s": round(each["seconds"], 1) for n, each in found.items()},
                "equal": all(each["files"] == alone["files"] for each in found.values()),
            }
        yield {"caller_ns_a_pixel": round(writing(Path(name), given.sides[0]), 1)}
    for workers in given.workers:
        yield {"dealing_workers": workers, **dealing(workers, given.items)}


def _child(*arguments: str) -> Any:
    command = [sys.executable, "-m", "studies.map_cluster", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"map_cluster: a child failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None


def make_run(path: Path, model: str) -> None:
    """A run whose model has random weights: it costs what a trained one does."""
    load_tensorflow()
    from segmenter.config.reading import recipe_from
    from segmenter.grid.labels import ClassMap, LandCoverClass
    from segmenter.model.building import build_model
    from segmenter.model.receptive_field import network_geometry
    from segmenter.model.normalisation import Normalisation
    from segmenter.runs.checkpoints import save_arrays, weight_arrays
    from segmenter.runs.run import Run

    dataset = {"kind": "folder", "root": ".", "images": "*", "labels": "*", "classes": CLASSES}
    recipe = recipe_from({"name": model, "dataset": dataset, "model": MODELS[model]}, "benchmark")
    classes = ClassMap(tuple(LandCoverClass(str(c["name"]), (i, i, i), i) for i, c in enumerate(CLASSES)))
    built = build_model(recipe.model, 3, len(classes))
    path.mkdir()
    run = Run(
        path=path,
        recipe=recipe,
        classes=classes,
        bands=None,
        band_count=3,
        dtype="uint8",
        normalisation=Normalisation.of((100.0,) * 3, (60.0,) * 3),
        metres_per_pixel=0.5,
        labels="full",
        network=network_geometry(built),
        tiles="",
    )
    run.save()
    save_arrays(path / "best.npz", weight_arrays(built, "model"))


def mapped(folder: str, output: str, workers: str, files: str = "all") -> dict[str, Any]:
    """One call of `predict.py`: its seconds, this process's own of processor, and its files' digest."""
    from segmenter.extras.dask.windows import ClusterWindows
    from segmenter.extras.gis.finisher import Styles
    from segmenter.mapping.session import map_rasters, quiet_libraries

    quiet_libraries()
    here = Path(folder)
    windows = ClusterWindows(ClusterOptions(workers=int(workers))) if int(workers) else None
    maps = here / output
    request = MapRequest(
        run=here / "run",
        inputs=(str(here / "in"),),
        output=maps,
        confidence=files == "all",
        probabilities="uint8" if files == "all" else None,
    )
    started, own = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        done = map_rasters(request, finishers=[Styles()], windows=windows)
    seconds, own = time.perf_counter() - started, time.process_time() - own
    assert not done.failures, done.failures
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in maps.glob("*.tif")}
    return {"seconds": seconds, "own": own, "files": digests}


def writing(folder: Path, side: int) -> float:
    """Nanoseconds of the caller's processor for a pixel of a class map, from two sizes."""
    small = side // 3
    (folder / "small" / "in").mkdir(parents=True)
    make_raster(folder / "small" / "in" / "a.tif", small, small)
    (folder / "small" / "run").symlink_to(folder / "cheap" / "run")
    own = [_child("--child", str(folder / f), "plain", "1", "plain")["own"] for f in ("cheap", "small")]
    return float(1e9 * (own[0] - own[1]) / (side**2 - small**2))


def dealing(workers: int, items: int) -> dict[str, Any]:
    """Milliseconds to deal an item that takes none; the scheduler is a thread of this process."""
    with connect_workers(ClusterOptions(workers=workers)) as pool:
        for _ in pool.in_order(abs, range(4 * workers)):  # connections are made
            pass
        started, own = time.perf_counter(), time.process_time()
        for _ in pool.in_order(abs, range(items)):
            pass
        own, seconds = time.process_time() - own, time.perf_counter() - started
    return {
        "ms_an_item": round(1e3 * seconds / items, 2),
        "caller_and_scheduler_cpu_ms_an_item": round(1e3 * own / items, 2),
    }


if __name__ == "__main__":
    main()
