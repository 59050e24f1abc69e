"""What a checkpoint must hold is told without building the model, and is what the built model has."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import CheckpointError
from segmenter.config.recipe import ModelConfig, UNetConfig
from segmenter.model.size import check_learned, weight_shapes

CONFIGS: list[dict[str, Any]] = [
    {"depth": 1, "width": 2},
    {"depth": 3, "width": 3, "max_width": 5, "upsampling": "transpose", "dropout": 0.5},
    {"depth": 2, "width": 4, "normalisation": "none", "upsampling": "bilinear"},
]


@pytest.mark.parametrize("settings", CONFIGS)
@pytest.mark.parametrize("synchronised", [False, True])
def test_the_shapes_are_those_of_the_built_model(
    tensorflow: ModuleType, settings: dict[str, Any], synchronised: bool
) -> None:
    from segmenter.model.building import build_model

    config = UNetConfig(**settings)
    model = build_model(config, 5, 7, synchronised=synchronised)
    built = {v.path: tuple(v.shape) for v in model.variables if not v.path.endswith("/masks")}
    shapes = dict(weight_shapes(config, 5, 7))
    assert {name: shapes[name] for name in built} == built
    assert shapes.keys() == built.keys()


def arrays(config: ModelConfig) -> dict[str, Any]:
    return {
        f"model/{name}": np.ones(shape, np.float32) for name, shape in weight_shapes(config, 3, 4).items()
    }


def test_weights_that_do_not_fit_are_refused_without_a_model() -> None:
    """A width of 256 at depth 6 would be 4.4 GB; nothing is made here but the weights that are there."""
    small, huge = UNetConfig(depth=1, width=2), UNetConfig(depth=6, width=256, max_width=2048)
    file, there = Path("run/best.npz"), arrays(small)
    check_learned(there, small, 3, 4, file)
    with pytest.raises(
        CheckpointError, match=r"best.npz: expected weight down0_conv0/kernel of shape \(3, 3, 3, 256\)"
    ):
        check_learned(there, huge, 3, 4, file)
    with pytest.raises(
        CheckpointError, match=r"logits/kernel of shape \(1, 1, 2, 5\) .*got \(1, 1, 2, 4\) of float32"
    ):
        check_learned(there, small, 3, 5, file)
    there["model/logits/bias"] = np.zeros(4, "U3")
    with pytest.raises(CheckpointError, match=r"logits/bias of shape \(4,\) and floats.*got \(4,\) of <U3"):
        check_learned(there, small, 3, 4, file)
    there["model/logits/bias"] = np.array([0, np.nan, 0, 0], np.float32)
    with pytest.raises(CheckpointError, match=r"expected finite weights, logits/bias has others"):
        check_learned(there, small, 3, 4, file)
