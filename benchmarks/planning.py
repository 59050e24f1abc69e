"""Time and memory of planning an epoch, against the number of tiles.

Random class tables with one class in 2 % of the tiles, 64 tiles a step, one core; each size in a process of
its own. Baseline, in the same process: a permutation of the tiles and a comparison of the counts, the least
that any plan has to do. Memory is the peak beyond the interpreter and the table of counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.sampling import SamplingConfig
from segmenter.sampling import Rules, planned_rows

SIZES = ((10_000, 8), (100_000, 8), (1_000_000, 8), (10_000_000, 16))
"""(tiles, classes); the last is left out by --small."""
BATCH, MIN_PIXELS = 64, 32
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ROWS = 1 << 16
"""Tiles made or checked at once, so that neither adds to the peak."""


def main() -> None:
    """Without --tiles: measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="leave the ten million tiles out")
    parser.add_argument("--repeats", type=int, default=3, help="timings of each; the median is printed")
    parser.add_argument("--tiles", type=int, help="measure this one size in this process")
    parser.add_argument("--classes", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.tiles:
        print(json.dumps(_measure(arguments.tiles, arguments.classes, arguments.repeats)), flush=True)
        return
    for tiles, classes in SIZES[: -1 if arguments.small else None]:
        size = ["--tiles", str(tiles), "--classes", str(classes), "--repeats", str(arguments.repeats)]
        environment = os.environ | dict.fromkeys(_ONE_THREAD, "1")
        subprocess.run([sys.executable, "-m", "benchmarks.planning", *size], check=True, env=environment)


def class_table(tiles: int, classes: int, seed: int = 0) -> NDArray[np.uint16]:
    """(N, K) pixels: the last class is in 2 % of the tiles, the others in 15 to 90 %, independently."""
    rng = np.random.default_rng(seed)
    share_K = np.append(np.linspace(0.9, 0.15, classes - 1), 0.02)
    counts_NK = np.empty((tiles, classes), np.uint16)
    for start in range(0, tiles, _ROWS):
        part = counts_NK[start : start + _ROWS]
        part[:] = rng.integers(MIN_PIXELS, 4096, part.shape, np.uint16)
        part[rng.random(part.shape, np.float32) >= share_K] = 0
    return counts_NK


def _measure(tiles: int, classes: int, repeats: int) -> dict[str, Any]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    planned_rows(
        class_table(1000, classes), BATCH, Rules()
    )  # what is loaded or allocated once is no part of the plan
    interpreter = _peak()
    counts_NK = class_table(tiles, classes)

    def planned() -> NDArray[np.int64]:
        return planned_rows(counts_NK, BATCH, Rules(MIN_PIXELS)).rows_SB

    def with_quotas() -> NDArray[np.int64]:
        return planned_rows(counts_NK, BATCH, Rules(MIN_PIXELS), SamplingConfig(quota="rarity")).rows_SB

    def least() -> NDArray[np.bool_]:
        np.random.default_rng(0).permutation(tiles)
        return np.asarray(counts_NK >= MIN_PIXELS)

    rows_SB, seconds = _timed(planned, repeats)
    memory = _peak() - interpreter - counts_NK.nbytes  # before the baseline, which has a peak of its own
    of_quotas, quota_seconds = _timed(with_quotas, repeats)
    _, baseline = _timed(least, repeats)
    return {
        "benchmark": "planning",
        "tiles": tiles,
        "classes": classes,
        "steps": len(rows_SB),
        "used_again": rows_SB.size - tiles,
        "complete_steps": _complete(rows_SB, counts_NK),
        "seconds": round(seconds, 4),
        "steps_with_quotas": len(of_quotas),
        "seconds_with_quotas": round(quota_seconds, 4),
        "baseline_seconds": round(baseline, 4),
        "ratio": round(seconds / baseline, 1),
        "peak_MiB": round(memory / 2**20, 1),
        "peak_bytes_per_tile": round(memory / tiles),
    }


def _timed(call: Callable[[], NDArray[Any]], repeats: int) -> tuple[NDArray[Any], float]:
    """What the last call gives, and the median time of a call."""
    seconds = []
    result = np.empty(0)
    for _ in range(repeats):
        del result  # two results at once would count as the plan's memory
        started = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - started)
    return result, float(np.median(seconds))


def _complete(rows_SB: NDArray[np.int64], counts_NK: NDArray[np.uint16]) -> float:
    """Share of the steps that hold every class: a quick plan that breaks its promise is worth nothing."""
    steps = max(1, _ROWS // rows_SB.shape[1])
    parts = (counts_NK[rows_SB[i : i + steps]] for i in range(0, len(rows_SB), steps))
    complete = sum(int((part >= MIN_PIXELS).any(axis=1).min(axis=1).sum()) for part in parts)
    return complete / len(rows_SB)


def _peak() -> int:
    """Peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
