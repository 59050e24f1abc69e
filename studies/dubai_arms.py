"""Pretrained or from scratch, on the imagery of Dubai, for as much processor time.

Arms: `scratch` is `configs/dubai.yaml`; `tuned` the same with what helped `configs/dubai_pretrained.yaml` and
costs no time, colours left alone and averaged weights; `pretrained` is that recipe with the plan's presence
and class weights, as it was compared; `smp` the U-Net of
segmentation_models_pytorch with the same weights and recipe (`studies.smp_unet`, in a Python of its own:
`--smp-python`). One tile of the five is held out and scored whole, as `segmenter stitch` joins its parts.

    python -m studies.dubai_arms --dubai DIR --smp-python ENV/bin/python     all runs, one by one
    python -m studies.dubai_arms --page                                      the table of docs/results.md

Every run is `train.py` and `predict.py` on one core, and leaves a JSON file in `--results`, which is kept
with the sources, so that others go on from there; one that is there is not done again, one that was ended
begins anew. Epochs are chosen so that a training takes 11 to 24 minutes of a core with AVX-512.
`smp` gets the processor time that the steps of `pretrained` take on the machine where it runs: some of them
are timed before it, in `train.py` itself. What each took is printed beside its score.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from segmenter.base.errors import SegmenterError
from segmenter.base.files import write_whole
from studies.dubai_arms_page import write_page
from studies.smp_beside import on_core, step_seconds

RECIPES = {
    "scratch": "configs/dubai.yaml",
    "tuned": "configs/dubai.yaml",
    "pretrained": "configs/dubai_pretrained.yaml",
    "smp": "configs/dubai_pretrained.yaml",
}
_TUNED = ["augmentation={scale: 0.25, rotation: 15, brightness: 0, contrast: 0}", "training.ema=0.998"]
"""Of `tuned`, instead of the recipe's own."""
_PRESENCE = ["sampling.quota=presence", "loss.class_weights=inverse_sqrt"]
"""Settings of `pretrained` and `smp`, as they were compared: the recipe had these before it had quotas."""
PAGE, RESULTS = Path("docs/results.md"), Path("studies/results/dubai_arms")
TILES = ("tile_7", "tile_4")
EPOCHS = {
    "scratch": {"tile_7": 12, "tile_4": 6},
    "tuned": {"tile_7": 12, "tile_4": 6},
    "pretrained": {"tile_7": 13, "tile_4": 7},
}
"""As many as take the time of `scratch`. Tile 4 is small: twice as many tiles train without it."""


@dataclass(frozen=True)
class Task:
    """One training and its score."""

    arm: str
    held_out: str
    seed: int

    @property
    def name(self) -> str:
        """Also of its file."""
        return f"{self.arm}-{self.held_out}-{self.seed}"


def main() -> int:
    """The exit code is 1 if a run failed."""
    given = _arguments()
    if given.page:
        return _page(given)
    for folder in (given.results, given.work):
        folder.mkdir(parents=True, exist_ok=True)
    tasks = [Task(*parts) for parts in product(given.arms, given.held_out, given.seeds)]
    tasks.sort(key=lambda task: task.seed)
    pending = [task for task in tasks if not _file(given.results, task).is_file()]
    print(f"{len(tasks)} runs, {len(tasks) - len(pending)} of them done", flush=True)
    for tile in dict.fromkeys(task.held_out for task in pending):
        _stitch(given, tile)
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    others = [task for task in pending if task.arm != "smp"]
    done = True
    with ThreadPoolExecutor(given.jobs) as pool:
        for part in (others, [task for task in pending if task.arm == "smp"]):
            done &= all(list(pool.map(lambda task: _on_a_core(task, given, cores), part)))
    return int(not done)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dubai", type=Path, metavar="DIR", help="tile_N/images, tile_N/masks")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--work", type=Path, default=Path("runs/dubai_arms"), help="runs, logs and stitched tiles"
    )
    parser.add_argument("--arms", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--held-out", nargs="+", default=list(TILES), choices=list(TILES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, each on a core of its own")
    parser.add_argument("--smp-python", metavar="FILE", help="the Python that has the extra `smp`")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=PAGE, metavar="FILE", help="write the page's table alone"
    )
    given = parser.parse_args()
    if not (given.page or given.dubai):
        parser.error("--dubai: expected the folder of tile_N/images and tile_N/masks")
    return given


def _file(results: Path, task: Task) -> Path:
    return results / f"{task.name}.json"


