"""Sums in the graph that TensorFlow really runs: its optimiser merges chains of additions into one."""

from collections.abc import Callable
from typing import Any


def widest_sum(function: Callable[..., Any], *arguments: Any) -> int:
    """The most tensors that one operation of a compiled function adds, as it runs; 0 where none adds."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    context.enable_run_metadata()
    tf.function(lambda x: x + 1)(tf.constant(1))  # the first function after that leaves no graph
    context.export_run_metadata()
    function(*arguments)
    graphs = context.export_run_metadata().partition_graphs
    context.disable_run_metadata()
    sums = [node for graph in graphs for node in graph.node if node.op == "AddN"]
    return max((sum(not name.startswith("^") for name in node.input) for node in sums), default=0)
