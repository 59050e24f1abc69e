"""Calls of a functional Keras model in execution order, with nested models expanded.

A layer called twice gives two calls, a layer with several inputs has all of them, and a model inside a model
gives its inner calls; `layer.input` and `layer.output` show none of that. Keras is not imported: only
attributes of the model's objects are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_NESTED = ("Functional.call", "Sequential.call")


@dataclass(frozen=True)
class Call:
    """One call of an operation (a layer, or a function of `keras.ops`).

    Attributes:
        inputs: indices of its input tensors; a tensor used twice appears twice.
        outputs: indices of its output tensors.
        node: Keras' record of the call, with all arguments.
        training: True if the model was built so that it always computes as in training.
    """

    operation: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    node: Any
    training: bool = False

    @property
    def kind(self) -> str:
        """Name of the operation's class."""
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

    calls: list[Call] = field(default_factory=list)
    shapes: list[tuple[int | None, ...]] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def tensor(self, keras_tensor: Any) -> int:
        """Add a tensor; return its index."""
        self.shapes.append(tuple(keras_tensor.shape))
        return len(self.shapes) - 1


def graph_of(model: Any) -> Graph:
    """Return the calls of a functional or sequential Keras model.

    Raises:
        TypeError: the model has no graph, because it is subclassed or not built yet.
    """
    functional = _functional(model)
    if functional is None:
        raise TypeError(f"{type(model).__name__} is no functional Keras model: its layers cannot be walked")
    graph = Graph()
    graph.inputs = tuple(graph.tensor(tensor) for tensor in functional.inputs)
    graph.outputs = _lay_open(graph, functional, graph.inputs, training=False)
    return graph


def _functional(model: Any) -> Any:
    """Return the functional model that a model is or contains; None if it overrides `call`."""
    if getattr(type(getattr(model, "call", None)), "__name__", "") != "method":
        return None
    if model.call.__func__.__qualname__ not in _NESTED:
        return None
    inner = getattr(model, "_functional", model)
    return inner if hasattr(inner, "_nodes_by_depth") else None


def _lay_open(graph: Graph, model: Any, inputs: Sequence[int], *, training: bool) -> tuple[int, ...]:
    """Add a model's calls on `inputs` to the graph; return its output tensors."""
    number_of = {id(tensor): number for tensor, number in zip(model.inputs, inputs, strict=True)}
    for node in _nodes(model):
        given = tuple(number_of[id(tensor)] for tensor in node.input_tensors)
        as_in_training = training or node.arguments.kwargs.get("training") is True
        inner = _functional(node.operation)
        # Several inputs may come by name: which is which, only Keras knows.
        if inner is not None and len(given) == len(inner.inputs) == 1:
            results = _lay_open(graph, inner, given, training=as_in_training)
        else:
            results = tuple(graph.tensor(tensor) for tensor in node.outputs)
            graph.calls.append(Call(node.operation, given, results, node, as_in_training))
        number_of.update(zip(map(id, node.outputs), results, strict=True))
    return tuple(number_of[id(tensor)] for tensor in model.outputs)


def _nodes(model: Any) -> Iterator[Any]:
    """Yield records of a model's calls in execution order, without its inputs."""
    for depth in sorted(model._nodes_by_depth, reverse=True):
        yield from (node for node in model._nodes_by_depth[depth] if not node.is_input)
