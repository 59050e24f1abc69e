"""Calls of a functional Keras model in execution order; a layer called twice gives two calls.

Keras is not imported: only attributes of the model's objects are read. A model within a model is one call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer.

    Attributes:
        inputs: indices of its input tensors; a tensor used twice appears twice.
        node: Keras' record of the call, with all arguments.
    """

    operation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    node: Any

    @property
    def kind(self) -> str:
        """Name of the layer's class."""
        return type(self.operation).__name__

    def __str__(self) -> str:
        return f"layer {self.operation.name} ({self.kind})"


@dataclass
class Graph:
    """Calls and tensors of a model.

    Attributes:
        calls: in an order in which they can run: inputs before their use.
        shapes: shape of each tensor, None for sizes that depend on the image.
    """

    calls: list[LayerCall] = field(default_factory=list)
    shapes: list[tuple[int | None, ...]] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


def graph_of(model: Any) -> Graph:
    """Return the calls of a functional Keras model."""
    graph, number_of = Graph(), dict[int, int]()

    def added(tensors: Any) -> tuple[int, ...]:
        for tensor in tensors:
            number_of[id(tensor)] = len(graph.shapes)
            graph.shapes.append(tuple(tensor.shape))
        return numbers(tensors)

    def numbers(tensors: Any) -> tuple[int, ...]:
        return tuple(number_of[id(tensor)] for tensor in tensors)

    graph.inputs = added(model.inputs)
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            if not node.is_input:
                call = LayerCall(node.operation, numbers(node.input_tensors), added(node.outputs), node)
                graph.calls.append(call)
    graph.outputs = numbers(model.outputs)
    return graph
