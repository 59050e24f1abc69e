"""Learning curve of `segmenter review --unlabelled`: tiles that it chooses, beside tiles at random.

    python -m studies.learning_curve --naic DIR --dubai DIR --camvid DIR [--seeds 0 1 2]
    python -m studies.learning_curve --page       table of what is there

A model trains on 16 random tiles of 128² out of a pool of 192 ("start"). As many again are added: those of
the largest score by that model, 256 pixels from each other within an image ("review"), or at random
("random"); and 48 at random, twice as many tiles in all ("twice"). Each arm trains anew from the same weights
(EfficientNet-Lite0 of ImageNet, U-Net decoder), 80 steps of 8 tiles, and is scored on 240 random tiles of
scenes that none of them is from. One model chooses, so that the disagreement of folds counts nothing: a score
is its doubt times the weight of the classes that it sees. It is computed by `extras.review.teaching`, on the
tile alone.

Each arm leaves a small JSON file in `--results`; one that is there is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.short_training import Material, loader_of, rows_of
from studies.what_lifts_data import _camvid, _dubai, _link_camvid
from datasets import load_dataset
from segmenter.base.files import write_whole
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.evaluation.scores import ConfusionMatrix
from segmenter.extras.review.teaching import entropy
from segmenter.extras.review.teaching import scores, weights_of
from segmenter.raster import quiet_gdal
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.store import SceneStore

POOL, START, MORE, SCORED, STEPS, APART, BATCH = 192, 16, 16, 240, 80, 256, 8
ARMS = {"start": START, "review": START + MORE, "random": START + MORE, "twice": 2 * (START + MORE)}
RESULTS = Path("studies/results/review")
Numbers = NDArray[np.int64]

_COMMON: dict[str, Any] = {
    "name": "learning curve",
    "tiles": {"size": 128, "jitter": False},
    "augmentation": {"brightness": 0, "contrast": 0},
    "model": {
        "kind": "encoder_decoder",
        "encoder": "efficientnet_lite0",
        "decoder": "unet",
        "weights": "imagenet",
    },
    "loss": {"cross_entropy": 1.0, "dice": 1.0},
    "training": {
        "global_batch": BATCH,
        "learning_rate": 1.5e-3,
        "schedule": "cosine",
        "warmup": 10,
        "clip_norm": 1.0,
    },
}


def recipe_of(data: str, root: Path, work: Path) -> Recipe:
    """Return the recipe of a data set, whose validation scenes score."""
    described: dict[str, Any] = {}
    if data == "dubai":
        described = _dubai(root, work, "tile_4")
    elif data == "camvid":
        _link_camvid(root, work / "data" / "camvid")
        described = _camvid(work / "data" / "camvid", 0)
        described["augmentation"] = {key: described["augmentation"][key] for key in ("d4", "transforms")}
    else:
        described = {"dataset": {"kind": "naic2020", "root": str(root), "validation_share": 0.4}}
    described["augmentation"] = _COMMON["augmentation"] | described.get("augmentation", {})
    described["dataset"]["cache"] = str(work / "cache" / data)
    return recipe_from({**_COMMON, **described}, data)


@dataclass(frozen=True)
class Tiles:
    """Random tiles of a split."""

    index: TileIndex
    store: SceneStore

    @classmethod
    def of(cls, recipe: Recipe, dataset: Any, split: Any, count: int) -> Tiles:
        """The same tiles whatever the seed of a training."""
        index = build_index(dataset, split, recipe.tiles, progress=False)
        store = SceneStore(dataset, index.scenes, recipe.tiles.size, cache_folder(dataset), progress=False)
        rows = np.random.default_rng(7).permutation(len(index))[:count]
        return cls(subset(index, np.sort(rows)), store)

    def read(self, first: int, stop: int) -> tuple[NDArray[Any], ...]:
        """(images, valid, labels) of a range of tiles."""
        read = [
            self.store.read(int(self.index.scene_N[i]), self.index.window(i))
            for i in range(first, min(stop, len(self.index)))
        ]
        return tuple(np.stack(parts) for parts in zip(*read, strict=True))


def subset(index: TileIndex, rows: Numbers) -> TileIndex:
    """Some tiles of an index."""
    names = ("scene_N", "row_N", "col_N", "labelled_N", "counts_NK")
    return replace(index, **{name: getattr(index, name)[rows] for name in names})


class Trainer:
    """One compiled step and one compiled prediction, for all arms of a data set."""

    def __init__(self, recipe: Recipe, material: Material) -> None:
        import keras
        import tensorflow as tf

        from segmenter.inference.function import predict_function
        from segmenter.inference.prediction import ExtraOutputs
        from segmenter.model.building import build_model
        from segmenter.training.losses import segmentation_loss
        from segmenter.training.optimiser import build_optimiser
        from segmenter.training.step import StepParts, make_step

        self.recipe, self.material = recipe, material
        classes, bands = len(material.dataset.classes), len(material.normalisation.mean)
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")

        def built(seed: int) -> Any:
            keras.utils.set_random_seed(seed)
            with strategy.scope():
                return build_model(recipe.model, bands, classes)

        self.first = lambda seed: built(seed).get_weights()
        self.model = built(0)
        with strategy.scope():
            self.optimiser = build_optimiser(recipe.training, self.model, STEPS)
        self.fresh = [variable.numpy() for variable in self.optimiser.variables]
        loss = segmentation_loss(recipe.loss, None, BATCH, [1 / classes] * classes)
        parts = (strategy, self.model, self.optimiser, loss, material.normalisation)
        self.step = make_step(StepParts(*parts, recipe.sampling.min_pixels, batch=BATCH))
        outputs = ExtraOutputs(probabilities="float32")
        self.predict = predict_function(self.model, material.normalisation, outputs)

    def train(self, tiles: TileIndex, seed: int) -> None:
        """From the seed's first weights, on these tiles."""
        from segmenter.training.trainer import epoch_dataset

        self.model.set_weights(self.first(seed))
        for variable, value in zip(self.optimiser.variables, self.fresh, strict=True):
            variable.assign(value)
        recipe = self.recipe.model_copy(update={"seed": seed})
        material = replace(self.material, train=tiles)
        loader, epoch, left = loader_of(material, recipe), 0, STEPS
        while left > 0:
            plan = rows_of(material, recipe, epoch)
            for batch in islice(epoch_dataset(loader, plan, epoch), left):
                self.step(batch)
            left, epoch = left - plan.steps, epoch + 1

    def probabilities(self, tiles: Tiles) -> tuple[NDArray[np.float32], ...]:
        """(N, H, W, K) probabilities and (N, H, W) labels."""
        found, labels = [], []
        for first in range(0, len(tiles.index), BATCH):
            image, valid, label = tiles.read(first, first + BATCH)
            short = BATCH - len(image)
            whole = [np.concatenate([each, each[:1].repeat(short, 0)]) for each in (image, valid)]
            found.append(np.asarray(self.predict(*whole).probabilities)[: len(image)])
            labels.append(label)
        return np.concatenate(found), np.concatenate(labels)


