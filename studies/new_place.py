"""Measure what helps at a place that training never saw, with the bound of a remedy beside it.

    python -m studies.new_place tiles --dubai DIR --work DIR [--arms ARM …] [--only PART]     tiles of Dubai held out
    python -m studies.new_place move IMAGES LIKE OUTPUT [--by deviation]         images of a folder, in other colours
    python -m studies.new_place page                                            the table of studies/new_place.md

`tiles` trains `configs/dubai_pretrained.yaml` on the other tiles and tries, on the maps of the run, ways that need
no label of the new place: the left-right mirror, its colours moved to those of training, its scale. The scale is
chosen by the mean largest probability; beside it stands the best of the scales with the truth in hand. Other arms
are trainings of their own, with as many steps as `plain` or three times as many: a larger encoder, images of training
in the target's colours, a second round on the target's pixels that `plain` is sure of. `average` maps with all seeds of
`plain` together. A run and a JSON file in `--results`, which is kept with the sources, stay; what is there is not
done again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import yaml
from numpy.typing import NDArray
from rasterio.enums import Resampling

from benchmarks.page import renew, table
from segmenter.base.files import write_whole
from segmenter.config.reading import load_recipe
from studies.planned import last_validation
from studies.which_weights import HELD_OUT, steps_of_epoch

RECIPE, RESULTS = Path("configs/dubai_pretrained.yaml"), Path("studies/results/new_place")
PAGE, MARK = Path("studies/new_place.md"), "<!-- table: python -m studies.new_place page -->"
STEPS = 278
"""Steps of a training; as many whole epochs as come nearest."""
SURE = 0.9
"""Largest probability of a pixel whose class the second round takes as true."""
ARMS = {
    "plain": "plain",
    "lite2": "encoder EfficientNet-Lite2 in place of Lite0",
    "longer": "three times the steps",
    "recoloured": "trained on images in the target's colours, by histogram",
    "pseudo": "second round, on the target's pixels that are sure at 0.9 too",
    "average": "seeds averaged",
}
"""Arm → its row on the page."""
SCALES = (0.71, 1.41)
"""Sides of the target's copies at other scales, as multiples of its own."""


def main() -> int:
    """Return 1 if a training failed."""
    given = _arguments()
    if given.what == "page":
        renew(PAGE, MARK, page_lines(given.results))
    elif given.what == "move":
        images = sorted(given.images.iterdir())
        rule = {"histogram": _quantiles, "deviation": _moments}[given.by]
        _recolour(images, rule(_histogram(images), _histogram(sorted(given.like.iterdir()))), given.output)
    else:
        given.results.mkdir(parents=True, exist_ok=True)
        wanted = product(given.arms, HELD_OUT, given.seeds)
        return int(not all([_try(given, arm, tile, seed) for arm, tile, seed in wanted]))
    return 0


def _arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    kinds = parser.add_subparsers(dest="what", required=True)
    tiles, move, page = (kinds.add_parser(name) for name in ("tiles", "move", "page"))
    tiles.add_argument("--dubai", type=Path, required=True, metavar="DIR", help="tile_N/images, tile_N/masks")
    tiles.add_argument("--work", type=Path, default=Path("runs/new_place"))
    tiles.add_argument("--seeds", type=int, nargs="+", default=[0])
    tiles.add_argument("--arms", nargs="+", choices=ARMS, default=["plain"])
    tiles.add_argument("--only", default="", metavar="PART", help="trainings whose name has this part")
    for each in (tiles, page):
        each.add_argument("--results", type=Path, default=RESULTS)
    move.add_argument("images", type=Path, help="folder of images to copy in other colours")
    move.add_argument("like", type=Path, help="folder of images whose colours they get")
    move.add_argument("output", type=Path, help="folder to write")
    move.add_argument("--by", choices=["histogram", "deviation"], default="histogram")
    return parser.parse_args()


def _try(given: argparse.Namespace, arm: str, tile: int, seed: int) -> bool:
    """Train without a tile and keep the scores of its maps, if they are not kept yet."""
    name = f"{arm}-{tile}-{seed}"
    result, work = given.results / f"{name}.json", given.work / name
    if given.only not in name or result.is_file():
        return True
    kept = {"held_out": tile, "seed": seed}
    if arm == "average":
        run = ",".join(str(each) for each in sorted(given.work.glob(f"plain-{tile}-*/run")))
    else:
        run = str(work / "run")
        root = {"recoloured": _recoloured_root, "pseudo": _pseudo_root}.get(arm, lambda *_: given.dubai)
        trained = _train(work, root(given, tile, seed), arm, tile, seed)
        if trained is None:
            return False
        kept |= {"step": trained["step"], "seconds": trained["seconds"]}
    maps = _maps(given.dubai, tile, run, work / "target", every_way=arm == "plain")
    write_whole(result, json.dumps(kept | {"maps": maps}, indent=1).encode())
    print(name, {way: round(100 * each["mIoU"], 1) for way, each in maps.items()}, flush=True)
    return True


