"""Memory that one image adds to a training step: the formula against what the process takes.

Measured as the growth of the process's peak memory between two batch sizes, each in a process of its own,
on the CPU. A GPU's allocator and cuDNN's workspaces add to it: see docs/settings.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

from benchmarks.measured_models import ENCODERS, measured_model
from segmenter.devices.strategy import load_tensorflow

SIDE, BATCHES = 256, (4, 16)


def main() -> None:
    """Without arguments: run both sizes in processes of their own and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="unet", choices=["unet", *ENCODERS])
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, help="measure one batch size in this process")
    arguments = parser.parse_args()
    if arguments.batch:
        print(_peak(arguments.model, arguments.depth, arguments.width, arguments.batch))
        return
    model = ["--model", arguments.model, "--depth", str(arguments.depth), "--width", str(arguments.width)]
    peaks = [
        int(subprocess.check_output([sys.executable, "-m", "benchmarks.memory", *model, "--batch", str(b)]))
        for b in BATCHES
    ]
    measured = (peaks[1] - peaks[0]) / (BATCHES[1] - BATCHES[0])
    formula = _formula(arguments.model, arguments.depth, arguments.width)
    print(
        json.dumps(
            {
                "benchmark": "memory",
                "model": arguments.model,
                "measured_MiB_per_image": round(measured / 2**20),
                "formula_MiB_per_image": round(formula / 2**20),
                "ratio": round(formula / measured, 2),
            }
        )
    )


def _formula(name: str, depth: int, width: int) -> int:
    load_tensorflow()
    from segmenter.model.size import training_bytes_per_image

    return training_bytes_per_image(measured_model(name, depth, width), SIDE, SIDE)


def _peak(name: str, depth: int, width: int, batch: int) -> int:
    """Peak memory in bytes of a process that makes three training steps."""
    load_tensorflow()
    import tensorflow as tf

    from segmenter.config.recipe import LossConfig, TrainingConfig
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts, make_step

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = measured_model(name, depth, width)
        optimiser = build_optimiser(TrainingConfig(), model, 100)
    loss = segmentation_loss(LossConfig(dice=1), None, batch)
    step = make_step(StepParts(strategy, model, optimiser, loss, Normalisation.of([0] * 3, [1] * 3), 32))
    content = (
        tf.zeros((batch, SIDE, SIDE, 3), tf.uint8),
        tf.ones((batch, SIDE, SIDE), tf.bool),
        tf.zeros((batch, SIDE, SIDE), tf.uint8),
    )
    for _ in range(3):
        step(content)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
