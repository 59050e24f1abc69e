"""Memory of a training step: what the formula counts is what TensorFlow's gradient needs."""

from typing import Any

import pytest
import tensorflow as tf

from segmenter.config.models import EncoderDecoderConfig
from segmenter.config.recipe import ModelConfig, UNetConfig
from segmenter.model.building import build_model
from segmenter.model.size import training_bytes_per_image

pytestmark = pytest.mark.usefixtures("few_blocks")

VIEWS = {"Identity", "IdentityN", "StopGradient", "Reshape", "Squeeze"}
OF_SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
MODELS: dict[str, ModelConfig] = {
    "unet": UNetConfig(depth=2, width=8),
    **{
        name: EncoderDecoderConfig(kind="encoder_decoder", encoder=name, decoder=decoder, decoder_width=8)
        for name, decoder in (
            ("resnet18", "fpn"),
            ("efficientnet_lite0", "unet"),
            ("efficientnet_v2_b0", "unet"),
            ("densenet121", "unet"),
            ("convnext_tiny", "unet"),
        )
    },
}


def bytes_kept(model: Any, side: int) -> list[int]:
    """Bytes of each tensor of one image's forward pass that TensorFlow's own gradient is computed from."""
    forward: set[str] = set()

    def gradients(image: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(image, training=True)))
        forward.update(op.name for op in loss.graph.get_operations())
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    traced = tf.function(gradients, autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec((1, side, side, 3))).graph
    waiting, seen, kept = [tensor.op for tensor in graph.outputs], set[str](), {}
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        waiting += [tensor.op for tensor in op.inputs]
        for tensor in () if op.name in forward or op.type in OF_SHAPES else op.inputs:
            while tensor.op.type in VIEWS:
                tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
            of_pixels = tensor.shape.rank == 4 and tensor.shape[1] > 1 and tensor.op.type != "ReadVariableOp"
            if of_pixels and tensor.op.name in forward:
                kept[tensor.name] = tensor.dtype.size * tensor.shape.num_elements()
    return list(kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_is_counted_is_what_gradients_need(name: str) -> None:
    """Never less, as a step would not fit; and twice the largest, for the gradients under way."""
    model, side = build_model(MODELS[name], 3, 4, synchronised=True), 64
    kept = bytes_kept(model, side)
    counted = training_bytes_per_image(model, side, side)
    assert 1 <= counted / (sum(kept) + 2 * max(kept)) <= 1.15


def counted(config: ModelConfig, precision: str) -> int:
    mixed = precision.startswith("mixed")
    model = build_model(config, 3, 4, dtype=precision, synchronised=True)
    return training_bytes_per_image(model, 64, 64, mixed=mixed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unet", "convnext_tiny"])
def test_memory_shrinks_with_precision(name: str) -> None:
    """Not to half: normalisations compute in float32, and the allocator takes more than lives."""
    single = counted(MODELS[name], "float32")
    assert single / 2 < counted(MODELS[name], "mixed_float16") < single
    assert counted(MODELS[name], "float64") == 2 * single
