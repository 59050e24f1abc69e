"""Baseline of colour alone: gradient boosting on each pixel's local colour mean and deviation.

    python -m studies.colour_baseline CONFIG.yaml [--set key=value …] [--split test]

prints one JSON line: mIoU and the IoU of each class, pixel by pixel, on the scenes of one split. It sees
no shapes: what a network scores above this it has learnt from arrangement. Works with any dataset that a
recipe describes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from datasets import load_dataset
from segmenter.config.reading import load_recipe
from segmenter.base.errors import DatasetError, run_script
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.raster import LabelRaster, open_raster
from segmenter.grid.scenes import SPLITS, Dataset, Scene, Split

SUMMARY = "Gradient boosting on local colour mean and deviation: mIoU on one split, as one JSON line."
WINDOWS = (1, 5, 15)
"""Sides, in pixels, of the squares whose mean and deviation a pixel is judged by; 1: its own colour."""
SAMPLES = 200_000
"""Training pixels, over all scenes."""
PART = Size(2048, 2048)
"""Larger scenes are scored part by part, and learnt from one part each: memory stays below 4 GiB."""
_STRIP = 256


def colour_features(image_HWC: NDArray[np.generic], windows: Sequence[int] = WINDOWS) -> NDArray[np.float32]:
    """Local mean and deviation of every band.

    Args:
        image_HWC: (H, W, C) of any number type.
        windows: odd sides in pixels; a window of 1 gives the colour itself and no deviation.

    Returns:
        (H, W, F) float32, F = C × (2 × windows, less one for a window of 1).
    """
    pixels = np.ascontiguousarray(image_HWC, dtype=np.float32)
    features = []
    for side in windows:
        mean = cv2.blur(pixels, (side, side)).reshape(pixels.shape)
        features.append(mean)
        if side > 1:
            square = cv2.blur(pixels**2, (side, side)).reshape(pixels.shape)
            features.append(np.sqrt(np.maximum(square - mean**2, 0)))
    return np.concatenate(features, axis=2)


@dataclass(frozen=True)
class Sample:
    """Pixels to learn from: (N, F) features and (N,) class ids."""

    features_NF: NDArray[np.float32]
    ids_N: NDArray[np.uint8]

    @classmethod
    def join(cls, samples: Iterable[Sample]) -> Sample:
        """All pixels of several scenes."""
        kept = list(samples)
        return cls(np.concatenate([s.features_NF for s in kept]), np.concatenate([s.ids_N for s in kept]))


def sample_pixels(
    image_HWC: NDArray[np.generic],
    label_HW: NDArray[np.uint8],
    count: int,
    rng: np.random.Generator,
    windows: Sequence[int] = WINDOWS,
) -> Sample:
    """About `count` labelled pixels of one scene, rare classes more often than they occur.

    A pixel is drawn with a probability inverse to the square root of its class's share: between the natural
    shares, which serve large classes, and equal ones, which serve the mean over classes.
    """
    ids = label_HW.reshape(-1)
    shares = np.bincount(ids, minlength=256).astype(np.float64)
    shares[IGNORE] = 0
    weights = np.divide(1, np.sqrt(shares), out=np.zeros_like(shares), where=shares > 0)
    expected = weights * shares
    wanted = np.divide(count * weights, expected.sum() or 1)
    chosen = np.flatnonzero(rng.random(ids.size, np.float32) < wanted[ids])
    features = colour_features(image_HWC, windows)
    return Sample(features.reshape(ids.size, -1)[chosen], ids[chosen])


def fit(sample: Sample, seed: int = 0) -> Any:
    """The boosted trees of scikit-learn."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees = HistGradientBoostingClassifier(
        max_iter=100, learning_rate=0.15, max_leaf_nodes=31, early_stopping=False, random_state=seed
    )
    return trees.fit(sample.features_NF, sample.ids_N)


