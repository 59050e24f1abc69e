"""Plan + tiles → batches, as arrays and as a `tf.data.Dataset`.

A batch is a pure function of (seed, epoch, step): whatever thread or machine makes it, it is the same, and
any one can be had without those before it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.augment import Augmenter
from segmenter.errors import DatasetError, SegmenterError
from segmenter.index import TileIndex
from segmenter.labels import class_pixels
from segmenter.sampler import Plan
from segmenter.schema import Recipe
from segmenter.store import SceneStore, Tile

_REDRAWS = 4
"""Draws of position and augmentation for a tile whose class got lost, before it is taken as it lies."""

Batch = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]


@dataclass
class DrawCounts:
    """How often a tile was drawn: what it costs to keep the classes in view."""

    tiles: int = 0
    redrawn: int = 0
    replaced: int = 0

    def add(self, other: DrawCounts) -> None:
        """Add the counts of a batch."""
        self.tiles += other.tiles
        self.redrawn += other.redrawn
        self.replaced += other.replaced


@dataclass(frozen=True)
class _Place:
    """Where in the training a batch is."""

    epoch: int
    step: int


class BatchLoader:
    """Makes the batches of a training set; safe to call from several threads."""

    def __init__(self, recipe: Recipe, index: TileIndex, store: SceneStore, bands: int, dtype: str) -> None:
        """`bands` and `dtype` are those of the scenes as they are read."""
        self._recipe, self._index, self._store = recipe, index, store
        self._augmenter = Augmenter(recipe.augmentation, bands, dtype)
        self.tile_shape = (recipe.tiles.size, recipe.tiles.size, bands)
        self.dtype = dtype
        self._lock = threading.Lock()
        self.fault: SegmenterError | None = None
        self.drawn = DrawCounts()

    def load(self, plan: Plan, epoch: int, step: int) -> Batch:
        """Step `step` of an epoch: images (B, S, S, C), valid (B, S, S), class ids (B, S, S) uint8.

        Each class that the plan promised is held by a tile of the batch as it is returned: where random
        position and augmentation lost it, a tile that was picked for it is drawn again, and in the end
        taken from its place on the grid with flips and turns only, which lose no pixel.
        """
        where = _Place(epoch, step)
        row_B = plan.rows_SB[step]
        tiles = [self._draw(int(tile), where, slot, 0) for slot, tile in enumerate(row_B)]
        held_BK = np.stack([self._held(tile) for tile in tiles])
        counts = DrawCounts(len(row_B))
        for class_id in plan.promised:
            if not held_BK[:, class_id].any():
                self._draw_again(class_id, plan, where, tiles, held_BK, counts)
        while missing := [c for c in plan.promised if not held_BK[:, c].any()]:
            # Taken as it lies, a tile holds all that the index says; so each class ends this for good.
            slot = self._slot_for(row_B, missing[0])
            if counts.replaced >= len(plan.promised):
                name = self._index.scenes[int(self._index.scene_N[row_B[slot]])].name
                raise DatasetError(f"{name}: has changed since it was indexed; start again with --resume")
            tiles[slot] = self._draw(int(row_B[slot]), where, slot, 0, as_it_lies=True)
            held_BK[slot] = self._held(tiles[slot])
            counts.replaced += 1
        with self._lock:
            self.drawn.add(counts)
        image, valid, label = (np.stack(parts) for parts in zip(*tiles, strict=True))
        return image, valid, label

    def _draw_again(
        self,
        class_id: int,
        plan: Plan,
        where: _Place,
        tiles: list[Tile],
        held_BK: NDArray[np.bool_],
        counts: DrawCounts,
    ) -> None:
        """New random draws of the tile that was picked for a class, until one holds it and loses no other."""
        row_B = plan.rows_SB[where.step]
        slot = self._slot_for(row_B, class_id)
        others_K = np.asarray(np.delete(held_BK, slot, axis=0).any(axis=0))
        needed = [c for c in plan.promised if c == class_id or (held_BK[slot, c] and not others_K[c])]
        for attempt in range(1, _REDRAWS + 1):
            counts.redrawn += 1
            tile = self._draw(int(row_B[slot]), where, slot, attempt)
            held_K = self._held(tile)
            if np.all(held_K[needed]):
                tiles[slot], held_BK[slot] = tile, held_K
                return

    def _held(self, tile: Tile) -> NDArray[np.bool_]:
        """(K,): the classes that a tile holds."""
        classes = self._index.counts_NK.shape[1]
        pixels_K = class_pixels(tile[2], classes)
        return np.asarray(pixels_K >= self._recipe.sampling.min_pixels)

    def _slot_for(self, row_B: NDArray[np.int64], class_id: int) -> int:
        """The place of the tile that shows most of a class: the likeliest to keep it."""
        return int(np.argmax(self._index.counts_NK[row_B, class_id]))

    def _draw(self, tile: int, where: _Place, slot: int, attempt: int, *, as_it_lies: bool = False) -> Tile:
        key = np.random.SeedSequence([self._recipe.seed, where.epoch, where.step, slot, attempt])
        rng = np.random.default_rng(key)
        scene, window = int(self._index.scene_N[tile]), self._index.window(tile)
        if self._recipe.tiles.jitter and not as_it_lies:
            reach = (self._recipe.tiles.size - self._recipe.tiles.overlap) // 2
            rows, cols = (int(v) for v in rng.integers(-reach, reach + 1, 2))
            window = self._store.window_in_scene(scene, window.shifted(rows, cols))
        content = self._store.read(scene, window)
        seed = int(rng.integers(2**32))
        return self._augmenter(content, seed, geometry_that_loses_nothing=as_it_lies)


def epoch_dataset(loader: BatchLoader, plan: Plan, epoch: int, first_step: int = 0) -> Any:
    """The batches of an epoch from `first_step` on, in order, as a `tf.data.Dataset` of global batches.

    One call of Python makes a whole batch, so that the interpreter's lock is taken once for many tiles;
    as many calls run side by side as there are cores.
    """
    import tensorflow as tf

    def load(step: Any) -> Batch:
        try:
            return loader.load(plan, epoch, int(step))
        except SegmenterError as error:
            loader.fault = error  # TensorFlow gives the caller only its text, wrapped
            raise

    batch, (height, width, bands) = plan.rows_SB.shape[1], loader.tile_shape

    def from_step(step: Any) -> Any:
        # Stateless, as far as TensorFlow is concerned: the batch follows from the step alone.
        types = (tf.as_dtype(loader.dtype), tf.bool, tf.uint8)
        image, valid, label = tf.numpy_function(load, [step], types, stateful=False)
        image.set_shape((batch, height, width, bands))
        valid.set_shape((batch, height, width))
        label.set_shape((batch, height, width))
        return image, valid, label

    steps = tf.data.Dataset.range(first_step, plan.steps)
    calls = max(2, os.cpu_count() or 2)
    options = tf.data.Options()
    # Nothing is left to tune, and its thread sleeps for longer and longer: ending an epoch would wait for it,
    # with idle devices, for as long again as the epoch took.
    options.autotune.enabled = False
    batches = steps.map(from_step, num_parallel_calls=calls, deterministic=True).prefetch(2)
    return batches.with_options(options)
