"""Does the promise of prediction sets hold on one set's blocks, and are the sets small?

    python -m studies.prediction_sets RUN --split test [--fit validation] [--root DIR] [--output FILE.json]
    python -m studies.prediction_sets RUN RUN … [--root DIR] [--output FILE.json]

The blocks of the labelled scenes of one part are divided at random, 200 times, into halves: one fits the
thresholds as `segmenter calibrate` does, the other tests them. By class: mean share of its pixels whose set
holds it, over blocks, and the standard error over the blocks of the test half, which are what varies. Beside
it the mean number of classes of a set, over pixels, and that of one threshold of the softmax for all classes
whose coverage of the worst class, and whose mean coverage over classes, is the same on the same test half.
Each block is represented by up to 400 pixels drawn at random. With `--fit` the thresholds are fitted on all
blocks of that part, and tested on all of `--split`: as they come, for blocks of two parts are not exchangeable.
Of several runs, each with a place of its own in `--split`, the blocks of all others fit the thresholds by which
those of each are tested.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.known import dataset_of_run
from segmenter.evaluation.prediction_sets import PROMISES, BlockLosses
from segmenter.grid.labels import IGNORE
from segmenter.inference.loading import load_predictor
from segmenter.inference.predictor import ExtraOutputs, Failed, Finished, MappedWindow, classify_all
from segmenter.runs.run import load_run
from segmenter.training.validation import SceneJob, tiling_of

_PIXELS, _DIVISIONS = 400, 200

Fit = NDArray[np.bool_]
Blocks = dict[tuple[int, int, int], list[tuple[NDArray[np.uint8], NDArray[np.float32]]]]


def main() -> int:
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--fit", help="part that fits the thresholds, in place of halves of --split")
    parser.add_argument("--root", help="folder of the data now")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found = _one(given) if len(given.runs) == 1 else _each_by_the_others(given)
    print(json.dumps(found, indent=1))
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _one(given: argparse.Namespace) -> dict:
    run = replace(load_run(given.runs[0]), calibrated=False)
    labels, values, of_block = _drawn(_blocks(run, given.split, given.root))
    names = run.classes.names
    found = {"run": run.recipe.name, "split": given.split, "blocks": int(of_block.max()) + 1}
    found["side"], found["divisions"] = run.recipe.tiles.size, 1 if given.fit else _DIVISIONS
    fit = np.zeros(len(labels), bool)
    if given.fit:
        others = _drawn(_blocks(run, given.fit, given.root))
        found["fit"], found["fit_blocks"] = given.fit, int(others[2].max()) + 1
        fit = np.concatenate([np.ones(len(others[0]), bool), fit])
        others[2][:] += found["blocks"]
        labels, values, of_block = (np.concatenate(pair) for pair in zip(others, (labels, values, of_block)))
    for promise in PROMISES:
        found[f"{promise:.0%}"] = _tested(labels, values, of_block, promise, names, fit)
    return found


def _each_by_the_others(given: argparse.Namespace) -> dict:
    runs = [replace(load_run(path), calibrated=False) for path in given.runs]
    drawn = [_drawn(_blocks(run, given.split, given.root)) for run in runs]
    found, counts = {}, [int(of_block.max()) + 1 for _, _, of_block in drawn]
    labels, values = (np.concatenate(parts) for parts in list(zip(*drawn))[:2])
    first = np.cumsum([0, *counts[:-1]])
    of_block = np.concatenate([part[2] + start for part, start in zip(drawn, first)])
    of_run = np.repeat(np.arange(len(runs)), [len(part[0]) for part in drawn])
    for number, path in enumerate(given.runs):
        tested = {"blocks": counts[number], "fit_blocks": sum(counts) - counts[number]}
        for promise in PROMISES:
            names = runs[number].classes.names
            tested[f"{promise:.0%}"] = _tested(labels, values, of_block, promise, names, of_run != number)
        found[path.name if path.name != "run" else path.parent.name] = tested
    return found


def _blocks(run, split: str, root: str | None) -> Blocks:  # noqa: ANN001
    dataset = dataset_of_run(run, root)
    scenes, side = dataset.of(split), run.recipe.tiles.size
    number = {scene.name: n for n, scene in enumerate(scenes)}
    predict = load_predictor(run, ExtraOutputs(probabilities="float32"), precision=["float32"])
    rng, blocks = np.random.default_rng(0), Blocks()
    jobs = (SceneJob(scene, dataset, run.mean_C) for scene in scenes)
    for event in classify_all(jobs, tiling_of(run, len(predict.workers)), predict):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            event.job.close()
        elif isinstance(event, MappedWindow):
            label_HW, found = event.job.truth(event.window), event.prediction
            rows, cols = np.nonzero((label_HW != IGNORE) & (found.ids != IGNORE))
            down, across = (event.window.row + rows) // side, (event.window.col + cols) // side
            keys = down * 10_000 + across
            for key in np.unique(keys):
                own = np.flatnonzero(keys == key)
                own = rng.permutation(own)[:_PIXELS]
                part = label_HW[rows[own], cols[own]], found.probabilities[rows[own], cols[own]]
                place = number[event.job.scene.name], int(key) // 10_000, int(key) % 10_000
                blocks.setdefault(place, []).append(part)
    return blocks


def _drawn(blocks: Blocks) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int64]]:
    labels, values, of_block = [], [], []
    for n, parts in enumerate(blocks.values()):
        label, value = (np.concatenate(each) for each in zip(*parts, strict=True))
        kept = np.random.default_rng(n).permutation(len(label))[:_PIXELS]
        labels.append(label[kept])
        values.append(value[kept])
        of_block.append(np.full(len(kept), n))
    return np.concatenate(labels), np.concatenate(values), np.concatenate(of_block)


def _tested(labels, values, of_block, promise: float, names: list[str], given: Fit) -> dict:  # noqa: ANN001
    rng, number = np.random.default_rng(1), int(of_block.max()) + 1
    likely = values.argmax(axis=1)
    own = np.where(likely == labels, 1.0, values[np.arange(len(labels)), labels])
    covers, errors, sizes, worst_sizes, mean_sizes, always = [], [], [], [], [], set()
    for _ in range(1 if given.any() else _DIVISIONS):
        fit = given if given.any() else np.isin(of_block, rng.permutation(number)[: number // 2])
        losses = BlockLosses(1, len(names))
        block = of_block[fit]
        losses.add(0, block, np.zeros_like(block), labels[fit], values[fit])
        losses.finish(0)
        sets = losses.thresholds(promise)
        always |= set(sets.few)
        members = sets.members(values[~fit], likely[~fit])
        has = members[np.arange(len(members)), labels[~fit]]
        cover, error = _coverage(has, labels[~fit], of_block[~fit], len(names))
        covers.append(cover)
        errors.append(error)
        sizes.append(members.sum(axis=1).mean())
        worst_sizes.append(_softmax_size(own, values, labels, of_block, ~fit, np.nanmin, np.nanmin(cover)))
        mean_sizes.append(_softmax_size(own, values, labels, of_block, ~fit, np.nanmean, np.nanmean(cover)))
    cover_K, error_K = np.nanmean(covers, axis=0), np.nanmean(errors, axis=0)
    return {
        "coverage": {n: round(float(c), 4) for n, c in zip(names, cover_K, strict=True)},
        "standard_error": {n: round(float(e), 4) for n, e in zip(names, error_K, strict=True)},
        "kept": bool((cover_K >= promise - 2 * error_K)[~np.isnan(cover_K)].all()),
        "size": round(float(np.mean(sizes)), 3),
        "size_of_softmax_threshold_of_same_worst_coverage": round(float(np.mean(worst_sizes)), 3),
        "size_of_softmax_threshold_of_same_mean_coverage": round(float(np.mean(mean_sizes)), 3),
        "in_every_set": [names[k] for k in sorted(always)],
    }


def _coverage(has, labels, of_block, classes: int):  # noqa: ANN001, ANN202
    """Return mean and standard error over blocks of each class's share of covered pixels."""
    number = int(of_block.max()) + 1
    cell = of_block * classes + labels
    total = np.bincount(cell, minlength=number * classes).reshape(number, classes)
    held = np.bincount(cell, has, minlength=number * classes).reshape(number, classes)
    share = np.where(total > 0, held / np.maximum(total, 1), np.nan)
    n = (total > 0).sum(axis=0)
    with np.errstate(all="ignore"):
        return np.nanmean(share, axis=0), np.nanstd(share, axis=0, ddof=1) / np.sqrt(n)


def _softmax_size(own, values, labels, of_block, test, score, wanted: float) -> float:  # noqa: ANN001
    """Return the mean size of sets by one threshold that reaches a coverage on the test half, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        cover, _ = _coverage(own[test] >= middle, labels[test], of_block[test], values.shape[1])
        low, high = (middle, high) if score(cover) >= wanted else (low, middle)
    members = values[test] >= low
    members[np.arange(len(members)), values[test].argmax(axis=1)] = True
    return float(members.sum(axis=1).mean())


if __name__ == "__main__":
    sys.exit(main())
