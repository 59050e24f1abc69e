"""Planned recipes against the template and hand-made ones, for as much processor time.

    python -m studies.planned recipes --data dubai=DIR camvid=DIR … --work DIR     recipes, with epochs that fit
    python -m studies.planned train --data dubai=DIR camvid=DIR … --work DIR       all runs, one by one
    python -m studies.planned page                                                 the table of studies/planned.md

`planned` is what `segmenter start` writes; `template` has the same dataset and split, and all else of
`configs/folder.yaml`; `hand` and `hand_pretrained` likewise of a recipe that was made for these data. Each
trains as many epochs as take `--minutes` of this machine's processor by steps that are timed here. Scored are
the validation scenes after the last epoch. Potsdam and NAIC look-alikes are made in `--work`. A run leaves a
JSON file in `--results`, which is kept with the sources; one that is there is not done again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.page import renew, table
from segmenter.base.files import write_whole

HAND = {
    "dubai": {"hand": "configs/dubai.yaml", "hand_pretrained": "configs/dubai_pretrained.yaml"},
    "potsdam": {"hand": "configs/potsdam_small.yaml"},
}
MADE = {
    "potsdam": ["--scenes", "9", "--seed", "1", "--size", "1024"],
    "naic2020": ["--scenes", "300", "--seed", "1"],
}
"""Look-alikes, and the options of `segmenter make` that make them."""
RESULTS = Path("studies/results/planned")
PAGE, MARK = Path("studies/planned.md"), "<!-- table: python -m studies.planned page -->"
_TEMPLATE = "configs/folder.yaml"
_OF_TIME = 0.9
"""Share of the minutes for steps; the rest is the input's and the validation's."""


def main() -> int:
    """Return 1 if a run failed."""
    given = _arguments()
    for folder in (given.results / "recipes", given.work):
        folder.mkdir(parents=True, exist_ok=True)
    if given.what == "page":
        renew(PAGE, MARK, page_lines(given.results))
        return 0
    folders = _folders(given)
    if given.what == "recipes":
        for name, folder in folders.items():
            _recipes(name, folder, given)
        return 0
    arms = sorted(given.results.glob("recipes/*.yaml"))
    wanted = [path for path in arms if path.stem.partition("-")[0] in folders]
    tasks = [(path, seed) for seed, path in product(given.seeds, wanted)]
    codes = [_train(path, seed, folders[path.stem.partition("-")[0]], given) for path, seed in tasks]
    return int(any(codes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["recipes", "train", "page"])
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=DIR")
    parser.add_argument("--minutes", type=float, default=10.0, help="processor minutes of a training")
    parser.add_argument("--work", type=Path, default=Path("runs/planned"), help="runs, and data that is made")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", default="", metavar="PART", help="runs whose name has this part")
    return parser.parse_args()


def _folders(given: argparse.Namespace) -> dict[str, Path]:
    """Return the folder of each data set, made where it is a look-alike."""
    folders = {name: Path(folder) for name, _, folder in (word.partition("=") for word in given.data)}
    for name, options in MADE.items():
        if not given.data:
            folder = folders[name] = given.work / "data" / name
            if not folder.is_dir():
                call = [sys.executable, "-m", "datasets", "make", name, str(folder), *options]
                subprocess.run(call, check=True)
    return folders


# ---------------------------------------------------------------------------------------- recipes


def _recipes(name: str, folder: Path, given: argparse.Namespace) -> None:
    """Write the recipes of a data set that are not there yet."""
    kept = given.results / "recipes"
    planned = kept / f"{name}-planned.yaml"
    if not planned.is_file():
        draft = given.work / f"{name}.yaml"
        for path in (draft, draft.with_suffix(".html")):
            path.unlink(missing_ok=True)
        program = Path(sys.executable).with_name("segmenter")
        command = [program, "start", folder, "--output", draft, "--hours", "1"]
        subprocess.run(list(map(str, command)), check=True)
        _write(planned, yaml.safe_load(draft.read_text()), given)
    dataset = yaml.safe_load(planned.read_text())["dataset"]
    for arm, source in {"template": _TEMPLATE, **HAND.get(name, {})}.items():
        path = kept / f"{name}-{arm}.yaml"
        if not path.is_file():
            _write(path, yaml.safe_load(Path(source).read_text()) | {"dataset": dataset}, given)


def _write(path: Path, sections: dict[str, Any], given: argparse.Namespace) -> None:
    """Write a recipe whose epochs take the minutes on this machine; the data's folder is said when it trains."""
    from datasets import load_dataset
    from segmenter.config.reading import recipe_from
    from segmenter.tiles.index import build_index

    name = path.stem.partition("-")[0]
    sections["dataset"] = sections["dataset"] | {"root": str(_folders(given)[name])}
    recipe = recipe_from({"name": path.stem, **sections}, path.stem)
    dataset = load_dataset(recipe)
    tiles = len(build_index(dataset, "train", recipe.tiles, progress=False))
    steps = -(-tiles // recipe.training.global_batch)
    seconds = _step_seconds(recipe)
    epochs = max(1, round(_OF_TIME * given.minutes * 60 / (steps * seconds)))
    sections["training"] = sections["training"] | {"epochs": epochs, "validate_every": epochs}
    sections["dataset"] = sections["dataset"] | {"root": f"data/{name}"}
    head = f"# {given.minutes:g} minutes at {seconds:.2f} s of processor a step, {steps} steps an epoch\n"
    write_whole(path, (head + yaml.safe_dump(sections, sort_keys=False, allow_unicode=True)).encode())
    print(f"{path.stem}: {tiles} tiles, {steps} steps an epoch, {seconds:.2f} s a step, {epochs} epochs")


def _step_seconds(recipe: Any) -> float:
    """Return processor seconds of a step, on made tiles, after the calls that compile."""
    import tensorflow as tf

    from segmenter.training.timing import made_stack, step_parts
    from segmenter.devices.strategy import make_devices
    from segmenter.training.step import make_steps

    devices = make_devices(recipe.distribution)
    training = recipe.training.model_copy(update={"steps_per_call": 1})
    steps = make_steps(step_parts(devices, recipe.model, recipe.loss, training))
    stack, one = made_stack(devices, 1, training.global_batch, recipe.tiles.size), tf.constant(1)
    for _ in range(2):
        float(steps(stack, one)[0][-1])
    taken = []
    for _ in range(3):
        started = time.process_time()
        float(steps(stack, one)[0][-1])
        taken.append(time.process_time() - started)
    return statistics.median(taken)


# ------------------------------------------------------------------------------------------- runs


def _train(path: Path, seed: int, folder: Path, given: argparse.Namespace) -> int:
    """Train and keep the last validation, if it is not kept yet; return the exit code."""
    name = f"{path.stem}-{seed}"
    result, run = given.results / f"{name}.json", given.work / "runs" / name
    if result.is_file() or given.only not in name:
        return 0
    settings = [f"dataset.root={folder.absolute()}", f"seed={seed}"]
    found = last_validation(path, run, [*settings, f"dataset.cache={(run / 'cache').absolute()}"])
    if found is None:
        return 1
    write_whole(result, json.dumps({"name": name, **found}, indent=1).encode())
    print(f"{name}: mIoU {found['mIoU']:.3f}", flush=True)
    return 0


def last_validation(recipe: Path, run: Path, settings: Sequence[str]) -> dict[str, Any] | None:
    """Train, and return the last validation; None after an error, which is printed."""
    shutil.rmtree(run, ignore_errors=True)  # of a training that was ended
    sets = [word for setting in settings for word in ("--set", setting)]
    train = [sys.executable, "train.py", str(recipe), "--run", str(run), *sets]
    started = time.monotonic()
    done = subprocess.run(train, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"{run.name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr, flush=True)
        return None
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    (validated,) = [entry for entry in entries if "miou" in entry][-1:]
    return {
        "mIoU": validated["miou"],
        "IoU": validated["iou"],
        "step": validated["step"],
        "seconds": round(time.monotonic() - started, 1),
    }


def page_lines(results: Path) -> list[str]:
    """Return the table of the page: mIoU of each arm in percent, mean (each seed)."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(results.glob("*.json")):
        data, arm, _ = path.stem.split("-")
        found.setdefault(data, {}).setdefault(arm, []).append(100 * json.loads(path.read_text())["mIoU"])
    arms = ["planned", "template", "hand", "hand_pretrained"]
    rows = []
    for data, by_arm in found.items():
        if "template" not in by_arm:
            continue  # a rule's row
        cells = []
        for arm in arms:
            scores = by_arm.get(arm, [])
            each = ", ".join(f"{score:.1f}" for score in scores)
            cells.append(f"{statistics.mean(scores):.1f} ({each})" if scores else "-")
        rows.append([data, *cells])
    return table(["data", *(arm.replace("_", " ") for arm in arms)], rows, words=1)


if __name__ == "__main__":
    sys.exit(main())
