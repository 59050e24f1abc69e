"""Time of a training step, measured on made tiles; TensorFlow is loaded at the first call."""

from __future__ import annotations

import time
from typing import Any

from segmenter.base.errors import SegmenterError
from segmenter.config.recipe import LossConfig, ModelConfig, Recipe, TrainingConfig
from segmenter.devices.strategy import Devices

BANDS, CLASSES = 3, 6
"""Of the made tiles."""
_MOST_SECONDS, _CALLS = 10.0, 8
"""Seconds after which no further single step is timed, and single steps at the most."""


def seconds_of_step(recipe: Recipe) -> float:
    """Time single steps of a recipe's training on made tiles, for some ten seconds; return the mean of one.

    Raises:
        SegmenterError: they do not run here, as where other work fills a card.
    """
    import tensorflow as tf

    from segmenter.devices.strategy import make_devices
    from segmenter.training.step import make_steps

    devices, one, training = make_devices(recipe.distribution), tf.constant(1), recipe.training
    steps = make_steps(step_parts(devices, recipe.model, recipe.loss, training))
    stack = made_stack(devices, training.steps_per_call, training.global_batch, recipe.tiles.size)
    begun = time.perf_counter()
    try:
        float(steps(stack, one)[0][0])  # compiles
        started, calls = time.perf_counter(), 0
        while calls == 0 or (calls < _CALLS and time.perf_counter() - begun < _MOST_SECONDS):
            float(steps(stack, one)[0][0])
            calls += 1
    except tf.errors.OpError as error:
        raise SegmenterError(f"a training step does not run here: {error.message.splitlines()[0]}") from None
    return (time.perf_counter() - started) / calls


def step_parts(devices: Devices, config: ModelConfig, loss: LossConfig, training: TrainingConfig) -> Any:
    """Return the parts of the program's step (`StepParts`) for a model on these devices."""
    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts

    with devices.strategy.scope():
        model = build_model(config, BANDS, CLASSES, dtype=training.precision, synchronised=True)
        optimiser = build_optimiser(training.model_copy(update={"rates": {}}), model, 10_000)
    share = segmentation_loss(loss, None, training.global_batch)
    normalisation = Normalisation.of([120.0] * BANDS, [60.0] * BANDS)
    accumulate, xla = training.accumulate, training.xla is True
    return StepParts(devices.strategy, model, optimiser, share, normalisation, 32, accumulate, xla=xla)


def made_stack(devices: Devices, steps: int, images: int, side: int) -> Any:
    """Return synthetic batches of several steps, distributed to the devices."""
    import tensorflow as tf

    shape = (steps, images, side, side)
    image = tf.cast(tf.random.stateless_uniform((*shape, BANDS), (1, 2), 0, 256, tf.int32), tf.uint8)
    label = tf.cast(tf.random.stateless_uniform(shape, (3, 4), 0, CLASSES, tf.int32), tf.uint8)
    return devices.distribute((image, tf.ones(shape, tf.bool), label), axis=1)
