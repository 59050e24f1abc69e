"""What helps at a place that training never saw: a tile of Dubai held out, with each remedy's bound beside it.

    python -m studies.new_place --dubai DIR --work DIR [--only PART]    all trainings, one by one
    python -m studies.new_place --page                                 the tables of studies/new_place.md

Arms that train are `configs/dubai_pretrained.yaml` with one change, for about as many processor minutes. Ways
that change only what is mapped (mirrors, the target's colours moved to the training's, the target's scale) are
tried on the run of each arm `plain`. A scale is chosen by the mean largest probability, without labels; beside
it stands the best of the scales with the truth in hand. A result is a JSON file in `--results`, which is kept
with the sources; one that is there is not done again, and its run is not kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling

from benchmarks.page import renew, table
from segmenter.base.files import write_whole
from segmenter.config.reading import load_recipe
from studies.planned import last_validation
from studies.which_weights import steps_of_epoch

RECIPE, RESULTS = Path("configs/dubai_pretrained.yaml"), Path("studies/results/new_place")
PAGE, MARK = Path("studies/new_place.md"), "<!-- table: python -m studies.new_place --page -->"
HELD_OUT = (1, 2, 4, 5, 7)
STEPS = {"plain": 278, "lite2": 200, "histogram": 278}
"""Steps that take about as long; as many whole epochs as come nearest."""
ARMS: dict[str, list[str]] = {
    "plain": [],
    "lite2": ["model.encoder=efficientnet_lite2"],
    "histogram": [],
}
SCREENED = (4, 7)
"""Tiles on which an arm other than `plain` is tried first."""
SCALES = (0.71, 1.41)
"""The target's pixels a pixel of the map's grid, beside 1."""
WAYS = ("none", "mirror", *(f"scale {scale:g}" for scale in SCALES))


def main() -> int:
    """Return 1 if a training or a map failed."""
    given = _arguments()
    if given.page:
        renew(PAGE, MARK, page_lines(given.results))
        return 0
    given.results.mkdir(parents=True, exist_ok=True)
    for arm, tile, seed in product(ARMS, HELD_OUT, given.seeds):
        name = f"{arm}-{tile}-{seed}"
        screened = arm == "plain" or tile in SCREENED
        if screened and given.only in name and not (given.results / f"{name}.json").is_file():
            found = _tried(given, arm, tile, seed)
            if found is None:
                return 1
            write_whole(given.results / f"{name}.json", json.dumps(found, indent=1).encode())
            print(name, {way: round(100 * each["mIoU"], 1) for way, each in found["maps"].items()}, flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dubai", type=Path, metavar="DIR", help="tile_N/images, tile_N/masks")
    parser.add_argument("--work", type=Path, default=Path("runs/new_place"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", metavar="PART", help="trainings whose name has this part")
    parser.add_argument("--page", action="store_true", help="write the page's tables alone")
    return parser.parse_args()


def _tried(given: argparse.Namespace, arm: str, tile: int, seed: int) -> dict[str, Any] | None:
    """Train an arm and score its maps of the tile that was held out."""
    work = given.work / f"{arm}-{tile}-{seed}"
    run, root = work / "run", given.dubai.absolute()
    if arm == "histogram":
        root = _moved_training(root, tile, work / "data")
    settings = [f"dataset.root={root}", f"dataset.cache={(work / 'cache').absolute()}", f"seed={seed}"]
    settings += ["dataset.split.test=[]", f'dataset.split.validation=["tile_{tile}"]', *ARMS[arm]]
    epochs = max(1, round(STEPS[arm] / steps_of_epoch(load_recipe(RECIPE, settings))))
    settings += [f"training.epochs={epochs}", f"training.validate_every={epochs}"]
    trained = last_validation(RECIPE, run, settings)
    if trained is None:
        return None
    own = given.dubai / f"tile_{tile}"
    maps = {way: _map(run, own, work / "target", way) for way in (WAYS if arm == "plain" else WAYS[:2])}
    if arm == "plain":
        others = [path for k in HELD_OUT if k != tile for path in _images(given.dubai / f"tile_{k}")]
        counts = _histogram(_images(own)), _histogram(others)
        for way, rule in (("moved", _quantiles), ("standardised", _moments)):
            maps[way] = _map(run, _copy(own, work / "moved", rule(*counts)), work / "target", "none")
    kept = {"arm": arm, "held_out": tile, "seed": seed, "step": trained["step"], "seconds": trained["seconds"]}
    for folder in ("data", "cache", "target", "moved"):
        shutil.rmtree(work / folder, ignore_errors=True)
    return {**kept, "maps": maps}


def _map(run: Path, place: Path, target: Path, way: str) -> dict[str, Any]:
    """Return the scores of the maps of a place, and the mean of their pixels' largest probability."""
    name, _, scale = way.partition(" ")
    if scale:
        place = _copy(place, target / "scaled", scale=float(scale))
    tta = name if name == "mirror" else "none"
    maps = target / way.replace(" ", "_")
    call = [sys.executable, "predict.py", run, *_images(place), "--output", maps, "--tta", tta, "--redo"]
    call += ["--labels", f"{place}/masks/{{stem}}.png", "--confidence", "--no-calibration"]
    subprocess.run([str(word) for word in call], check=True, capture_output=True)
    scores = json.loads((maps / "scores.json").read_text())
    total = scores.get("total", scores)
    sums = [_read(path)[0].astype(np.int64) for path in sorted(maps.glob("*.confidence.tif"))]
    confidence = sum(part.sum() for part in sums) / sum(part.size for part in sums) / 255
    return {"mIoU": total["miou"], "IoU": total["iou"], "confidence": round(float(confidence), 4)}