def chosen(pool: TileIndex, taken: Numbers, probabilities: NDArray[np.float32]) -> list[int]:
    """Return the tiles that a review adds to those taken."""
    flat = probabilities.reshape(len(pool), -1, probabilities.shape[-1])
    doubt, shares = entropy(flat).mean(axis=1), flat.mean(axis=1)
    rest = (np.ones(len(pool)), doubt, np.zeros(len(pool)))
    weights = weights_of(pool.counts_NK[taken].sum(axis=0).astype(np.float64))
    score = scores(np.column_stack([*rest, shares]).astype(np.float64), weights)
    score[taken] = -1
    added: list[int] = []
    for tile in np.argsort(-score, kind="stable").tolist():
        beside = [
            other
            for other in added
            if pool.scene_N[other] == pool.scene_N[tile]
            and np.hypot(pool.row_N[other] - pool.row_N[tile], pool.col_N[other] - pool.col_N[tile]) < APART
        ]
        if len(added) < MORE and not beside:
            added.append(tile)
    return added


def run(data: str, root: Path, given: argparse.Namespace) -> None:
    """Train and score what is not there yet."""
    from segmenter.training.validation import validation_protocol

    recipe, results = recipe_of(data, root, given.work), given.results
    dataset = load_dataset(recipe)
    pool = Tiles.of(recipe, dataset, "train", POOL)
    held_out = Tiles.of(recipe, dataset, "validation", SCORED)
    trainer: Trainer | None = None
    for seed in given.seeds:
        order = np.random.default_rng([11, seed]).permutation(len(pool.index))
        for arm, count in ((arm, ARMS[arm]) for arm in given.arms):
            path = results / f"{data}-{arm}-{seed}.json"
            if path.is_file():
                continue
            started = time.process_time()
            trainer = trainer or Trainer(recipe, Material.of(dataset, pool.index, pool.store))
            rows = order[:count]
            if arm == "review":
                start = json.loads((results / f"{data}-start-{seed}.json").read_text())
                rows = np.array([*order[:START], *start["chosen"]])
            trainer.train(subset(pool.index, np.sort(rows)), seed)
            probabilities, labels = trainer.probabilities(held_out)
            total = ConfusionMatrix(dataset.classes)
            total.add(labels, probabilities.argmax(axis=-1).astype(np.uint8))
            found = total.scores(validation_protocol(dataset))
            held_K = (pool.index.counts_NK[rows] >= 32).sum(axis=0)
            result = {
                "data": data,
                "arm": arm,
                "seed": seed,
                "tiles": len(rows),
                "mIoU": found.miou,
                "IoU": dict(zip(dataset.classes.names, np.nan_to_num(found.iou).round(4).tolist())),
                "held_by": dict(zip(dataset.classes.names, held_K.tolist(), strict=True)),
            }
            if arm == "start":
                result["chosen"] = chosen(pool.index, rows, trainer.probabilities(pool)[0])
            result["processor_seconds"] = round(time.process_time() - started, 1)
            write_whole(path, json.dumps(result, indent=1).encode())
            print(data, arm, seed, round(found.miou, 4), result["processor_seconds"], flush=True)


