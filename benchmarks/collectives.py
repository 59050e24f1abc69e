"""Collectives of a training step, counted and timed: Keras' BatchNorm against ours.

Before: `keras.layers.BatchNormalization(synchronized=True)`. After: `model.batchnorm.SyncBatchNorm`. The same
U-Net, batch and replicas, in the same process; steps of the two alternate, so that what else the machine does
falls on both. On a CPU a collective is a copy in memory: what it costs between GPUs is not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from typing import Any

from datasets.commands.gpu.collectives import COLLECTIVES, nodes_of
from segmenter.config.recipe import DistributionConfig, LossConfig, ModelConfig, TrainingConfig, UNetConfig
from segmenter.devices.strategy import load_tensorflow, make_devices

BANDS, CLASSES = 3, 6


def main() -> None:
    """Print the counts of one compiled step, and the ratio of the medians of its time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument(
        "--width", type=int, default=8, help="of the first level; collectives do not depend on it"
    )
    parser.add_argument("--side", type=int, default=64, help="of a tile, in pixels")
    parser.add_argument("--replicas", type=int, default=4, help="logical CPU devices")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each; 0: only count")
    arguments = parser.parse_args()
    load_tensorflow(arguments.replicas)
    devices = make_devices(DistributionConfig(), arguments.replicas)
    model = UNetConfig(depth=arguments.depth, width=arguments.width)
    content = _batch(devices, arguments.side)
    steps = {name: _step(devices, model, name == "before") for name in ("before", "after")}
    counts = {
        name: collectives_of(step.get_concrete_function(content)) / devices.replicas
        for name, step in steps.items()
    }
    figures: dict[str, Any] = {f"collectives_{name}": count for name, count in counts.items()}
    if arguments.steps:
        seconds = _medians(steps, content, arguments.steps)
        figures |= {f"ms_per_step_{name}": round(1e3 * s) for name, s in seconds.items()}
        figures["time_after_of_before"] = round(seconds["after"] / seconds["before"], 2)
    print(json.dumps({"benchmark": "collectives", "replicas": devices.replicas, **figures}))


def collectives_of(function: Any) -> int:
    """Collective operations in a concrete function, of all its replicas together."""
    counts = node_counts(function)
    return sum(counts[name] for name in COLLECTIVES)


def node_counts(function: Any) -> Counter[str]:
    """How many nodes of each kind a concrete function has, with those of the functions it calls."""
    return Counter(node.op for node in nodes_of(function))


def with_keras_norm(model: Any) -> Any:
    """A copy of a model, in which Keras' synchronised BatchNormalization takes the place of ours."""
    import keras

    from segmenter.model.batchnorm import SyncBatchNorm

    def copy(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, SyncBatchNorm):
            return keras.layers.BatchNormalization.from_config({**config, "synchronized": True})
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=copy)


def _step(devices: Any, config: ModelConfig, before: bool) -> Any:
    import keras

    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts, make_step

    keras.utils.set_random_seed(0)
    with devices.strategy.scope():
        model = build_model(config, BANDS, CLASSES, synchronised=True)
        if before:
            model = with_keras_norm(model)
        optimiser = build_optimiser(TrainingConfig(), model, 1000)
    loss = segmentation_loss(LossConfig(), None, devices.replicas)
    normalisation = Normalisation.of([120] * BANDS, [60] * BANDS)
    return make_step(StepParts(devices.strategy, model, optimiser, loss, normalisation, 32))


def _batch(devices: Any, side: int) -> Any:
    """One tile a replica."""
    import tensorflow as tf

    shape = (devices.replicas, side, side)
    image = tf.cast(tf.random.stateless_uniform((*shape, BANDS), (1, 2), 0, 256, tf.int32), tf.uint8)
    label = tf.cast(tf.random.stateless_uniform(shape, (3, 4), 0, CLASSES, tf.int32), tf.uint8)
    return devices.distribute((image, tf.ones(shape, tf.bool), label))


def _medians(steps: dict[str, Any], content: Any, repeats: int) -> dict[str, float]:
    """Seconds of a step, the median, after three to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 3):
        for name, step in steps.items():
            started = time.perf_counter()
            loss = step(content).loss
            float(loss)
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[3:]) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
