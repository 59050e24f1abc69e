"""Timed training steps of the program on batches already on the devices, without the input."""

from __future__ import annotations

import time
from typing import Any

from segmenter.config.recipe import LossConfig, ModelConfig, TrainingConfig
from segmenter.devices.strategy import Devices

BANDS, CLASSES = 3, 6


def rate_of(
    devices: Devices, model: ModelConfig, loss: LossConfig, training: TrainingConfig, side: int, calls: int
) -> float:
    """Return images a second of the training step, timed after two calls that compile and warm up."""
    import tensorflow as tf

    steps, count = training_steps(devices, model, loss, training), tf.constant(training.steps_per_call)
    stack = made_stack(devices, training.steps_per_call, training.global_batch, side)
    seconds = 0.0
    for call in range(calls + 2):
        if call == 2:
            seconds = -time.perf_counter()
        float(steps(stack, count)[0][-1])  # the losses come back when the steps are done
    return calls * training.steps_per_call * training.global_batch / (seconds + time.perf_counter())


def training_steps(devices: Devices, config: ModelConfig, loss: LossConfig, training: TrainingConfig) -> Any:
    """Return the program's compiled steps (`step.make_steps`) for a model on these devices."""
    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser.optimisers import build_optimiser
    from segmenter.training.step import StepParts, make_steps

    with devices.strategy.scope():
        model = build_model(config, BANDS, CLASSES, dtype=training.precision, synchronised=True)
        optimiser = build_optimiser(training, model, 10_000)
    share = segmentation_loss(loss, None, training.global_batch)
    normalisation = Normalisation.of([120.0] * BANDS, [60.0] * BANDS)
    parts = StepParts(
        devices.strategy,
        model,
        optimiser,
        share,
        normalisation,
        32,
        training.accumulate,
        xla=training.xla is True,
    )
    return make_steps(parts)


def made_stack(devices: Devices, steps: int, images: int, side: int) -> Any:
    """Return synthetic batches of several steps, distributed to the devices."""
    import tensorflow as tf

    shape = (steps, images, side, side)
    image = tf.cast(tf.random.stateless_uniform((*shape, BANDS), (1, 2), 0, 256, tf.int32), tf.uint8)
    label = tf.cast(tf.random.stateless_uniform(shape, (3, 4), 0, CLASSES, tf.int32), tf.uint8)
    return devices.distributed((image, tf.ones(shape, tf.bool), label), axis=1)
