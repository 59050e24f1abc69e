"""Operations and bytes of a training step, counted from what TensorFlow has traced for it.

Nothing is run: the model, its loss and its optimiser are traced for a batch of a given shape, and every
operation that the step needs is counted with its arithmetic and with the bytes of the tensors that it reads
and writes. TensorFlow runs each as a kernel of its own, without `training.xla` (`fusion`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from segmenter.config.recipe import LossConfig, ModelConfig, TrainingConfig

BANDS, CLASSES = 3, 6
MOVES_NOTHING = {
    *(
        "Const",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "Placeholder",
        "PreventGradient",
        "Rank",
        "ReadVariableOp",
    ),
    *("Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient"),
}
"""Of what these are given, they read the shape alone, or hand it on."""
_CONVOLUTIONS = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")


@dataclass(frozen=True)
class Operation:
    """Attributes:
    part: the layer it belongs to; empty for the loss, the optimiser and what is not told apart.
    flops: multiplications and additions of a convolution, both counted; 0 for all others.
    half: whether it computes with float16.
    bytes: of all tensors that it reads and writes.
    backward: whether it belongs to the backward pass.
    update: whether only the update needs it: schedule, clipping, moments, weights.
    """

    part: str
    flops: int
    half: bool
    bytes: int
    backward: bool = False
    update: bool = False

    def seconds(self, flops: float, half_flops: float, bandwidth: float) -> float:
        """By the roofline: whatever takes longer, the arithmetic or the memory."""
        return max(self.flops / (half_flops if self.half else flops), self.bytes / bandwidth)


def step_operations(
    config: ModelConfig, precision: str, images: int, side: int, *, synchronised: bool, frozen: str = "none"
) -> list[Operation]:
    """The operations of one replica's step; see `traced_step`."""
    return list(
        _counted(*traced_step(config, precision, images, side, synchronised=synchronised, frozen=frozen))
    )


def traced_step(
    config: ModelConfig, precision: str, images: int, side: int, *, synchronised: bool, frozen: str = "none"
) -> tuple[Any, list[str]]:
    """The graph of one replica's step, without its collectives, and the names of the model's layers.

    Args:
        images: of this replica, each side × side pixels.
        synchronised: with `SyncBatchNorm`, which on one replica does what it does on each of several, but
            for the collective; else with Keras' BatchNormalization.
        frozen: `training.freeze_norms`.
    """
    import tensorflow as tf

    from segmenter.model.building import build_model, stages_of
    from segmenter.model.stages import pace_of
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser, set_trained

    model = build_model(config, BANDS, CLASSES, dtype=precision, synchronised=synchronised)
    training = TrainingConfig(freeze_norms=frozen)
    pace = pace_of(stages_of(model, config), training)
    optimiser = build_optimiser(training, model, 1000, pace=pace)
    set_trained(model, pace, 0)
    loss = segmentation_loss(LossConfig(), None, images)

    @tf.function
    def step(image: Any, label: Any) -> Any:
        with tf.GradientTape() as tape:
            share = loss(label, model(tf.cast(image, model.inputs[0].dtype), training=True))
        gradients = tape.gradient(share, [v.value for v in model.trainable_variables])
        gradient = optimiser.flat(gradients, model.trainable_variables)
        optimiser.apply(gradient, model.trainable_variables)
        return share

    traced = step.get_concrete_function(
        tf.TensorSpec((images, side, side, BANDS), tf.uint8), tf.TensorSpec((images, side, side), tf.uint8)
    )
    return traced.graph, [layer.name for layer in model.layers]


def prediction_operations(config: ModelConfig, precision: str, side: int) -> list[Operation]:
    """The operations of predicting the classes of one window, side × side pixels."""
    import tensorflow as tf

    from segmenter.model.building import build_model

    model = build_model(config, BANDS, CLASSES, dtype=precision)

    @tf.function
    def classes(image: Any) -> Any:
        logits = model(tf.cast(image, model.inputs[0].dtype), training=False)
        return tf.cast(tf.argmax(logits, -1, output_type=tf.int32), tf.uint8)

    traced = classes.get_concrete_function(tf.TensorSpec((1, side, side, BANDS), tf.uint8))
    return list(_counted(traced.graph, [layer.name for layer in model.layers]))


