"""Labels spoiled on purpose, and how many of them `segmenter review` shows first.

    segmenter make potsdam DATA --scenes 12 --seed 1 --size 768
    python -m studies.review spoil DATA OUT       a copy with 2 % of its labelled area spoiled
    python train.py studies/review_made.yaml --set dataset.root=OUT --run RUN
    python -m studies.review measure RUN DATA --seeds 1 2 3 --results FILE.json
    python -m studies.review table FILE.json

Other imagery: `--recipe configs/dubai.yaml` for `spoil`, and another recipe for the training.

`measure` maps the scenes that RUN (a run, or a folder of folds) did not learn from, once. For each seed it
spoils their labels anew, and orders them: by `segmenter review`, and, in the same squares, by cleanlab
(Apache 2.0; extra `cleanlab`): the softmin of the pixels' self-confidence, and the number of label issues by
confident learning (Lad and Mueller 2023, arXiv:2307.05080). It holds all in memory.

An area is a square of 64 pixels at a random place, in which at least a tenth of the labelled pixels change:

- swapped: its most common class becomes another one;
- shifted: the label is drawn 8 to 16 pixels off, in both directions;
- missing: its things (all but the most common class of the scene) become that class;
- coarse: blocks of 16 × 16 pixels get their most common class.

An area is found if the cells that are shown hold a quarter of its wrong pixels, or more.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from studies.coverage_table import rounded
from datasets import load_dataset
from datasets.known import known_dataset
from segmenter.config.reading import load_recipe
from segmenter.evaluation.scores import ConfusionMatrix
from segmenter.extras.review.held_out import Cells
from segmenter.extras.review.findings import findings
from segmenter.extras.review.held_out import WANTED, ScoredScene, LabelledJob, judges_of, runs_of, tiling_of
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.inference.loading import load_predictor
from segmenter.inference.predictor import Finished, MappedWindow, classify_all
from segmenter.raster import LabelRaster, quiet_gdal

SIDE, SHARE, LEAST = 64, 0.02, 0.1
"""Side of an area, share of the labelled pixels in areas, least share of an area's pixels that change."""
KINDS = ("swapped", "shifted", "missing", "coarse")
SIDES = (16, 32)
"""Sides of the squares: the default, and the one before it."""
BUDGETS = (0.01, 0.02, 0.03, 0.05, 0.10)
RECIPE = Path("studies/review_made.yaml")
Ids = NDArray[np.uint8]


def spoil(recipe_file: Path, data: Path, out: Path, seed: int) -> None:
    """Write a copy of the data with spoiled labels, and `spoiled.json` and `wrong/` with what changed."""
    shutil.copytree(data, out, ignore=shutil.ignore_patterns(".*"))
    recipe = load_recipe(recipe_file, [f"dataset.root={out}"])
    dataset, rng = load_dataset(recipe), np.random.default_rng(seed)
    listed: list[dict[str, Any]] = []
    due = 0.0
    (out / "wrong").mkdir()
    codes = dataset.classes.encoding == "codes"
    meanings = np.array([c.code if codes else c.colour for c in dataset.classes.classes], np.uint16)
    for number, scene in enumerate(dataset.scenes):
        assert scene.label is not None
        with LabelRaster(scene.label, dataset.classes) as label:
            ids = label.ids()
        due += SHARE * float((ids != IGNORE).sum()) / SIDE**2
        spoiled, areas = _spoiled(ids, rng, len(dataset.classes), first=3 * number, count=round(due))
        due -= round(due)
        wrong = spoiled != ids
        values = cv2.imread(str(scene.label), cv2.IMREAD_UNCHANGED if codes else cv2.IMREAD_COLOR_RGB)
        values[wrong] = meanings[spoiled[wrong]]
        cv2.imwrite(str(scene.label), values if codes else values[..., ::-1])
        np.save(out / "wrong" / f"{number}.npy", wrong)
        labelled = int((ids != IGNORE).sum())
        listed.append({"scene": scene.name, "number": number, "labelled": labelled, "areas": areas})
    (out / "spoiled.json").write_text(json.dumps(listed, indent=1))
    print(sum(len(one["areas"]) for one in listed), "areas spoiled")


