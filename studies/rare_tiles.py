"""Look-alikes of NAIC2020 with a rare class, which trains and is scored: `coverage_help` says how."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.short_training import Material
from datasets import load_dataset
from datasets.synthetic.make import make_naic2020
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.evaluation.scores import ConfusionMatrix, Scores
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.store import SceneStore

RARE, LEFT_OUT = "water", "other"
ONE_IN = 6
"""Of so many tiles with the rare class one trains; in validation, a tile without it counts so many times."""
_SIDE = 64
_SCORED_AT_ONCE = 64


@dataclass(frozen=True)
class RareTiles:
    """The tiles that train and those that score."""

    material: Material
    validation: TileIndex
    validation_store: SceneStore

    @property
    def rare(self) -> int:
        """Id of the rare class."""
        return self.material.dataset.classes.names.index(RARE)

    def scores(self, predict: Any) -> Scores:
        """Over the validation tiles, the rare class as rare as in training."""
        dataset = self.material.dataset
        with_rare_N = self.validation.counts_NK[:, self.rare] > 0
        total = ConfusionMatrix(dataset.classes)
        for chosen_N, times in ((with_rare_N, 1), (~with_rare_N, ONE_IN)):
            part = ConfusionMatrix(dataset.classes)
            for first in range(0, int(chosen_N.sum()), _SCORED_AT_ONCE):
                tiles = np.flatnonzero(chosen_N)[first : first + _SCORED_AT_ONCE]
                windows = [(int(self.validation.scene_N[i]), self.validation.window(int(i))) for i in tiles]
                read = [self.validation_store.read(scene, window) for scene, window in windows]
                image, valid, label = (np.stack(parts) for parts in zip(*read, strict=True))
                part.add(label, predict(image, valid).ids)
            for _ in range(times):
                total.merge(part)
        from segmenter.training.validation import validation_protocol  # with TensorFlow

        protocol = validation_protocol(dataset)
        counted = tuple(name for name in protocol.classes if name != LEFT_OUT)
        return total.scores(replace(protocol, classes=counted))

    def facts(self) -> dict[str, Any]:
        """How many tiles hold each class, and in which share of them the rare one is."""
        train, names = self.material.train, self.material.dataset.classes.names
        holds = (train.counts_NK >= 32).sum(axis=0)
        scored = (self.validation.counts_NK >= 32).sum(axis=0)
        return {
            "tiles": len(train),
            "scored_tiles": len(self.validation),
            "held_by": {name: int(n) for name, n in zip(names, holds, strict=True) if n},
            "scored_held_by": {name: int(n) for name, n in zip(names, scored, strict=True) if n},
            "rare_share": round(int(holds[self.rare]) / len(train), 4),
        }


def rare_recipe(
    root: Path, batch: int, seed: int, sampling: Mapping[str, Any], loss: Mapping[str, Any]
) -> Recipe:
    """The recipe of the comparisons; all but sampling and loss is the same in each."""
    return recipe_from(
        {
            "name": "rare tiles",
            "seed": seed,
            "dataset": {"kind": "naic2020", "root": str(root), "validation_share": 0.35},
            "tiles": {"size": _SIDE, "jitter": False},  # moved, a tile could show what was left out
            "sampling": dict(sampling),
            "augmentation": {"brightness": 0.2, "contrast": 0.2},
            "model": {"depth": 3, "width": 8},
            "loss": dict(loss),
            "training": {
                "global_batch": batch,
                "learning_rate": 2e-3,
                "schedule": "cosine",
                "warmup": 40,
                "clip_norm": 1.0,
            },
        },
        "benchmark",
    )


def rare_tiles(root: Path, scenes: int) -> RareTiles:
    """The tiles of the scenes in `root`, which are made where there are none."""
    if not (root / "train").exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:  # killed half-way, it leaves no data set
            make_naic2020(Path(folder) / "made", scenes=scenes, seed=0)
            try:
                (Path(folder) / "made").replace(root)
            except OSError:
                if not (root / "train").exists():  # else another process has made the same meanwhile
                    raise
    recipe = rare_recipe(root, 16, 0, {}, {})
    dataset = load_dataset(recipe)
    train, validation = (
        build_index(dataset, split, recipe.tiles, progress=False) for split in ("train", "validation")
    )
    rare, left_out = (dataset.classes.names.index(name) for name in (RARE, LEFT_OUT))
    cache = cache_folder(dataset)
    trained = _of_tiles(train, thinned(train.counts_NK, rare, left_out, ONE_IN))
    return RareTiles(
        Material.of(dataset, trained, SceneStore(dataset, train.scenes, _SIDE, cache, progress=False)),
        validation=_of_tiles(validation, thinned(validation.counts_NK, rare, left_out, 1)),
        validation_store=SceneStore(dataset, validation.scenes, _SIDE, cache, progress=False),
    )


def thinned(counts_NK: NDArray[np.int64], rare: int, left_out: int, one_in: int) -> NDArray[np.bool_]:
    """(N,) whether a tile stays: without the class `left_out`, and a random one in `one_in` with the rare."""
    keep_N = counts_NK[:, left_out] == 0
    shown = np.flatnonzero(keep_N & (counts_NK[:, rare] > 0))
    kept = np.random.default_rng(0).permutation(shown)[: round(len(shown) / one_in)]
    keep_N[shown] = False
    keep_N[kept] = True
    return np.asarray(keep_N)


def _of_tiles(index: TileIndex, keep_N: NDArray[np.bool_]) -> TileIndex:
    arrays = ("scene_N", "row_N", "col_N", "labelled_N", "counts_NK")
    return replace(index, **{name: getattr(index, name)[keep_N] for name in arrays})
