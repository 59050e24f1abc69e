"""Sum of a residual block's branches, with drop path where the recipe has it."""

from __future__ import annotations

from typing import Any

from segmenter.model.layers import Layers


def residual(layers: Layers, shortcut: Any, branch: Any, name: str, rate: float) -> Any:
    """Shortcut + branch; the branch is left out of so many of the tiles in training."""
    if rate:
        from segmenter.model.drop_path import DropPath

        branch = DropPath(rate, dtype=layers.policy, name=f"{name}_drop_path")(branch)
    return layers.add([shortcut, branch], f"{name}_add")
