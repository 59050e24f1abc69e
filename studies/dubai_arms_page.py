"""Table of `dubai_arms` in docs/results.md, from its results: means over the seeds, and each seed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import renew, table
from segmenter.config.reading import load_recipe
from segmenter.base.errors import SegmenterError

MARK = "<!-- table: python -m studies.dubai_arms --page -->"
SAID = {
    "scratch": "`dubai`",
    "tuned": "the same, colours left alone, `ema: 0.998`",
    "pretrained": "`dubai_pretrained`, presence and class weights",
    "smp": "segmentation_models_pytorch",
}
"""Arms by name, in the table's order."""
Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


def write_page(results: Path, page: Path, recipes: Mapping[str, str]) -> None:
    """Renew the table in the page.

    Raises:
        SegmenterError: there are no results.
    """
    runs = runs_of(results)
    classes = list(next(iter(runs.values()))[0]["IoU"])
    head = ["held out", "recipe", "steps", "mIoU (each seed)", "minutes of a core", *classes]
    tiles = dict.fromkeys(tile for tile, _ in sorted(runs, key=lambda key: key[0], reverse=True))
    rows = [row for tile in tiles for row in _rows(tile, runs, recipes, classes)]
    renew(page, MARK, table(head, rows, words=3))


def runs_of(results: Path) -> Runs:
    """(Tile held out, arm) → what its seeds left, in their order.

    Raises:
        SegmenterError: there are no results.
    """
    found = defaultdict(list)
    for path in sorted(results.glob("*-*-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        found[run["held_out"], run["arm"]].append(run)
    if not found:
        raise SegmenterError(f"{results}: expected results of runs, there are none; run this without --page")
    return found


def mean_of(runs: Iterable[Mapping[str, Any]], name: str = "") -> float:
    """Mean over the seeds, in percent, of the mIoU or of a class's IoU."""
    values = [float(run["IoU"][name] if name else run["mIoU"]) for run in runs]
    return 100 * sum(values) / len(values)


def _rows(tile: str, runs: Runs, recipes: Mapping[str, str], classes: Sequence[str]) -> list[list[str]]:
    """Rows of one tile, the best mIoU in bold."""
    arms = [arm for arm in SAID if (tile, arm) in runs]
    best = max(arms, key=lambda arm: mean_of(runs[tile, arm]))
    rows: list[list[str]] = []
    for arm in arms:
        each = runs[tile, arm]
        shown = f"{mean_of(each):.1f}"
        seeds = ", ".join(f"{100 * run['mIoU']:.1f}" for run in each)
        steps = ", ".join(f"{count:,}" for count in dict.fromkeys(run["steps"] for run in each))
        recipe = load_recipe(Path(recipes[arm]))
        rows.append(
            [
                "" if rows else tile.replace("_", " "),
                SAID[arm],
                f"{steps} of {recipe.training.global_batch} × {recipe.tiles.size}²",
                f"{f'**{shown}**' if arm == best else shown} ({seeds})",
                ", ".join(f"{run['processor_minutes']:.1f}" for run in each),
                *(f"{mean_of(each, name):.1f}" for name in classes),
            ]
        )
    return rows
