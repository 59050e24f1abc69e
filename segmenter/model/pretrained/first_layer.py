"""First convolution of pretrained weights, adapted to other bands than those in their training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import WeightsError, counted
from segmenter.config.models import WeightBand

RGB = ("red", "green", "blue")


def channels_for(bands: int, channels: int, named: Sequence[WeightBand] | None) -> list[int | None]:
    """Return the 0-based channel of the weights for each band; None: the mean of all channels.

    Without names: in order if the numbers are equal; with more bands, the first ones take the channels in
    order; with fewer, all take the mean.

    Raises:
        WeightsError: names and bands differ in number, or the weights lack a named channel.
    """
    if named is None:
        return [i if i < channels <= bands else None for i in range(bands)]
    if len(named) != bands:
        raise WeightsError(
            "model.weight_bands", expected=f"one for each of the model's {bands} bands", got=len(named)
        )
    return [_channel(band, channels) for band in named]


def _channel(band: WeightBand, channels: int) -> int | None:
    if band is None:
        return None
    if isinstance(band, str):
        if channels != len(RGB):
            raise WeightsError(
                "model.weight_bands",
                f"{band}: these weights have {channels} channels; say each by its number, from 1",
            )
        return RGB.index(band)
    if band > channels:
        raise WeightsError("model.weight_bands", expected=f"channels from 1 to {channels}", got=band)
    return band - 1


def fitted(kernel_HWCO: NDArray[np.float32], chosen: Sequence[int | None]) -> NDArray[np.float32]:
    """Return an (h, w, bands, O) kernel from one of (h, w, channels, O).

    Each band takes its channel's weights, or the mean of all channels. All are multiplied by channels /
    bands, so that an image with equal bands gives about the same sum as before.
    """
    channels = kernel_HWCO.shape[2]
    mean = kernel_HWCO.mean(axis=2)
    parts = [mean if c is None else kernel_HWCO[:, :, c] for c in chosen]
    scale = np.float32(channels / len(chosen))
    return np.ascontiguousarray(np.stack(parts, axis=2) * scale, np.float32)


def describe(chosen: Sequence[int | None], channels: int) -> str:
    """Return a short text on how bands use the channels."""
    if list(chosen) == list(range(channels)):
        return f"first layer: {channels} bands as they are"
    names = [_named(c, channels) for c in chosen]
    line = f"first layer: {counted(len(chosen), 'band')} from {channels}: {', '.join(names)}"
    if len(chosen) != channels:
        line += f", times {channels}/{len(chosen)}"
    return line


def _named(channel: int | None, channels: int) -> str:
    if channel is None:
        return "mean"
    return RGB[channel] if channels == len(RGB) else str(channel + 1)