def _train(work: Path, root: Path, arm: str, tile: int, seed: int) -> dict[str, Any] | None:
    settings = [f"dataset.root={root.absolute()}", f"dataset.cache={(work / 'cache').absolute()}"]
    settings += ["dataset.split.test=[]", f'dataset.split.validation=["tile_{tile}"]', f"seed={seed}"]
    settings += ["model.encoder=efficientnet_lite2"] * (arm == "lite2")
    settings += ["dataset.images=tile_{tile}/images/{part}.png"] * (root.parent == work)
    steps = STEPS * (3 if arm == "longer" else 1)
    epochs = max(1, round(steps / steps_of_epoch(load_recipe(RECIPE, settings))))
    settings += [f"training.epochs={epochs}", f"training.validate_every={epochs}"]
    return last_validation(RECIPE, work / "run", settings)


def _recoloured_root(given: argparse.Namespace, tile: int, seed: int) -> Path:
    """Copy the tiles, those of training in the colours of the one that is held out."""
    root = given.work / f"recoloured-{tile}-{seed}" / "data"
    target = _images(given.dubai / f"tile_{tile}")
    others = [path for k in HELD_OUT if k != tile for path in _images(given.dubai / f"tile_{k}")]
    moved = _quantiles(_histogram(others), _histogram(target))
    same = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
    for k in HELD_OUT:
        place = given.dubai / f"tile_{k}"
        _recolour(_images(place), same if k == tile else moved, root / place.name / "images")
        shutil.copytree(place / "masks", root / place.name / "masks", dirs_exist_ok=True)
    return root


def _pseudo_root(given: argparse.Namespace, tile: int, seed: int) -> Path:
    """Copy the tiles, and the one that is held out once more with the map of `plain` as its labels."""
    root = given.work / f"pseudo-{tile}-{seed}" / "data"
    same = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
    for k in HELD_OUT:
        place = given.dubai / f"tile_{k}"
        _recolour(_images(place), same, root / place.name / "images")
        shutil.copytree(place / "masks", root / place.name / "masks", dirs_exist_ok=True)
    images = _recolour(_images(given.dubai / f"tile_{tile}"), same, root / "tile_0" / "images")
    maps = root.parent / "maps"
    _predict(given.work / f"plain-{tile}-{seed}" / "run", images, maps, "mirror")
    palette = [each["colour"] for each in yaml.safe_load(RECIPE.read_text())["dataset"]["classes"]]
    colours = np.array([[int(each[i : i + 2], 16) for i in (1, 3, 5)] for each in palette], np.uint8)
    for image in images:
        sure = _read(maps / f"{image.stem}.confidence.tif")[0] >= SURE * 255
        ids = _read(maps / f"{image.stem}.tif")[0]
        mask_HWC = np.where(sure[..., None], colours[np.where(sure, ids, 0)], 0).astype(np.uint8)
        _write(root / "tile_0" / "masks" / image.name, np.moveaxis(mask_HWC, -1, 0))
    return root


def _maps(dubai: Path, tile: int, run: str, folder: Path, *, every_way: bool) -> dict[str, dict[str, Any]]:
    """Return the scores of each way to map a tile with the run that has not seen it."""
    images, masks = _images(dubai / f"tile_{tile}"), dubai / f"tile_{tile}" / "masks"
    maps = {way: _score(run, images, masks, folder, way) for way in ("none", "mirror")}
    if not every_way:
        shutil.rmtree(folder)
        return maps
    for scale in SCALES:
        resized = [_resize(image, masks, scale, folder) for image in images]
        maps[f"scale {scale:g}"] = _score(run, resized, folder / "masks", folder)
    others = [path for k in HELD_OUT if k != tile for path in _images(dubai / f"tile_{k}")]
    counts = _histogram(images), _histogram(others)
    for way, rule in (("moved", _quantiles), ("standardised", _moments)):
        maps[way] = _score(run, _recolour(images, rule(*counts), folder / "images"), masks, folder)
    shutil.rmtree(folder)
    return maps


def _score(
    run: str, images: Sequence[Path], masks: Path, folder: Path, tta: str = "none"
) -> dict[str, Any]:
    """Return the scores of the maps of images, and the mean of their pixels' largest probability."""
    maps = folder / "maps"
    _predict(run, images, maps, tta, "--labels", f"{masks}/{{stem}}.png")
    scores = json.loads((maps / "scores.json").read_text())
    parts = [_read(path)[0] for path in sorted(maps.glob("*.confidence.tif"))]
    confidence = sum(int(part.sum(dtype=np.int64)) for part in parts) / sum(part.size for part in parts) / 255
    return {"mIoU": scores["miou"], "IoU": scores["iou"], "confidence": round(confidence, 4)}


