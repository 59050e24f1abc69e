"""Prediction sets keep their promise on blocks that no fit saw, with the fewest classes that do."""

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.evaluation.prediction_sets import (
    MOST_CLASSES,
    PROMISES,
    STEPS,
    BlockLosses,
    SetThresholds,
    bits,
    bits_dtype,
)

K, SIDE = 4, 8
Scene = tuple[NDArray[np.int64], NDArray[np.float32]]


def scene(rng: np.random.Generator, blocks: int, rare: float = 0.05) -> Scene:
    """Labels (side, side · blocks), and probabilities of a model that is too sure, worse in some blocks."""
    share = np.array([1 - 3 * rare, rare, rare, rare])
    label = rng.choice(K, (SIDE, SIDE * blocks), p=share)
    hard = np.repeat(rng.gamma(2.0, 0.6, blocks), SIDE)[None, :, None]
    logits = 3 * np.eye(K)[label] + rng.normal(0, 1, (*label.shape, K)) * (0.5 + 2 * hard)
    values = np.exp(1.8 * (logits - logits.max(axis=-1, keepdims=True)))
    return label, (values / values.sum(axis=-1, keepdims=True)).astype(np.float32)


def fitted(label: NDArray[np.int64], values: NDArray[np.float32], strips: int = 1) -> BlockLosses:
    losses = BlockLosses(SIDE, K)
    row, col = np.indices(label.shape)
    for part in np.array_split(np.arange(label.size), strips):  # windows cut blocks anywhere
        flat = (each.reshape(-1)[part] for each in (row, col, label))
        losses.add(0, *flat, values.reshape(-1, K)[part])
    losses.finish(0)
    return losses


def lacking(
    label: NDArray[np.int64], values: NDArray[np.float32], sets: SetThresholds
) -> NDArray[np.float64]:
    """Share (blocks, K) of each class's pixels in a block whose set lacks it, NaN where it is not."""
    flat = values.reshape(-1, K)
    member = sets.members(flat, flat.argmax(axis=1)).reshape(*label.shape, K)
    has = np.take_along_axis(member, label[..., None], axis=-1)[..., 0]
    found = np.full((label.shape[1] // SIDE, K), np.nan)
    for block in range(len(found)):
        part = slice(block * SIDE, (block + 1) * SIDE)
        for k in range(K):
            if (own := label[:, part] == k).any():
                found[block, k] = 1 - has[:, part][own].mean()
    return found


@pytest.mark.parametrize("promise", PROMISES)
def test_the_promise_holds_over_many_divisions_into_fit_and_test(promise: float) -> None:
    rng = np.random.default_rng(5)
    label, values = scene(rng, 160)
    losses = []
    for _ in range(60):
        fit, test = np.array_split(rng.permutation(160), 2)
        columns = [np.concatenate([np.arange(SIDE) + SIDE * block for block in part]) for part in (fit, test)]
        sets = fitted(label[:, columns[0]], values[:, columns[0]]).thresholds(promise)
        assert sets.few == ()
        losses.append(np.nanmean(lacking(label[:, columns[1]], values[:, columns[1]], sets), axis=0))
    mean_K, error_K = np.mean(losses, axis=0), np.std(losses, axis=0) / np.sqrt(60)
    assert (mean_K <= 1 - promise + 2 * error_K).all()
    assert (mean_K >= 0.4 * (1 - promise)).all(), "sets are no larger than the promise asks"


def test_thresholds_are_the_largest_that_keep_the_bound() -> None:
    label, values = scene(np.random.default_rng(8), 40)
    losses = fitted(label, values)
    sets, n_K = losses.thresholds(0.9), losses.blocks_K
    for k, threshold in enumerate(sets.each_K):
        step = round(threshold ** (1 / 4) * STEPS)
        for more, holds in ((0, True), (1, False)):
            each = [0.0] * K
            each[k] = ((step + more) / STEPS) ** 4
            loss = np.nansum(lacking(label, values, SetThresholds(0.9, tuple(each)))[:, k])
            assert ((loss + 1) / (n_K[k] + 1) <= 0.1 + 1e-9) == (holds or step == STEPS)


def test_windows_that_cut_blocks_change_nothing() -> None:
    label, values = scene(np.random.default_rng(3), 21)
    whole, cut = fitted(label, values), fitted(label, values, strips=13)
    assert [whole.thresholds(promise) for promise in PROMISES] == [cut.thresholds(p) for p in PROMISES]


def test_what_is_kept_of_a_scene_grows_with_the_classes_that_its_blocks_show() -> None:
    """Blocks show one of 60 classes: else a large scene would need a gigabyte at the end of its training."""
    losses, blocks = BlockLosses(SIDE, 60), 400
    row, col = (each.reshape(-1) for each in np.indices((SIDE, SIDE * blocks)))
    values = np.full((row.size, 60), 1 / 60, np.float32)
    tracemalloc.start()
    try:
        losses.add(0, row, col, np.zeros(row.size, np.int64), values)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * blocks * (STEPS + 1) * 8
    losses.finish(0)
    assert losses.blocks_K.tolist() == [blocks, *[0] * 59]


def test_a_class_with_too_few_blocks_is_in_every_set() -> None:
    label, values = scene(np.random.default_rng(1), 30)
    label[label == 2] = 0
    label[0, : 6 * SIDE : SIDE] = 2  # in six blocks
    sets = fitted(label, values)
    assert sets.blocks_K[2] == 6
    assert [2 in sets.thresholds(promise).few for promise in PROMISES] == [False, True, True]
    flat = values.reshape(-1, K)
    assert sets.thresholds(0.95).members(flat, flat.argmax(axis=1))[:, 2].all()


def test_the_likely_class_is_in_any_case() -> None:
    _, values = scene(np.random.default_rng(2), 3)
    flat = values.reshape(-1, K)
    other = (flat.argmax(axis=1) + 1) % K  # as a calibration with a bias maps it
    member = SetThresholds(0.9, (1.0,) * K).members(flat, other)
    rows = np.arange(len(flat))
    assert member[rows, other].all()
    assert member[rows, flat.argmax(axis=1)].all()
    assert member.sum() == 2 * len(flat)


@pytest.mark.parametrize("classes", [1, 8, 9, 16, 17, 33, MOST_CLASSES])
def test_sets_are_bits(classes: int) -> None:
    member = np.random.default_rng(classes).random((50, classes)) < 0.4
    numbers = bits(member)
    assert numbers.dtype == bits_dtype(classes)
    back = [[bool(int(number) >> k & 1) for k in range(classes)] for number in numbers]
    assert back == member.tolist()