def confusion(
    trees: Any,
    image_HWC: NDArray[np.generic],
    label_HW: NDArray[np.uint8],
    classes: int,
    windows: Sequence[int] = WINDOWS,
) -> NDArray[np.int64]:
    """(K, K) pixels of a scene by true (row) and predicted (column) class; ignored pixels are left out."""
    features = colour_features(image_HWC, windows)
    counts = np.zeros((classes, classes), np.int64)
    for top in range(0, len(label_HW), _STRIP):
        ids = label_HW[top : top + _STRIP].reshape(-1)
        valid = ids != IGNORE
        if valid.any():
            strip = features[top : top + _STRIP].reshape(ids.size, -1)[valid]
            pairs = ids[valid].astype(np.int64) * classes + trees.predict(strip)
            counts += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return counts


def iou_per_class(confusion_KK: NDArray[np.int64]) -> NDArray[np.float64]:
    """(K,) intersection over union; NaN for a class that is neither there nor predicted."""
    hits = np.diag(confusion_KK).astype(np.float64)
    union = confusion_KK.sum(0) + confusion_KK.sum(1) - hits
    return np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0)


def parts(size: Size) -> list[Window]:
    """Windows of at most `PART` that cover a scene, each pixel once."""
    whole = Window.of(size)
    rows, cols = range(0, size.height, PART.height), range(0, size.width, PART.width)
    return [Window(row, col, PART.height, PART.width).intersection(whole) for row in rows for col in cols]


def read_part(
    dataset: Dataset, scene: Scene, rng: np.random.Generator | None = None
) -> Iterable[tuple[NDArray[Any], NDArray[np.uint8]]]:
    """Image (H, W, C) and class ids (H, W) of a scene, part by part; of one random part if `rng` is given."""
    if scene.label is None:
        raise DatasetError(f"{scene.name}: expected a label to learn from or score on, got none")
    with open_raster(scene.image, dataset.bands) as raster:
        windows = parts(raster.info.size)
        if rng is not None:
            windows = [windows[int(rng.integers(len(windows)))]]
        for window in windows:
            image, valid = raster.read(window)
            with LabelRaster(scene.label, dataset.classes) as label:
                ids = label.ids(window)
            yield image, np.where(valid, ids, np.uint8(IGNORE))


def measure(dataset: Dataset, split: Split, seed: int = 0, samples: int = SAMPLES) -> dict[str, Any]:
    """Learn from the training scenes, score on those of `split`; what the JSON line holds.

    Raises:
        DatasetError: where there is nothing to learn from or to score on.
    """
    learnt, scored = dataset.of("train"), dataset.of(split)
    for name, scenes in (("train", learnt), (split, scored)):
        if not scenes:
            raise DatasetError(f"{dataset.name}: expected scenes to {name}, got none; is the split right?")
    rng = np.random.default_rng(seed)
    each = max(1, samples // len(learnt))
    seen = (part for scene in learnt for part in read_part(dataset, scene, rng))
    trees = fit(Sample.join(sample_pixels(image, ids, each, rng) for image, ids in seen), seed)
    counts = np.zeros((len(dataset.classes),) * 2, np.int64)
    for scene in scored:
        for image, ids in read_part(dataset, scene):
            counts += confusion(trees, image, ids, len(dataset.classes))
    iou = iou_per_class(counts)
    per_class = {
        n: None if np.isnan(v) else round(float(v), 4)
        for n, v in zip(dataset.classes.names, iou, strict=True)
    }
    return {
        "benchmark": "colour_baseline",
        "dataset": dataset.name,
        "labels": dataset.labels,
        "split": split,
        "windows": list(WINDOWS),
        "pixels": int(counts.sum()),
        "mIoU": round(float(np.nanmean(iou)), 4) if counts.any() else None,
        "IoU": per_class,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m studies.colour_baseline", description=SUMMARY)
    parser.add_argument("config", type=Path, help="recipe; only its dataset and seed are used")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    parser.add_argument("--split", choices=SPLITS, default="test", help="what is scored (default: test)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"training pixels (default: {SAMPLES})")
    args = parser.parse_args(arguments)
    recipe = load_recipe(args.config, args.set)
    print(json.dumps(measure(load_dataset(recipe), args.split, recipe.seed, max(1, args.samples))))
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
