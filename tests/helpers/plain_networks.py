"""PyTorch's ResNet and the head of EfficientNet-Lite in NumPy, from the weights under their own names.

A second implementation, which shares nothing with the encoders but the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = Mapping[str, Array]


def conv(x_CHW: Array, weight: Array, stride: int = 1, pad: tuple[int, int] = (0, 0)) -> Array:
    """PyTorch's convolution; `pad`: rows and columns before and behind. Depthwise where it has one input."""
    x = np.pad(x_CHW, ((0, 0), pad, pad))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (1, 2))[:, ::stride, ::stride]
    if weight.shape[1] == 1 and len(x) > 1:
        return np.einsum("chwij,cij->chw", windows, weight[:, 0], optimize=True)
    return np.einsum("chwij,ocij->ohw", windows, weight, optimize=True)


def norm(x: Array, weights: Weights, name: str, epsilon: float) -> Array:
    """BatchNorm at inference."""
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"].astype(np.float64)[:, None, None]
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def resnet(x_CHW: Array, weights: Weights, counts: tuple[int, ...]) -> list[Array]:
    """Features at strides 2 to 32, as torchvision's `resnet.py` computes them."""

    def unit(x: Array, at: str, number: int, stride: int = 1) -> Array:
        kernel = weights[f"{at}conv{number}.weight"]
        return norm(conv(x, kernel, stride, (kernel.shape[2] // 2,) * 2), weights, f"{at}bn{number}", 1e-5)

    x = np.maximum(unit(x_CHW, "", 1, 2), 0)
    found = [x]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2].max(axis=(3, 4))
    for stage, count in enumerate(counts, 1):
        for i in range(count):
            at, stride = f"layer{stage}.{i}.", 2 if stage > 1 and i == 0 else 1
            bottleneck = f"{at}conv3.weight" in weights
            y = np.maximum(unit(x, at, 1, 1 if bottleneck else stride), 0)
            y = unit(y, at, 2, stride if bottleneck else 1)
            if bottleneck:
                y = unit(np.maximum(y, 0), at, 3)
            if f"{at}downsample.0.weight" in weights:
                x = conv(x, weights[f"{at}downsample.0.weight"], stride)
                x = norm(x, weights, f"{at}downsample.1", 1e-5)
            x = np.maximum(x + y, 0)
        found.append(x)
    return found


def lite_logits(features_CHW: Array, weights: Weights) -> Array:
    """(1000,) outputs of an EfficientNet-Lite's classifier on the features at its end."""
    x = norm(conv(features_CHW, weights["_conv_head.weight"]), weights, "_bn1", 1e-3)
    return np.clip(x, 0, 6).mean(axis=(1, 2)) @ weights["_fc.weight"].T + weights["_fc.bias"]