# -------------------------------------------------------------------------------------- imagery


def _images(place: Path) -> list[Path]:
    return sorted(path for path in (place / "images").iterdir() if path.suffix in (".jpg", ".png"))


def _read(path: Path) -> NDArray[np.uint8]:
    with rasterio.open(path) as image:
        return np.asarray(image.read())


def _histogram(images: list[Path]) -> NDArray[np.int64]:
    """Return (3, 256): the pixels of each value, by band."""
    counts = np.zeros((3, 256), np.int64)
    for path in images:
        counts += [np.bincount(band.ravel(), minlength=256) for band in _read(path)[:3]]
    return counts


def _quantiles(source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return (3, 256): the value of the target that has the quantile of each of the source's."""
    share = [(np.cumsum(counts, axis=1) - counts / 2) / counts.sum(axis=1)[:, None] for counts in (source, target)]
    return np.array([np.interp(a, b, np.arange(256)).round() for a, b in zip(*share, strict=True)], np.uint8)


def _moments(source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return (3, 256): the values moved and stretched to the mean and the deviation of the target, by band."""
    value = np.arange(256)
    means, deviations = [], []
    for counts_CV in (source, target):
        total = counts_CV.sum(axis=1)
        means.append((mean := (counts_CV * value).sum(axis=1) / total)[:, None])
        deviations.append(np.sqrt((counts_CV * value**2).sum(axis=1) / total - mean**2)[:, None])
    moved = (value - means[0]) / deviations[0] * deviations[1] + means[1]
    return np.clip(moved.round(), 0, 255).astype(np.uint8)


def _moved_training(root: Path, tile: int, folder: Path) -> Path:
    """Copy the data with the colours of each tile for training moved to those of the one held out."""
    wanted = _histogram(_images(root / f"tile_{tile}"))
    for k in HELD_OUT:
        moved = _quantiles(_histogram(_images(root / f"tile_{k}")), wanted)
        _copy(root / f"tile_{k}", folder / f"tile_{k}", moved, suffix=".jpg")
    return folder.absolute()


def _copy(
    place: Path, folder: Path, table_CV: NDArray[np.uint8] | None = None, *, scale: float = 1, suffix: str = ".png"
) -> Path:
    """Copy images and masks, with other colours or at another scale; masks by nearest neighbour."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for image in _images(place):
        mask = place / "masks" / f"{image.stem}.png"
        if scale == 1:
            shutil.copy(mask, folder / "masks")
        else:
            _write(folder / "masks" / mask.name, _resized(mask, scale, Resampling.nearest))
        bands = _read(image) if scale == 1 else _resized(image, scale, Resampling.average)
        if table_CV is not None:
            bands = np.stack([values[band] for values, band in zip(table_CV, bands, strict=False)])
        _write(folder / "images" / f"{image.stem}{suffix}", bands)
    return folder


def _resized(path: Path, scale: float, how: Resampling) -> NDArray[np.uint8]:
    with rasterio.open(path) as image:
        shape = tuple(max(1, round(side * scale)) for side in image.shape)
        if image.count > 1:
            smooth = Resampling.bilinear if scale > 1 and how == Resampling.average else how
            return np.asarray(image.read(out_shape=(image.count, *shape), resampling=smooth))
        colours = np.array([image.colormap(1).get(k, (0, 0, 0, 0))[:3] for k in range(256)], np.uint8)
        return np.moveaxis(colours[image.read(1, out_shape=shape, resampling=Resampling.nearest)], -1, 0)


def _write(path: Path, bands: NDArray[np.uint8]) -> None:
    jpeg = {"driver": "JPEG", "quality": 95} if path.suffix == ".jpg" else {"driver": "PNG"}
    size = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    with rasterio.open(path, "w", dtype="uint8", **size, **jpeg) as file:
        file.write(bands)


# ----------------------------------------------------------------------------------------- page


def page_lines(results: Path) -> list[str]:
    """Return the rows: mIoU in percent of each tile, and what each way adds to `plain` on the tiles it was tried on."""
    scores: dict[tuple[str, int], list[float]] = {}
    for path in sorted(results.glob("*.json")):
        kept = json.loads(path.read_text())
        arm, tile, maps = kept["arm"], kept["held_out"], kept["maps"]
        for way, score in _named(arm, maps).items():
            scores.setdefault((way, tile), []).append(100 * score)
    ways = dict.fromkeys(way for way, _ in scores)
    rows = []
    for way in ["plain", *(way for way in ways if way != "plain")]:
        at = {tile: statistics.mean(scores[way, tile]) for tile in HELD_OUT if (way, tile) in scores}
        gains = [score - statistics.mean(scores["plain", tile]) for tile, score in at.items()]
        each = [f"{at[tile]:.1f}" if tile in at else "-" for tile in HELD_OUT]
        mean = f"{statistics.mean(at.values()):.1f}" if len(at) == len(HELD_OUT) else "-"
        error = f" ± {statistics.stdev(gains) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else ""
        gain = "" if way == "plain" else f"{statistics.mean(gains):+.1f}{error}"
        rows.append([way.replace("_", " "), *each, mean, gain])
    head = ["what", *(f"tile {tile}" for tile in HELD_OUT), "mean", "gain, ± standard error"]
    return table(head, rows, words=1)


def _named(arm: str, maps: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return row → mIoU of one result."""
    if arm != "plain":
        return {arm: maps["none"]["mIoU"]}
    scales = [each for way, each in maps.items() if way == "none" or way.startswith("scale")]
    return {
        "plain": maps["none"]["mIoU"],
        "left-right mirror": maps["mirror"]["mIoU"],
        "target's colours moved to training's, by histogram": maps["moved"]["mIoU"],
        "the same by mean and deviation": maps["standardised"]["mIoU"],
        "scale of the target, by confidence": max(scales, key=lambda each: each["confidence"])["mIoU"],
        "scale of the target, bound: by the truth": max(each["mIoU"] for each in scales),
    }


if __name__ == "__main__":
    sys.exit(main())