def _spoiled(
    ids: Ids, rng: np.random.Generator, classes: int, first: int, count: int
) -> tuple[Ids, list[Any]]:
    """Return a label with some areas spoiled, and their kinds and windows."""
    result, areas, taken = ids.copy(), list[Any](), np.zeros(ids.shape, bool)
    common = int(np.bincount(ids[ids != IGNORE], minlength=classes).argmax())
    present = np.unique(ids[ids != IGNORE])
    for _ in range(2000):
        if len(areas) == count:
            break
        kind = KINDS[(first + len(areas)) % len(KINDS)]
        row, col = (int(rng.integers(0, length - SIDE + 1)) for length in ids.shape)
        part = Window(row, col, SIDE, SIDE).slices()
        old = ids[part]
        new = _changed(kind, ids, row, col, rng, common, present)
        new = np.where(old == IGNORE, old, np.where(new == IGNORE, old, new))
        if taken[part].any() or (new != old).mean() < LEAST:
            continue
        result[part], taken[part] = new, True
        areas.append({"kind": kind, "row": row, "col": col})
    return result, areas


def _changed(
    kind: str, ids: Ids, row: int, col: int, rng: np.random.Generator, common: int, present: Any
) -> Ids:
    """Return the label of an area as one kind of mistake draws it."""
    old = ids[row : row + SIDE, col : col + SIDE]
    labelled = old[old != IGNORE]
    if not len(labelled):
        return old
    if kind == "swapped":
        most = int(np.bincount(labelled).argmax())
        others = [k for k in present if k != most] or [most]
        return np.where(old == most, np.uint8(rng.choice(others)), old)
    if kind == "missing":
        return np.where(old == IGNORE, old, np.uint8(common))
    if kind == "shifted":
        rows, cols = (int(rng.integers(8, 17)) * int(rng.choice([-1, 1])) for _ in range(2))
        padded = np.pad(ids, 16, mode="edge")
        return padded[row + 16 + rows :, col + 16 + cols :][:SIDE, :SIDE]
    blocks = old.reshape(SIDE // 16, 16, SIDE // 16, 16).transpose(0, 2, 1, 3).reshape(-1, 256)
    most_B = np.array([np.bincount(block, minlength=256).argmax() for block in blocks], np.uint8)
    return most_B.reshape(SIDE // 16, SIDE // 16).repeat(16, axis=0).repeat(16, axis=1)


@dataclass(eq=False)
class Held:
    """A scene that the model did not learn from; label, wrong and areas change with the seed."""

    judge: Any
    scene: Any
    info: Any
    probabilities: NDArray[np.uint8]
    likely: Ids
    clean: Ids
    label: Ids
    wrong: NDArray[np.bool_]
    areas: list[Any]

    def spoil(self, rng: np.random.Generator, first: int, count: int) -> None:
        """Spoil its label anew."""
        classes = self.probabilities.shape[-1]
        self.label, self.areas = _spoiled(self.clean, rng, classes, first, count)
        self.wrong = self.label != self.clean


def held_out(run: Path, data: Path, every: int) -> list[Held]:
    """Map scenes that a run, or folds, did not learn from; every so many of them."""
    judges = judges_of(runs_of(run), lambda each: known_dataset(_at(each.recipe, data), each))
    found = []
    for judge in judges:
        predict = load_predictor(judge.run, WANTED)
        arrays: dict[str, tuple[Any, ...]] = {}
        jobs = (LabelledJob(judge, scene) for scene in judge.scenes[::every])
        for event in classify_all(jobs, tiling_of(judge.run, predict), predict):
            job = event.job
            if isinstance(event, MappedWindow):
                shape = (job.info.size.height, job.info.size.width)
                if job.scene.name not in arrays:
                    classes = len(judge.run.classes)
                    ids = (np.full(shape, IGNORE, np.uint8) for _ in range(2))
                    arrays[job.scene.name] = (np.zeros((*shape, classes), np.uint8), *ids)
                here = event.window.slices()
                values = (event.prediction.probabilities, event.ids, job.label(event.window))
                for array, value in zip(arrays[job.scene.name], values, strict=True):
                    array[here] = value
            elif isinstance(event, Finished):
                job.close()
                of = arrays.pop(job.scene.name)
                found.append(Held(judge, job.scene, job.info, *of, of[-1], of[-1] != of[-1], []))
            else:
                raise event.error
    return found


def _at(recipe: Any, data: Path) -> Any:
    cache = {"root": str(data), "cache": Path("runs/review_cache")}
    return recipe.model_copy(update={"dataset": recipe.dataset.model_copy(update=cache)})


Shown = tuple[Held, tuple[Window, ...]]


def by_review(scenes: list[Held], side: int) -> tuple[list[Shown], float]:
    """Return the findings in their order, and the share of pixels that are expected to be wrong."""
    all_judged, of = [], {}
    for each in scenes:
        cells = Cells(each.info.size, side, each.probabilities.shape[-1])
        cells.add(Window.of(each.info.size), each.label, each.likely, each.probabilities)
        all_judged.append(ScoredScene(each.judge, each.scene, each.info, cells, cells.counts()))
        of[id(all_judged[-1])] = each
    found = findings(all_judged, scenes[0].probabilities.shape[-1], 10**9)
    labelled = sum(int((each.label != IGNORE).sum()) for each in scenes)
    return [(of[id(one.of)], one.cells) for one in found], sum(one.wrong for one in found) / labelled


def by_cleanlab(scenes: list[Held], side: int, method: str) -> list[Shown]:
    """Return squares by cleanlab's score; pixels without a label agree with theirs."""
    from cleanlab.segmentation.rank import get_label_quality_scores

    labels, probabilities, squares = [], [], []
    for each in scenes:
        ignored = (each.label == IGNORE) | (each.likely == IGNORE)
        label = np.where(ignored, 0, each.label)
        p = np.where(ignored[..., None], np.eye(1, each.probabilities.shape[-1]) * 255, each.probabilities)
        pad = [(0, -length % side) for length in label.shape]
        label = np.pad(label, pad)
        p = np.pad(p, (*pad, (0, 0)))
        p[each.clean.shape[0] :, :, 0] = p[:, each.clean.shape[1] :, 0] = 255
        down, across = (length // side for length in label.shape)
        labels.append(label.reshape(down, side, across, side).transpose(0, 2, 1, 3).reshape(-1, side, side))
        p = p.reshape(down, side, across, side, -1).transpose(0, 2, 4, 1, 3)
        probabilities.append((p / np.maximum(1, p.sum(axis=2, keepdims=True))).astype(np.float32))
        probabilities[-1] = probabilities[-1].reshape(-1, *p.shape[2:])
        whole = Window.of(each.info.size)
        for cell in range(down * across):
            row, col = (number * side for number in divmod(cell, across))
            squares.append((each, (Window(row, col, side, side).intersection(whole),)))
    found = np.concatenate(labels).astype(int), np.concatenate(probabilities)
    quality, _ = get_label_quality_scores(*found, method=method, verbose=False, n_jobs=1)
    return [squares[place] for place in np.argsort(quality, kind="stable")]


def found_at(scenes: list[Held], shown: list[Shown]) -> dict[str, list[float]]:
    """Return for each kind the share of all labelled pixels shown when each of its areas was found."""
    total, seen = sum(int((each.clean != IGNORE).sum()) for each in scenes), 0
    done = {id(each): np.zeros(each.clean.shape, bool) for each in scenes}
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    waiting = {id(each): list(each.areas) for each in scenes}
    for each, cells in shown:
        mask = done[id(each)]
        for cell in cells:
            seen += int((~mask[cell.slices()]).sum())
            mask[cell.slices()] = True
        for area in list(waiting[id(each)]):
            own = Window(area["row"], area["col"], SIDE, SIDE)
            wrong = each.wrong[own.slices()]
            if any(own.intersection(cell).size.pixels for cell in cells):
                if 4 * (wrong & mask[own.slices()]).sum() >= wrong.sum():
                    waiting[id(each)].remove(area)
                    found[area["kind"]].append(seen / total)
    for areas in waiting.values():
        for area in areas:
            found[area["kind"]].append(1.0)
    return found


def measure(run: Path, data: Path, every: int, seeds: list[int]) -> dict[str, Any]:
    """Return the shares found by order and kind, over all seeds, with what was expected and was wrong."""
    scenes = held_out(run, data, every)
    orders: dict[str, Callable[[], list[Shown]]] = {}
    for side in SIDES:
        orders[f"review, {side}"] = lambda side=side: by_review(scenes, side)[0]
        if find_spec("cleanlab"):
            for method in ("softmin", "num_pixel_issues"):
                orders[f"cleanlab {method}, {side}"] = partial(by_cleanlab, scenes, side, method)
    found: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in orders}
    wrong, expected, labelled = 0, 0.0, 0
    for seed in seeds:
        rng, due = np.random.default_rng(seed), 0.0
        for number, each in enumerate(scenes):
            pixels = int((each.clean != IGNORE).sum())
            due += SHARE * pixels / SIDE**2
            each.spoil(rng, 3 * number + seed, round(due))
            due -= round(due)
            wrong, labelled = wrong + int(each.wrong.sum()), labelled + pixels
        expected += by_review(scenes, SIDES[0])[1] / len(seeds)
        for name, order in orders.items():
            for kind, shares in found_at(scenes, order()).items():
                found[name][kind] += shares
        print("seed", seed, "done", flush=True)
    scores = {each.judge.run.path.name: _miou(scenes, each.judge) for each in scenes}
    shares = {"wrong": wrong / labelled, "expected wrong": expected}
    return {"scenes": len(scenes), "mIoU": scores, **shares, "found": found}


def _miou(scenes: list[Held], judge: Any) -> float:
    total = ConfusionMatrix(judge.run.classes)
    for each in scenes:
        if each.judge is judge:
            total.add(each.clean, each.likely)
    right, either = np.diag(total.matrix), total.matrix.sum(axis=0) + total.matrix.sum(axis=1)
    return float(np.mean((right / np.maximum(1, either - right))[total.matrix.sum(axis=1) > 0]))


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return a table: order, number of areas, share found among the first of what is shown, by kind at 3 %."""
    head = ["order, side of squares", "areas", *(f"{budget:.0%}" for budget in BUDGETS)]
    lines = [head + [f"{kind}, 3 %" for kind in KINDS], ["---"] * (len(head) + len(KINDS))]
    for name, kinds in found.items():
        at = np.array([each for of in kinds.values() for each in of])
        shares = [f"{np.mean(at <= budget):.0%}" for budget in BUDGETS]
        by_kind = [f"{np.mean(np.array(kinds[kind]) <= 0.03):.0%}" for kind in KINDS]
        lines.append([name, str(len(at)), *shares, *by_kind])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Spoil labels, measure what a review shows, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("spoil", "measure", "table"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path, nargs="?")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="of the data to spoil")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--every", type=int, default=1, help="measure: one scene of so many")
    parser.add_argument("--results", type=Path, help="measure: JSON file to write")
    given = parser.parse_args()
    if given.what == "spoil":
        spoil(given.recipe, given.first, given.second, given.seeds[0])
        return
    if given.what == "table":
        print(table(json.loads(given.first.read_text())["found"]))
        return
    quiet_gdal()
    result = measure(given.first, given.second, given.every, given.seeds)
    print({key: value for key, value in result.items() if key != "found"})
    print(table(result["found"]))
    if given.results:
        given.results.parent.mkdir(parents=True, exist_ok=True)
        found = {
            name: {kind: [round(float(each), 6) for each in of] for kind, of in kinds.items()}
            for name, kinds in result["found"].items()
        }
        given.results.write_text(json.dumps({**rounded(result), "found": found}))


if __name__ == "__main__":
    main()
