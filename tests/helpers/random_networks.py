"""Random stacks of layers, with branches: each keeps its input's size, through whatever is between.

Some have LayerNormalization, which makes numbers negative, and then no maxima, which would hide them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_CHANNELS = 2


def random_network(rng: np.random.Generator, layers: int) -> Any:
    """A float64 model of one to `layers` random blocks, from 2 bands to as many channels."""
    import keras

    image = keras.Input((None, None, _CHANNELS), dtype="float64")
    x, signed = image, rng.random() < 0.3
    for _ in range(int(rng.integers(1, layers + 1))):
        x = _Blocks(rng, signed).block(x, 2)
    return keras.Model(image, x)


class _Blocks:
    def __init__(self, rng: np.random.Generator, signed: bool) -> None:
        import keras

        self._rng, self._signed, self._layers = rng, signed, keras.layers

    def block(self, x: Any, levels: int) -> Any:
        kinds: list[Callable[[], Any]] = [
            *(lambda: self.same(x), lambda: self.same(x), lambda: self.padded(x), lambda: self.shifted(x)),
            *(lambda: self.pixelwise(x), lambda: self.pool(x)),
        ]
        if levels:
            kinds += [lambda: self.branches(x, levels), lambda: self.nested(x, levels)]
            kinds += [lambda: self.down_and_up(x, levels)] * 2
        return self._one_of(kinds)()

    def _one_of(self, kinds: Sequence[Any]) -> Any:
        return kinds[self._rng.integers(len(kinds))]

    def same(self, x: Any) -> Any:
        kernel, dilation = tuple(map(int, self._rng.integers(1, 5, 2))), int(self._rng.integers(1, 4))
        options = {"padding": "same", "dilation_rate": dilation, "use_bias": False, "dtype": "float64"}
        if self._rng.random() < 0.3:
            return self._layers.DepthwiseConv2D(kernel, **options)(x)
        if self._rng.random() < 0.3:
            return self._layers.SeparableConv2D(_CHANNELS, kernel, **options)(x)
        layer = self._layers.Conv2D(_CHANNELS, kernel, **options)
        return layer(layer(x)) if self._rng.random() < 0.2 else layer(x)

    def padded(self, x: Any) -> Any:
        top, bottom, left, right = map(int, self._rng.integers(0, 3, 4))
        x = self._layers.ZeroPadding2D(((top, bottom), (left, right)), dtype="float64")(x)
        kernel = (top + bottom + 1, left + right + 1)
        return self._layers.Conv2D(_CHANNELS, kernel, use_bias=False, dtype="float64")(x)

    def shifted(self, x: Any) -> Any:
        down, right = map(int, self._rng.integers(0, 4, 2))
        x = self._layers.ZeroPadding2D(((down, 0), (0, right)), dtype="float64")(x)
        return self._layers.Cropping2D(((0, down), (right, 0)), dtype="float64")(x)

    def pixelwise(self, x: Any) -> Any:
        kinds = [
            lambda: self._layers.BatchNormalization(dtype="float64"),
            lambda: self._layers.Activation("gelu", dtype="float64"),
            lambda: self._layers.Dense(_CHANNELS, dtype="float64"),
            lambda: self._layers.SpatialDropout2D(0.2, dtype="float64"),
            lambda: self._layers.Rescaling([0.5, 0.7], dtype="float64"),
        ]
        if self._signed:
            kinds.append(lambda: self._layers.LayerNormalization(dtype="float64"))
        return self._one_of(kinds)()(x)

    def pool(self, x: Any) -> Any:
        return self._pool(tuple(map(int, self._rng.integers(1, 4, 2))), 1, padding="same", dtype="float64")(x)

    @property
    def _pool(self) -> Any:
        if self._signed or self._rng.random() < 0.5:
            return self._layers.AveragePooling2D
        return self._layers.MaxPooling2D

    def branches(self, x: Any, levels: int) -> Any:
        left, right = self.block(x, levels - 1), self.block(x, levels - 1)
        if self._rng.random() < 0.3:
            joined = self._layers.Concatenate(dtype="float64")([left, right, x])
            return self._layers.Conv2D(_CHANNELS, 1, dtype="float64")(joined)
        if self._rng.random() < 0.3:
            return left + right * 2.0
        return self._layers.Add(dtype="float64")([left, right])

    def nested(self, x: Any, levels: int) -> Any:
        import keras

        inner = keras.Input((None, None, _CHANNELS), dtype="float64")
        model = keras.Model(inner, self.block(self.block(inner, levels - 1), levels - 1))
        return model(model(x)) if self._rng.random() < 0.3 else model(x)

    def down_and_up(self, x: Any, levels: int) -> Any:
        by = int(self._rng.choice([2, 2, 4]))
        kernel = int(self._rng.integers(1, by + 3))
        way = self._rng.integers(4)
        options = {"use_bias": False, "dtype": "float64"}
        if way == 0:
            x = self._layers.Conv2D(_CHANNELS, kernel, by, padding="same", **options)(x)
        elif way == 1:
            x = self._pool(kernel, by, padding="same", dtype="float64")(x)
        elif way == 2:  # as keras.applications has it
            before = int(self._rng.integers(0, 3))
            x = self._layers.ZeroPadding2D(((before, by), (by, before)), dtype="float64")(x)
            x = self._layers.DepthwiseConv2D(before + by + 1, by, padding="valid", **options)(x)
        else:
            x = self._layers.AveragePooling2D(by, dtype="float64")(x)
        x = self.block(x, levels - 1)
        if self._rng.random() < 0.4:
            mode = "nearest" if self._rng.random() < 0.5 else "bilinear"
            return self._layers.UpSampling2D(by, interpolation=mode, dtype="float64")(x)
        kernel = by + int(self._rng.integers(0, 4))
        if self._rng.random() < 0.5:
            return self._layers.Conv2DTranspose(_CHANNELS, kernel, by, padding="same", **options)(x)
        x = self._layers.Conv2DTranspose(_CHANNELS, kernel, by, padding="valid", **options)(x)
        first = int(self._rng.integers(0, kernel - by + 1))
        crop = (first, kernel - by - first)
        return self._layers.Cropping2D((crop, crop[::-1]), dtype="float64")(x)