def _stitch(given: argparse.Namespace, tile: str) -> None:
    """The held-out tile and its label, each as one raster."""
    for kind, pattern in (("images", "*.jpg"), ("masks", "*.png")):
        output = given.work / f"{tile}_{kind}.tif"
        if not output.is_file():
            parts = str(given.dubai / tile / kind / pattern)
            command = ["-m", "datasets", "stitch", parts, "--columns", "3", "--output", str(output)]
            subprocess.run([sys.executable, *command], check=True)


# ------------------------------------------------------------------------------------------- runs


def _on_a_core(task: Task, given: argparse.Namespace, cores: SimpleQueue[int]) -> bool:
    core = cores.get()
    try:
        return _run(task, given, core)
    finally:
        cores.put(core)


def _run(task: Task, given: argparse.Namespace, core: int) -> bool:
    folder = given.work / task.name
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was ended
    seconds = 0.0
    for command in _commands(task, given, folder, core):
        code, used = on_core(command, given.work / f"{task.name}.log", core)
        if code:
            print(f"{task.name}: ended with {code}, see {task.name}.log", file=sys.stderr, flush=True)
            return False
        seconds = seconds or used  # of the training
    scores, steps = _found(folder, smp=task.arm == "smp")
    result = {
        "arm": task.arm,
        "held_out": task.held_out,
        "seed": task.seed,
        "mIoU": scores["miou"],
        "IoU": scores["iou"],
        "steps": steps,
        "processor_minutes": round(seconds / 60, 1),
        "settings": _settings(task),
    }
    write_whole(_file(given.results, task), json.dumps(result, indent=1).encode())
    print(f"{task.name}: mIoU {scores['miou']:.3f} in {seconds / 60:.1f} minutes of processor", flush=True)
    return True


def _found(folder: Path, *, smp: bool) -> tuple[dict[str, Any], int]:
    """(scores, steps of the training)."""
    if smp:
        found = json.loads((folder / "smp.json").read_text())
        return found["scores"], found["steps"]
    steps = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["step"]
    return json.loads((folder / "maps/scores.json").read_text()), steps


def _overrides(task: Task, given: argparse.Namespace) -> list[str]:
    cache = (given.work / f"cache-{task.name}").absolute()
    where = [f"dataset.root={given.dubai.absolute()}", f"dataset.cache={cache}"]
    return [*where, *_settings(task)]


def _settings(task: Task) -> list[str]:
    """Changes to the recipe, other than paths."""
    common = [
        f"seed={task.seed}",
        f'dataset.split.test=["{task.held_out}"]',
    ]
    if task.arm in EPOCHS:
        common.append(f"training.epochs={EPOCHS[task.arm][task.held_out]}")
    return [*common, *{"scratch": [], "tuned": _TUNED}.get(task.arm, _PRESENCE)]


def _commands(task: Task, given: argparse.Namespace, folder: Path, core: int) -> list[list[str]]:
    image, labels = (str(given.work / f"{task.held_out}_{kind}.tif") for kind in ("images", "masks"))
    sets = [part for override in _overrides(task, given) for part in ("--set", override)]
    recipe = RECIPES[task.arm]
    if task.arm == "smp":
        python = [given.smp_python or sys.executable, "-m", "studies.smp_unet", recipe, *sets]
        where = ["--image", image, "--labels", labels, "--output", str(folder)]
        return [[*python, *where, "--minutes", f"{_minutes(task, given, core):.2f}"]]
    train = [sys.executable, "train.py", recipe, "--run", str(folder), *sets]
    maps = ["--labels", labels, "--output", str(folder / "maps"), "--pictures"]
    return [train, [sys.executable, "predict.py", str(folder), image, *maps]]


# --------------------------------------------------------------------------- processor time of `smp`


def _minutes(task: Task, given: argparse.Namespace, core: int) -> float:
    """Return the minutes that `smp` gets: what all steps of `pretrained` take here."""
    pair = replace(task, arm="pretrained")
    folder = given.work / f"{task.name}-timed"
    shutil.rmtree(folder, ignore_errors=True)
    command, _ = _commands(pair, given, folder, core)
    steps = _result(given.results, pair)["steps"]
    return float(steps) * step_seconds(command, folder, given.work / f"{task.name}.log", core) / 60


def _result(results: Path, task: Task) -> dict[str, Any]:
    file = _file(results, task)
    if not file.is_file():
        raise SystemExit(f"{file}: expected a result, whose steps say how long smp trains")
    return dict(json.loads(file.read_text()))


def _page(given: argparse.Namespace) -> int:
    try:
        write_page(given.results, given.page, RECIPES)
    except SegmenterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