def parameters(config: ModelConfig) -> int:
    """Trainable weights of the model."""
    from segmenter.model.building import build_model

    return sum(
        int(v.value.shape.num_elements()) for v in build_model(config, BANDS, CLASSES).trainable_variables
    )


def norm_channels(config: ModelConfig, frozen: str = "none") -> list[int]:
    """Channels of each BatchNorm layer that `training.freeze_norms` does not keep as it is."""
    import keras

    from segmenter.model.building import build_model
    from segmenter.model.stages import part_of

    norms = [
        layer
        for layer in build_model(config, BANDS, CLASSES).layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    return [norm.output.shape[-1] for norm in norms if frozen not in ("all", part_of(norm.name))]


def training_bytes(config: ModelConfig, side: int) -> int:
    """Bytes that a tile takes on a card in mixed precision (`model.size`)."""
    from segmenter.model.building import build_model
    from segmenter.model.size import training_bytes_per_image

    model = build_model(config, BANDS, CLASSES, dtype="mixed_float16", synchronised=True)
    return training_bytes_per_image(model, side, side, mixed=True)


def _counted(graph: Any, layers: Sequence[str]) -> Iterator[Operation]:
    name = re.compile("|".join(sorted(map(re.escape, layers), key=len, reverse=True)))
    update = _of_update(graph)
    for operation in needed(graph):
        if operation.type in MOVES_NOTHING:
            continue
        tensors = [*operation.inputs, *operation.outputs]
        found = name.search(operation.name)
        yield Operation(
            found.group() if found else "",
            flops_of(operation),
            any(t.dtype.name == "float16" for t in operation.outputs),
            sum(bytes_of(tensor) for tensor in tensors),
            _is_backward(operation),
            operation.name in update,
        )


def needed(graph: Any) -> list[Any]:
    """Operations that the outputs or a variable's new value depend on; the others are never run."""
    assigned = [op for op in graph.get_operations() if op.type.startswith("Assign")]
    return _reached([*(t.op for t in graph.outputs), *assigned], _inputs)


def _reached(start: Sequence[Any], next_of: Callable[[Any], list[Any]]) -> list[Any]:
    waiting, seen = list(start), {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen[operation.name] = operation
            waiting += next_of(operation)
    return list(seen.values())


def _is_backward(operation: Any) -> bool:
    return "gradient_tape" in operation.name


def _of_update(graph: Any) -> set[str]:
    """Names of the operations that wait for a gradient, and of those that only these need, as the schedule's.

    A moment that is read again waits for its new value by a control edge.
    """
    operations = graph.get_operations()
    waiting: dict[str, list[Any]] = {}
    for op in operations:
        for first in op.control_inputs:
            waiting.setdefault(first.name, []).append(op)
    backward = [op for op in operations if _is_backward(op)]
    # A layer's own gradient is in no tape by name, but others need it.
    before = _reached([*backward, *(t.op for t in graph.outputs)], _inputs)
    given = _reached(
        backward,
        lambda op: [*waiting.get(op.name, ()), *(user for t in op.outputs for user in t.consumers())],
    )
    after = {op.name for op in given} - {op.name for op in before}
    needed = _reached([op for op in given if op.name in after], _inputs)
    return {op.name for op in needed} - {op.name for op in before}


def _inputs(operation: Any) -> list[Any]:
    return [tensor.op for tensor in operation.inputs]


def bytes_of(tensor: Any) -> int:
    """Bytes of a tensor of fixed shape; 0 of a handle, and of what no operation reads."""
    count = tensor.shape.num_elements()
    if tensor.dtype.name == "resource" or (count is None and not tensor.consumers()):
        return 0
    assert count is not None, f"{tensor.name} has no fixed shape"
    return int(count) * int(tensor.dtype.size)


def flops_of(operation: Any) -> int:
    """Of a convolution with stride 1: 2 · pixels · kernel · channels in · channels out, in all directions."""
    if operation.type not in _CONVOLUTIONS:
        return 0
    forward = operation.type == "Conv2D"
    filters = {"Conv2D": operation.inputs[1], "Conv2DBackpropFilter": operation.outputs[0]}
    kernel = filters.get(operation.type, operation.inputs[1])
    pixels = (operation.outputs[0] if forward else operation.inputs[2]).shape[:3]
    return 2 * int(pixels.num_elements()) * int(kernel.shape.num_elements())
