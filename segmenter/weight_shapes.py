"""Names and shapes of a model's weights, without building it: what a checkpoint of that model must hold.

A recipe from elsewhere may ask for a model of any width. Held against the arrays that are there, it is
refused before memory is taken for it. `test_weight_shapes.py` holds these shapes against the built models'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import CheckpointError
from segmenter.schema import ModelConfig

Shape = tuple[int, ...]


def check_learned(
    arrays: Mapping[str, NDArray[Any]], config: ModelConfig, bands: int, classes: int, file: Path
) -> None:
    """Refuse a checkpoint whose weights (under `model/`) are not those of a model.

    Raises:
        CheckpointError: naming the first weight that is missing, of another shape, or not finite.
    """
    for name, shape in weight_shapes(config, bands, classes):
        value = arrays.get(f"model/{name}")
        if value is None or value.shape != shape or value.dtype.kind != "f":
            got = "none" if value is None else f"{value.shape} of {value.dtype}"
            raise CheckpointError(
                f"{file}: expected weight {name} of shape {shape} and floats, as recipe.yaml and run.json "
                f"beside it say, got {got}; are they of another run?"
            )
        if not np.isfinite(value).all():
            raise CheckpointError(
                f"{file}: expected finite weights, {name} has others; use another checkpoint"
            )


def weight_shapes(config: ModelConfig, bands: int, classes: int) -> Iterator[tuple[str, Shape]]:
    """(path, shape) of each variable of a model that `model.build_model` builds, but for dropout's state."""
    yield from SHAPES[config.kind](config, bands, classes)


def _unet(config: ModelConfig, bands: int, classes: int) -> Iterator[tuple[str, Shape]]:
    widths = [min(config.width * 2**level, config.max_width) for level in range(config.depth + 1)]
    channels = bands
    for level, width in enumerate(widths):
        name = "bottom" if level == config.depth else f"down{level}"
        yield from _block(config, name, channels, width)
        channels = width
    for level in reversed(range(config.depth)):
        width = widths[level]
        if config.upsampling == "transpose":
            yield f"enlarge{level}/kernel", (2, 2, width, channels)
            yield f"enlarge{level}/bias", (width,)
            channels = width
        yield from _block(config, f"up{level}", channels + width, width)
        channels = width
    yield "logits/kernel", (1, 1, channels, classes)
    yield "logits/bias", (classes,)


def _block(config: ModelConfig, name: str, channels: int, width: int) -> Iterator[tuple[str, Shape]]:
    for i in range(2):
        yield f"{name}_conv{i}/kernel", (3, 3, channels if i == 0 else width, width)
        if config.normalisation != "batch":
            yield f"{name}_conv{i}/bias", (width,)
            continue
        for part in ("gamma", "beta", "moving_mean", "moving_variance"):
            yield f"{name}_norm{i}/{part}", (width,)


SHAPES: dict[str, Callable[[ModelConfig, int, int], Iterator[tuple[str, Shape]]]] = {"unet": _unet}