def page(results: Path) -> str:
    """Return a table: mean mIoU of each arm, with the difference of review to random by seed."""
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*-*-*.json")}
    lines = ["| data | seeds | " + " | ".join(ARMS) + " | review − random by seed |", "|---" * 7 + "|"]
    for data in dict.fromkeys(each["data"] for each in found.values()):
        by = {arm: {e["seed"]: e["mIoU"] for e in found.values() if (e["data"], e["arm"]) == (data, arm)} for arm in ARMS}
        both = sorted(by["review"].keys() & by["random"].keys())
        means = ["" if set(both) - of.keys() else f"{100 * np.mean([of[s] for s in both]):.1f}" for of in by.values()]
        gaps = ", ".join(f"{100 * (by['review'][s] - by['random'][s]):+.1f}" for s in both)
        if not both:
            continue
        lines.append(f"| {data} | {len(both)} | " + " | ".join(means) + f" | {gaps} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is named, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = ("naic", "dubai", "camvid")
    for name in names:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs/learning_curve"), help="data that is made")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        print(page(given.results))
        return
    quiet_gdal()
    from segmenter.devices.strategy import load_tensorflow

    load_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given.results.mkdir(parents=True, exist_ok=True)
    for name in names:
        if getattr(given, name):
            run(name, getattr(given, name), given)


if __name__ == "__main__":
    sys.exit(main())
