"""Labels spoiled on purpose, and how many of them `segmenter review` shows first.

    python -m datasets make potsdam DATA --scenes 12 --seed 1 --size 768
    python -m studies.review spoil DATA OUT       a copy with 2 % of its labelled area spoiled
    python train.py studies/review_made.yaml --folds --set dataset.root=OUT --run RUN
    segmenter review RUN --output FOLDER --most 100000
    python -m studies.review score OUT FOLDER     spoiled areas among the first 1, 2, 3, 5 and 10 % shown

Other imagery: `--recipe configs/dubai.yaml`, with `--folds 3 --set 'dataset.split.test=[]'` for its training.

An area is a square of 64 pixels at a random place, in which at least a tenth of the labelled pixels change:

- swapped: its most common class becomes another one;
- shifted: the label is drawn 8 to 16 pixels off, in both directions;
- missing: its things (all but the most common class of the scene) become that class;
- coarse: blocks of 16 × 16 pixels get their most common class.

An area is found if the cells that are shown hold a quarter of its wrong pixels, or more.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from datasets import load_dataset
from segmenter.config.reading import load_recipe
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.raster import LabelRaster

SIDE, SHARE, LEAST = 64, 0.02, 0.1
"""Side of an area, share of the labelled pixels in areas, least share of an area's pixels that change."""
KINDS = ("swapped", "shifted", "missing", "coarse")
BUDGETS = (0.01, 0.02, 0.03, 0.05, 0.10)
RECIPE = Path("studies/review_made.yaml")
Ids = NDArray[np.uint8]


def spoil(recipe_file: Path, data: Path, out: Path, seed: int) -> None:
    """Write a copy of the data with spoiled labels, and `spoiled.json` and `wrong/` with what changed."""
    shutil.copytree(data, out, ignore=shutil.ignore_patterns(".*"))
    recipe = load_recipe(recipe_file, [f"dataset.root={out}"])
    dataset, rng = load_dataset(recipe), np.random.default_rng(seed)
    listed: list[dict[str, Any]] = []
    (out / "wrong").mkdir()
    palette = np.array([c.colour for c in dataset.classes.classes], np.uint8)
    for number, scene in enumerate(dataset.scenes):
        assert scene.label is not None
        with LabelRaster(scene.label, dataset.classes) as label:
            ids = label.ids()
        picture = cv2.imread(str(scene.label))[..., ::-1].copy()
        spoiled, areas = _spoiled(ids, rng, len(dataset.classes), first=3 * number)
        wrong = spoiled != ids
        picture[wrong] = palette[spoiled[wrong]]
        cv2.imwrite(str(scene.label), picture[..., ::-1])
        np.save(out / "wrong" / f"{number}.npy", wrong)
        labelled = int((ids != IGNORE).sum())
        listed.append({"scene": scene.name, "number": number, "labelled": labelled, "areas": areas})
    (out / "spoiled.json").write_text(json.dumps(listed, indent=1))
    print(sum(len(one["areas"]) for one in listed), "areas spoiled")


def _spoiled(ids: Ids, rng: np.random.Generator, classes: int, first: int) -> tuple[Ids, list[Any]]:
    """Return a label with some areas spoiled, and their kinds and windows."""
    result, areas, taken = ids.copy(), list[Any](), np.zeros(ids.shape, bool)
    count = round(SHARE * float((ids != IGNORE).sum()) / SIDE**2)
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


def found_at(out: Path, cells: Iterator[tuple[str, Window]]) -> dict[str, list[tuple[str, float]]]:
    """Return for each kind its areas with the share of all labelled pixels shown when each was found."""
    listed = json.loads((out / "spoiled.json").read_text())
    scenes = {one["scene"]: one for one in listed}
    wrong = {one["scene"]: np.load(out / "wrong" / f"{one['number']}.npy") for one in listed}
    total, seen = sum(one["labelled"] for one in listed), 0
    waiting = {(one["scene"], i) for one in listed for i in range(len(one["areas"]))}
    found: dict[tuple[str, int], float] = {}
    shown = {name: np.zeros(array.shape, bool) for name, array in wrong.items()}
    for name, cell in cells:
        inside = cell.slices()
        seen += int((~shown[name][inside]).sum())
        shown[name][inside] = True
        for i, area in enumerate(scenes[name]["areas"]):
            own = Window(area["row"], area["col"], SIDE, SIDE)
            if (name, i) in waiting and _overlap(own, cell):
                wrong_HW, shown_HW = wrong[name][own.slices()], shown[name][own.slices()]
                if 4 * (wrong_HW & shown_HW).sum() >= wrong_HW.sum():
                    waiting.discard((name, i))
                    found[name, i] = seen / total
    by_kind: dict[str, list[tuple[str, float]]] = {kind: [] for kind in KINDS}
    for one in listed:
        for i, area in enumerate(one["areas"]):
            by_kind[area["kind"]].append((one["scene"], found.get((one["scene"], i), 1.0)))
    return by_kind


def _overlap(a: Window, b: Window) -> bool:
    return a.intersection(b).size.pixels > 0


def score(out: Path, folder: Path) -> None:
    """Print the share of the spoiled areas among the first cells shown, by kind."""
    with (folder / "review.csv").open() as file:
        rows = list(csv.DictReader(file))
    sizes = ((row["scene"], [int(row[name]) for name in ("row", "col", "height", "width")]) for row in rows)
    print(table(found_at(out, ((scene, Window(*numbers)) for scene, numbers in sizes))))


def table(found: dict[str, list[tuple[str, float]]]) -> str:
    """Return a table: kind, number of areas, share found among the first of what is shown."""
    lines = ["kind      areas" + "".join(f"{budget:>8.0%}" for budget in BUDGETS)]
    for kind, areas in {**found, "all": [each for of in found.values() for each in of]}.items():
        shares = [np.mean([at <= budget for _, at in areas]) for budget in BUDGETS]
        lines.append(f"{kind:9} {len(areas):5}" + "".join(f"{share:8.0%}" for share in shares))
    return "\n".join(lines)


def main() -> None:
    """Spoil labels, or score what a review shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("spoil", "score"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="of the data to spoil")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "spoil":
        spoil(given.recipe, given.first, given.second, given.seed)
    else:
        score(given.first, given.second)


if __name__ == "__main__":
    main()
