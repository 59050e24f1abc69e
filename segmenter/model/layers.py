"""Layers of encoders and decoders, in one precision and with one kind of normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from segmenter.model.batchnorm import SyncBatchNorm


@dataclass(frozen=True)
class Layers:
    """Maker of layers, all of the same precision.

    Attributes:
        policy: Keras' dtype policy.
        synchronised: BatchNorm by `SyncBatchNorm`, over all replicas.
    """

    policy: keras.DTypePolicy
    synchronised: bool

    @property
    def batch_norm(self) -> type[keras.layers.BatchNormalization]:
        """The class of BatchNorm; both have the same weights, and the same bits at inference."""
        return SyncBatchNorm if self.synchronised else keras.layers.BatchNormalization

    def conv(self, x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
        """A convolution, same-padded and without a bias unless said otherwise."""
        options = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal", **options}
        return keras.layers.Conv2D(filters, kernel, dtype=self.policy, name=name, **options)(x)

    def depthwise(self, x: Any, kernel: int, name: str, **options: Any) -> Any:
        """A convolution of each channel by itself, same-padded and without a bias unless said otherwise."""
        options = {"padding": "same", "use_bias": False, "depthwise_initializer": "he_normal", **options}
        return keras.layers.DepthwiseConv2D(kernel, dtype=self.policy, name=name, **options)(x)

    def norm(self, x: Any, name: str, **options: Any) -> Any:
        """BatchNorm."""
        # Short trainings validate early: Keras' momentum of 0.99 would lag hundreds of steps behind.
        options = {"momentum": 0.9, **options}
        return self.batch_norm(dtype=self.policy, name=name, **options)(x)

    def relu(self, x: Any, name: str, most: float | None = None) -> Any:
        """Rectifier; `most`: cut off there, as ReLU6 does."""
        return keras.layers.ReLU(max_value=most, dtype=self.policy, name=name)(x)

    def add(self, parts: list[Any], name: str) -> Any:
        """Sum."""
        return keras.layers.Add(dtype=self.policy, name=name)(parts)

    def concatenate(self, parts: list[Any], name: str) -> Any:
        """Channels side by side."""
        return keras.layers.Concatenate(dtype=self.policy, name=name)(parts)
