"""Freezing of a model's layers, by the names of their weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from segmenter.model.stages import Pace


def set_trained(model: keras.Model, pace: Pace, epoch: int) -> None:
    """Make exactly those layers of a model trainable that train in an epoch, from 0.

    The others have no gradients, and their BatchNorm normalises by its moving statistics, which stay. It
    counts where a step is compiled next: one that is compiled stays as it is.
    """
    for layer in _layers(model):
        if paths := [variable.path for variable in layer.weights]:
            layer.trainable = all(pace.trains(path, epoch) for path in paths)


def _layers(model: keras.Model) -> Iterator[Any]:
    """The layers of a model, and of the models that are layers of it."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer
