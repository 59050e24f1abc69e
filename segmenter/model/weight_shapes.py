"""Names, shapes and stages of a U-Net's weights, known without building it.

What does not fit is then refused before TensorFlow is imported, and before memory is taken for it. The law
of this module: the names and shapes are those of the model that `building.build_model` makes, without those
that hold dropout's random state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError
from segmenter.config.models import ModelConfig, UNetConfig

Shape = tuple[int, ...]
_LAYER = re.compile(r"(down|bottom|up|enlarge|logits)(\d*)")


def is_described(config: ModelConfig) -> bool:
    """Whether `weight_shapes` knows this kind; of others, a built model tells (`building.shapes_of`)."""
    return config.kind in _SHAPES


def weight_shapes(config: ModelConfig, bands: int, classes: int) -> dict[str, Shape]:
    """Path of each weight → its shape, in the order of the data's way through the model."""
    return dict(_SHAPES[config.kind](config, bands, classes))


def stage_of(path: str, config: UNetConfig) -> str:
    """The stage of a U-Net that a weight belongs to, as people name it.

    Encoder and decoder stages are counted in the direction in which data flows, from 1.
    """
    found = _LAYER.match(path)
    if found is None:
        return path.split("/")[0]
    kind, level = found[1], int(found[2] or 0)
    return {
        "down": f"encoder stage {level + 1}",
        "bottom": "bottleneck",
        "logits": "head",
    }.get(kind, f"decoder stage {config.depth - level}")


def check_learned(
    arrays: Mapping[str, NDArray[Any]], config: ModelConfig, bands: int, classes: int, file: Path
) -> None:
    """Refuse a checkpoint whose weights (under `model/`) are not those of a model.

    Raises:
        CheckpointError: naming the first weight that is missing, of another shape, or not finite.
    """
    check_weights(arrays, weight_shapes(config, bands, classes), file)


def check_weights(arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, Shape], file: Path) -> None:
    """`check_learned` by the shapes of a model's weights."""
    for name, shape in shapes.items():
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


def _unet(config: UNetConfig, bands: int, classes: int) -> Iterator[tuple[str, Shape]]:
    widths = [min(config.width * 2**level, config.max_width) for level in range(config.depth + 1)]
    channels = bands
    for level, width in enumerate(widths):
        name = f"down{level}" if level < config.depth else "bottom"
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


def _block(config: UNetConfig, name: str, channels: int, width: int) -> Iterator[tuple[str, Shape]]:
    """Two 3×3 convolutions, each with its BatchNorm, or with a bias."""
    for i, before in enumerate((channels, width)):
        yield f"{name}_conv{i}/kernel", (3, 3, before, width)
        if config.normalisation == "batch":
            for part in ("gamma", "beta", "moving_mean", "moving_variance"):
                yield f"{name}_norm{i}/{part}", (width,)
        else:
            yield f"{name}_conv{i}/bias", (width,)


_SHAPES: dict[str, Callable[[Any, int, int], Iterator[tuple[str, Shape]]]] = {"unet": _unet}
"""Kinds whose shapes follow from few settings; networks of the literature are described by building them."""
