"""Class weights, quotas and Dice on every tile of Dubai: each held out in turn, both recipes.

    python -m studies.which_weights --dubai DIR --work DIR    all trainings, one by one
    python -m studies.which_weights --page                    the table of studies/what_lifts.md

Equal steps, but where an arm's steps are faster. Scored are the scenes of the tile that was held out, after
the last epoch, and again with mirrors (`mIoU_by_tta`). A run leaves a JSON file in `--results`, which is kept
with the sources; one that is there is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path

from benchmarks.page import renew, table
from datasets import load_dataset
from segmenter.base.files import write_whole
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.sampling import plan
from segmenter.tiles.index import build_index
from studies.planned import last_validation

RESULTS = Path("studies/results/which_weights")
PAGE, MARK = Path("studies/what_lifts.md"), "<!-- table: python -m studies.which_weights --page -->"
HELD_OUT = (1, 2, 4, 5, 7)
STEPS = {"dubai_pretrained": 556, "dubai": 1392}
"""Steps of a training; as many whole epochs as come nearest."""
_PLAIN, _WEIGHTS = "loss.class_weights=none", "loss.class_weights=inverse_sqrt"
_PRESENCE, _QUOTAS = "sampling.quota=presence", "sampling.quota=rarity"
_FROZEN = "{encoder: 0.3, encoder stage 1: 0, encoder stage 2: 0}"
ARMS = {
    "presence, weights": [_PRESENCE, _WEIGHTS],
    "presence": [_PRESENCE, _PLAIN],
    "quotas": [_QUOTAS, _PLAIN],
    "quotas, weights": [_QUOTAS, _WEIGHTS],
    "shuffle": ["sampling.method=shuffle", _PRESENCE, _PLAIN],
    "shuffle, weights": ["sampling.method=shuffle", _PRESENCE, _WEIGHTS],
    "rare class": ["sampling.method=rare_class", _PRESENCE, _PLAIN],
    "presence, no Dice": [_PRESENCE, _PLAIN, "loss.dice=0"],
    "quotas, no Dice": [_QUOTAS, _PLAIN, "loss.dice=0"],
    "quotas, EfficientNet-Lite2": [_QUOTAS, _PLAIN, "model.encoder=efficientnet_lite2"],
    "quotas, stages 1 and 2 frozen": [_QUOTAS, _PLAIN, f"training.rates={_FROZEN}"],
}
"""Changes to the recipes, which have Dice beside cross-entropy."""
FASTER = {"quotas, stages 1 and 2 frozen": 1.3}
"""Times the steps in the same time."""


def main() -> int:
    """Return 1 if a training failed."""
    given = _arguments()
    if given.page:
        renew(PAGE, MARK, page_lines(given.results))
        return 0
    given.results.mkdir(parents=True, exist_ok=True)
    wanted = [part for part in product(given.seeds, STEPS, ARMS, HELD_OUT) if given.only in _name(*part)]
    return int(not all([_run(given, *part) for part in wanted]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dubai", type=Path, metavar="DIR", help="tile_N/images, tile_N/masks")
    parser.add_argument("--work", type=Path, default=Path("runs/which_weights"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", metavar="PART", help="trainings whose name has this part")
    parser.add_argument("--page", action="store_true", help="write the page's table alone")
    return parser.parse_args()


def _name(seed: int, recipe: str, arm: str, tile: int) -> str:
    return f"{recipe}-{arm.replace(', ', '_').replace(' ', '_')}-{tile}-{seed}"


def _run(given: argparse.Namespace, seed: int, recipe: str, arm: str, tile: int) -> bool:
    """Train and keep the score, if it is not kept yet."""
    name = _name(seed, recipe, arm, tile)
    result, run = given.results / f"{name}.json", given.work / name
    if result.is_file():
        return True
    settings = [f"dataset.root={given.dubai.absolute()}", f"dataset.cache={(run / 'cache').absolute()}"]
    settings += ["dataset.split.test=[]", f'dataset.split.validation=["tile_{tile}"]', f"seed={seed}"]
    settings += ARMS[arm]
    path = Path(f"configs/{recipe}.yaml")
    steps = STEPS[recipe] * FASTER.get(arm, 1)
    epochs = round(steps / steps_of_epoch(load_recipe(path, settings)))
    settings += [f"training.epochs={epochs}", f"training.validate_every={epochs}"]
    found = last_validation(path, run, settings)
    if found is None:
        return False
    kept = {"recipe": recipe, "arm": arm, "held_out": tile, "seed": seed, **found}
    kept["mIoU_by_tta"] = {tta: _mapped(run, tta) for tta in ("mirror", "all")}
    write_whole(result, json.dumps(kept, indent=1).encode())
    print(f"{name}: mIoU {found['mIoU']:.3f}", flush=True)
    return True


def _mapped(run: Path, tta: str) -> float:
    """Map the tile that was held out with mirrors, and return its mIoU."""
    call = [sys.executable, "predict.py", run, "--split", "validation", "--no-calibration", "--tta", tta]
    subprocess.run(
        [str(word) for word in [*call, "--output", run / f"maps_{tta}"]], check=True, capture_output=True
    )
    return float(json.loads((run / f"maps_{tta}" / "scores.json").read_text())["miou"])


def steps_of_epoch(recipe: Recipe) -> int:
    """Return the steps of the first epoch."""
    index = build_index(load_dataset(recipe), "train", recipe.tiles, progress=False)
    return plan(index.counts_NK, recipe.training.global_batch, recipe.sampling, recipe.seed, 0).steps


def page_lines(results: Path) -> list[str]:
    """Return the table: mIoU in percent of each tile that was held out, mean over the seeds, and their mean."""
    scores: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(results.glob("*.json")):
        kept = json.loads(path.read_text())
        scores[kept["recipe"], kept["arm"]][kept["held_out"]].append(100 * kept["mIoU"])
    rows = []
    for recipe, arm in product(STEPS, ARMS):
        by_tile = {tile: statistics.mean(found) for tile, found in scores[recipe, arm].items()}
        if not by_tile:
            continue
        each = [f"{by_tile[tile]:.1f}" if tile in by_tile else "-" for tile in HELD_OUT]
        whole = f"{statistics.mean(by_tile.values()):.1f}" if len(by_tile) == len(HELD_OUT) else "-"
        rows.append([f"`{recipe}`", arm, *each, whole])
    return table(
        ["recipe", "sampling and loss", *(f"tile {tile}" for tile in HELD_OUT), "mean"], rows, words=2
    )


if __name__ == "__main__":
    sys.exit(main())
