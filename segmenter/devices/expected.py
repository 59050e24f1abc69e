"""GPUs that a training will use, told before TensorFlow is imported."""

from __future__ import annotations

import os

from segmenter.config.devices import DistributionConfig
from segmenter.devices.setup import cards_listed

_CORES = 8
"""Of a TPU host (v2, v3), each as hungry as a card."""


def gpus_expected(config: DistributionConfig, logical_devices: int | None = None) -> int:
    """Cards that the recipe and CUDA_VISIBLE_DEVICES leave of those that the driver lists.

    Args:
        logical_devices: the CPU is split into so many, and no GPU is used.
    """
    if logical_devices is not None:
        return 0
    if config.strategy == "tpu":
        return _CORES
    limits = [cards_listed()]
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        words = [word.strip() for word in named.split(",")]
        hidden = next((i for i, word in enumerate(words) if word in ("", "-1")), len(words))
        limits.append(hidden)  # CUDA ignores what comes after one that is not there
    limits += [len(numbers) for numbers in (config.visible_devices, config.devices) if numbers is not None]
    if config.strategy == "one_device":
        limits.append(1)
    return min(limits)
