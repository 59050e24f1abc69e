"""Operations of the compiled step, read off its graph: none that TensorFlow leaves to a GPU's host."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets.commands.gpu.laboratory import BATCH, EMPHASES, SHARES, SIDE, SUM, WEIGHTS
from segmenter.config.recipe import LossConfig
from tests.helpers.small_training import NORM, Training, batches

HANDED_ON = {"Cast", "TopKV2"}
"""Of int32 these have kernels on a GPU: `Cast` makes other numbers of it, `TopKV2` gives its order so."""


@pytest.mark.parametrize("config", [SUM, EMPHASES], ids=["sum of all", "emphases"])
def test_no_map_of_int32_is_computed_with(tensorflow: ModuleType, config: LossConfig) -> None:
    """TensorFlow 2.21 adds, multiplies and compares int32 in host memory, also on a GPU."""
    from segmenter.training.losses import segmentation_loss

    training = Training(NORM, segmentation_loss(config, WEIGHTS, BATCH, SHARES), dtype="float32")
    batch = training.devices.distributed(tuple(part[0] for part in batches(1)))
    graph = training.step.get_concrete_function(batch).graph
    found = {op.type for op in graph.get_operations() if any(map(_is_map, (*op.inputs, *op.outputs)))}
    assert found <= HANDED_ON
    assert "Conv2D" in {op.type for op in graph.get_operations()}  # it is the graph that computes


def _is_map(tensor: Any) -> bool:
    size = tensor.shape.num_elements()
    return tensor.dtype == np.int32 and (size is None or size >= BATCH * SIDE * SIDE)


@pytest.mark.parametrize("side", [5, 3000])
def test_pixels_are_counted_exactly(tensorflow: ModuleType, side: int) -> None:
    """In float32, tile by tile: 9 million pixels are below 2^24."""
    from segmenter.training.step import tiles_holding

    label = np.zeros((2, side, side), np.uint8)
    label[1, 0, 0] = 1
    most = side * side
    assert tiles_holding(tensorflow.constant(label), 3, most).numpy().tolist() == [1, 0, 0]
    assert tiles_holding(tensorflow.constant(label), 3, most - 1).numpy().tolist() == [2, 0, 0]
    assert tiles_holding(tensorflow.constant(label), 3, 1).numpy().tolist() == [2, 1, 0]
