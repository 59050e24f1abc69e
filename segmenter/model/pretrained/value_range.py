"""Input normalisation of pretrained weights, used if the data are of the same kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import WeightsError, counted
from segmenter.config.models import EncoderDecoderConfig, WeightBand
from segmenter.model.normalisation import Normalisation

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


def fit_kernel(kernel_HWCO: NDArray[np.float32], chosen: Sequence[int | None]) -> NDArray[np.float32]:
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
    names = [_channel_name(c, channels) for c in chosen]
    line = f"first layer: {counted(len(chosen), 'band')} from {channels}: {', '.join(names)}"
    if len(chosen) != channels:
        line += f", times {channels}/{len(chosen)}"
    return line


def _channel_name(channel: int | None, channels: int) -> str:
    if channel is None:
        return "mean"
    return RGB[channel] if channels == len(RGB) else str(channel + 1)


_TORCH = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's red, green and blue, of 1: torchvision's and Keras' `mode="torch"`."""


def _of_255(mean: Sequence[float], std: Sequence[float]) -> Normalisation:
    return Normalisation.of([255 * m for m in mean], [255 * s for s in std])


_HALF = Normalisation.of([127.5] * 3, [127.5] * 3)
_LITE = Normalisation.of([127.0] * 3, [128.0] * 3)
CAFFE = Normalisation.of([123.68, 116.779, 103.939], [255 * s for s in _TORCH[1]])
"""Keras' `mode="caffe"` takes means only; its deviations are in the first layer (`kernel_scale`)."""
_RECORDS = {
    "efficientnet_lite": _LITE,  # models/official/efficientnet/lite: MEAN_RGB, STDDEV_RGB
    "resnet": _of_255(*_TORCH),
    "keras_resnet50": CAFFE,
    "mobilenet_v2": _HALF,
    "densenet121": _of_255(*_TORCH),
    "efficientnet_v2_b": _of_255(*_TORCH),
    "efficientnet_v2_s": Normalisation.of([128.0] * 3, [128.0] * 3),
    "convnext_tiny": _of_255(*_TORCH),
}
"""Beginning of an encoder's name → mean and deviation of 8-bit red, green and blue."""


def record_of(encoder: str) -> Normalisation:
    """Return the normalisation used in the training of an encoder's ImageNet weights."""
    return next(record for name, record in _RECORDS.items() if encoder.startswith(name))


def input_normalisation(
    config: EncoderDecoderConfig, scenes: Normalisation, dtype: str
) -> tuple[Normalisation, str]:
    """Return the normalisation of each band, and a line that describes it.

    An 8-bit band that takes a channel of ImageNet weights gets that channel's normalisation; other bands get
    that of the training scenes. The setting `input_normalisation` can force either.

    Args:
        dtype: pixel type of the data.

    Raises:
        WeightsError: the weights' normalisation is requested, but the data are not 8-bit or no band has a
            channel.
    """
    asked = config.input_normalisation
    record = record_of(config.encoder)
    if asked == "scenes" or (asked == "auto" and config.weights != "imagenet"):
        return scenes, "normalisation: by the training scenes"
    chosen = _colours(config, len(scenes.mean))
    as_weights = [c is not None and dtype == "uint8" for c in chosen]
    if asked == "weights" and not any(as_weights):
        why = f"the data are {dtype}" if dtype != "uint8" else "no band takes a channel of them by itself"
        raise WeightsError(
            "model.input_normalisation: weights",
            expected=f"8-bit bands that take red, green or blue, but {why}",
            remedy="use scenes",
        )
    pairs = list(zip(chosen, as_weights, strict=True))
    mean = [record.mean[c or 0] if w else scenes.mean[i] for i, (c, w) in enumerate(pairs)]
    std = [record.std[c or 0] if w else scenes.std[i] for i, (c, w) in enumerate(pairs)]
    return Normalisation.of(mean, std), _line(as_weights, dtype)


def check_photographs(config: EncoderDecoderConfig, channels: int, file: str) -> None:
    """Refuse ImageNet's normalisation for weights whose channels are not red, green and blue.

    Raises:
        WeightsError: `input_normalisation: weights`, but the weights have another number of channels.
    """
    if config.input_normalisation == "weights" and channels != len(RGB):
        raise WeightsError(
            f"{file}: model.input_normalisation: weights",
            expected="weights of red, green and blue, whose normalisation is known",
            got=f"{channels} channels",
            remedy="use scenes",
        )


def _colours(config: EncoderDecoderConfig, bands: int) -> list[int | None]:
    """Return the channel (red, green, blue: 0, 1, 2) of the weights for each band; None: several or none."""
    named = config.weight_bands
    if named is not None and any(isinstance(band, int) and band > len(RGB) for band in named):
        return [None] * bands  # numbered channels of more than three: no photograph's
    return channels_for(bands, len(RGB), named)


def _line(as_weights: Sequence[bool], dtype: str) -> str:
    if all(as_weights):
        return "normalisation: as the weights were trained"
    if not any(as_weights):
        why = f" (the data are {dtype})" if dtype != "uint8" else ""
        return f"normalisation: by the training scenes{why}"
    named = ", ".join(str(i + 1) for i, is_equal in enumerate(as_weights) if is_equal)
    others = ", ".join(str(i + 1) for i, is_equal in enumerate(as_weights) if not is_equal)
    return f"normalisation: bands {named} as the weights were trained, bands {others} by the training scenes"
