"""Cost of counting a batch's classes on the device, beside the step that it is part of.

Baseline, in the same run: the compiled training step (which includes the counting), on one CPU device. One
JSON line; the ratio is the counting's share of the step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.devices.strategy import load_tensorflow
from segmenter.model.normalisation import Normalisation


def main() -> None:
    """Time both, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=128, help="of a tile in pixels")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7, help="timings of each; the median counts")
    options = parser.parse_args()
    load_tensorflow()
    import tensorflow as tf

    from segmenter.model.building import build_model
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts, make_step, tiles_holding

    rng = np.random.default_rng(0)
    shape = (options.batch, options.side, options.side)
    label = tf.constant(rng.integers(0, options.classes, shape).astype(np.uint8))
    image = tf.constant(rng.integers(0, 255, (*shape, 3)).astype(np.uint8))
    batch = (image, tf.ones(shape, tf.bool), label)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = build_model(UNetConfig(depth=3, width=16), 3, options.classes)
        optimiser = build_optimiser(TrainingConfig(), model, 100)
    loss = segmentation_loss(LossConfig(), None, options.batch)
    parts = StepParts(strategy, model, optimiser, loss, Normalisation.of([120.0] * 3, [60.0] * 3), 32)
    step = make_step(parts)
    count = tf.function(lambda labels: tiles_holding(labels, options.classes, 32))
    whole = _seconds(lambda: float(step(batch)[0]), options.rounds)
    alone = _seconds(lambda: count(label).numpy(), options.rounds)
    figures = {"step_seconds": round(whole, 4), "counting_seconds": round(alone, 5)}
    print(json.dumps({"benchmark": "counting", **figures, "ratio": round(alone / whole, 5)}))


def _seconds(call: Callable[[], Any], rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return median(times)


if __name__ == "__main__":
    main()