def _predict(run: str | Path, images: Sequence[Path], maps: Path, tta: str, *more: str) -> None:
    call = [sys.executable, "predict.py", run, *images, "--output", maps, "--tta", tta, "--redo", *more]
    call += ["--confidence", "--no-calibration"]
    subprocess.run([str(word) for word in call], check=True, capture_output=True)


# -------------------------------------------------------------------------------------- imagery


def _images(place: Path) -> list[Path]:
    return sorted((place / "images").iterdir())


def _read(path: Path) -> NDArray[np.uint8]:
    with rasterio.open(path) as image:
        return np.asarray(image.read())


def _write(path: Path, bands: NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    size = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    with rasterio.open(path, "w", driver="PNG", dtype="uint8", **size) as file:
        file.write(bands)
    return path


def _histogram(images: Sequence[Path]) -> NDArray[np.int64]:
    """Return (3, 256): the pixels of each value, by band."""
    counts = np.zeros((3, 256), np.int64)
    for path in images:
        counts += [np.bincount(band.ravel(), minlength=256) for band in _read(path)[:3]]
    return counts


def _quantiles(source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return (3, 256): the value of the target that has the quantile of each of the source's."""
    shares = [(np.cumsum(each, axis=1) - each / 2) / each.sum(axis=1)[:, None] for each in (source, target)]
    moved = [np.interp(a, b, np.arange(256)) for a, b in zip(*shares, strict=True)]
    return np.array(moved).round().astype(np.uint8)


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


def _recolour(images: Sequence[Path], table_CV: NDArray[np.uint8], folder: Path) -> list[Path]:
    """Copy the first three bands of images with each value replaced."""
    found = []
    for image in images:
        bands = [values[band] for values, band in zip(table_CV, _read(image)[:3], strict=True)]
        found.append(_write(folder / f"{image.stem}.png", np.stack(bands)))
    return found


def _resize(image: Path, masks: Path, scale: float, folder: Path) -> Path:
    """Copy an image at another scale, and its mask by nearest neighbour, as colours; return the image."""
    with rasterio.open(image) as file:
        shape = tuple(max(1, round(side * scale)) for side in file.shape)
        smooth = Resampling.bilinear if scale > 1 else Resampling.average
        bands = file.read(out_shape=(file.count, *shape), resampling=smooth)
    with rasterio.open(masks / f"{image.stem}.png") as file:
        mask = file.read(out_shape=(file.count, *shape), resampling=Resampling.nearest)
        if file.count == 1:
            colours = np.array([file.colormap(1).get(k, (0, 0, 0))[:3] for k in range(256)], np.uint8)
            mask = np.moveaxis(colours[mask[0]], -1, 0)
    _write(folder / "masks" / f"{image.stem}.png", mask)
    return _write(folder / "images" / f"{image.stem}.png", bands)


# ----------------------------------------------------------------------------------------- page


def page_lines(results: Path) -> list[str]:
    """Return the rows: mIoU in percent of each tile, and what a way adds to `plain` on the tiles it was tried on."""
    scores: dict[tuple[str, int], list[float]] = {}
    for path in (path for arm in ARMS for path in sorted(results.glob(f"{arm}-*.json"))):
        kept, arm = json.loads(path.read_text()), ARMS[path.stem.split("-")[0]]
        ways = _named(kept["maps"]) if arm == ARMS["plain"] else {arm: kept["maps"]["none"]["mIoU"]}
        for way, score in ways.items():
            scores.setdefault((way, kept["held_out"]), []).append(100 * score)
    rows = []
    for way in dict.fromkeys(way for way, _ in scores):
        at = {tile: statistics.mean(scores[way, tile]) for tile in HELD_OUT if (way, tile) in scores}
        gains = [score - statistics.mean(scores["plain", tile]) for tile, score in at.items()]
        each = [f"{at[tile]:.1f}" if tile in at else "-" for tile in HELD_OUT]
        error = f" ± {statistics.stdev(gains) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else ""
        rows.append([way, *each, "" if way == "plain" else f"{statistics.mean(gains):+.1f}{error}"])
    head = ["way", *(f"tile {tile}" for tile in HELD_OUT), "mean gain, ± standard error"]
    return table(head, rows, words=1)


def _named(maps: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return row → mIoU of one result."""
    scales = [each for way, each in maps.items() if way == "none" or way.startswith("scale")]
    return {
        "plain": maps["none"]["mIoU"],
        "left-right mirror": maps["mirror"]["mIoU"],
        "target's colours moved to training's, by histogram": maps["moved"]["mIoU"],
        "target's colours moved to training's, by mean and deviation": maps["standardised"]["mIoU"],
        "scale of the target, by confidence": max(scales, key=lambda each: each["confidence"])["mIoU"],
        "scale of the target, bound: by the truth": max(each["mIoU"] for each in scales),
    }


if __name__ == "__main__":
    sys.exit(main())
